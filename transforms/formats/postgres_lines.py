"""A log record of PostgreSQL as a line of JSON: the values are the texts that the server sent. Pure.

    {"commit_timestamp":"2026-01-31T12:00:00.123456Z","commit_lsn":"0/16B3748","transaction_id":740,"lsn":"0/16B3700",
     "sequence":1,"last":true,"schema":"public","table":"orders","kind":"UPDATE","new":{…},"old":null,"unchanged":[]}

A column that is NULL is null. `old` has the columns of the replica identity, and is null if the server did not send
it. `unchanged` names the large columns that did not change: the server did not send them, and `new` lacks them.
A TRUNCATE has `cascade` and `restart_identity`, a MESSAGE `prefix` and `content` (base64), in place of the images.
(`commit_lsn`, `sequence`) identifies and orders lines; a message outside of a transaction has null as `commit_lsn`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.io.postgres.record import (
    UNCHANGED,
    ChangeKind,
    LogRecord,
    LogTransaction,
    Row,
    Table,
    format_lsn,
    parse_lsn,
)
from penstock.timestamps import format_timestamp, parse_timestamp
from penstock.transforms.formats.lines import Line

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
MESSAGES = "messages"
"""The table of messages, which belong to none."""


def log_lines(record: LogRecord) -> Iterator[Line]:
    """Yield the line of a record. Its key is the text of the key columns, or empty without a key."""
    fields: dict[str, Any] = {
        "commit_timestamp": format_timestamp(
            record.transaction.commit_timestamp if record.transaction else record.event_timestamp
        ),
        "commit_lsn": format_lsn(record.transaction.commit_lsn) if record.transaction else None,
        "transaction_id": record.transaction.id if record.transaction else None,
        "lsn": format_lsn(record.lsn),
        "sequence": record.sequence,
        "last": record.last,
    }
    table = record.table
    if table is None:
        # A message has any bytes, which need not be text.
        content = b64encode(record.content).decode()
        message = {"kind": record.kind, "prefix": record.prefix, "content": content}
        yield Line(MESSAGES, record.prefix, _encode(fields | message))
        return
    fields |= {"schema": table.schema, "table": table.name, "kind": record.kind}
    if record.kind is ChangeKind.TRUNCATE:
        fields |= {"cascade": record.cascade, "restart_identity": record.restart_identity}
    else:
        # Not strict: a DELETE has no new row, so nothing in it is unchanged.
        unchanged = [
            column.name
            for column, value in zip(table.columns, record.new or (), strict=False)
            if value is UNCHANGED
        ]
        fields |= {"new": _image(record, record.new, old=False), "old": _image(record, record.old, old=True)}
        fields["unchanged"] = unchanged
    yield Line(str(table), _key(record), _encode(fields))


def _image(record: LogRecord, row: Row | None, *, old: bool) -> dict[str, Any] | None:
    if row is None or record.table is None:
        return None
    # In an old row without all columns, only the columns of the replica identity have a meaning.
    partial = old and not record.old_is_full
    return {
        column.name: value
        for column, value in zip(record.table.columns, row, strict=True)
        if value is not UNCHANGED and (column.in_identity or not partial)
    }


def _key(record: LogRecord) -> str:
    row = record.new if record.new is not None else record.old
    if row is None or record.table is None:
        return ""
    keys = [
        # The server sends the old row if a key has a large value.
        (column.key_position, old if value is UNCHANGED else value)
        for column, value, old in zip(record.table.columns, row, record.old or row, strict=True)
        if column.key_position is not None
    ]
    return _encode([value for _, value in sorted(keys, key=lambda key: key[0])])


class _ParsedLine(msgspec.Struct):
    commit_timestamp: str
    commit_lsn: str | None
    transaction_id: int | None
    lsn: str
    sequence: int
    last: bool
    kind: ChangeKind
    new: dict[str, str | None] | None = None
    old: dict[str, str | None] | None = None


_decode = msgspec.json.Decoder(_ParsedLine).decode


def record_of_line(line: bytes, table: Table) -> LogRecord:
    """Return the record of a line of a table, without what a line does not tell.

    `table`: as it is now. A column that the line does not have is unchanged, and one that the table does not have is
    left out. `old` counts as full: its columns that are unchanged were not sent.

    Raises:
        ValueError: it is no line of `log_lines`.
    """
    parsed = _decode(line)
    timestamp, lsn = parse_timestamp(parsed.commit_timestamp), parsed.commit_lsn
    transaction = (
        None if lsn is None else LogTransaction(parsed.transaction_id or 0, parse_lsn(lsn), timestamp)
    )
    new, old = (_row(image, table) for image in (parsed.new, parsed.old))
    place = (parsed.sequence, parse_lsn(parsed.lsn), parsed.last)
    return LogRecord(parsed.kind, timestamp, transaction, *place, table, new, old, old is not None)


def _row(image: dict[str, str | None] | None, table: Table) -> Row | None:
    return None if image is None else tuple(image.get(column.name, UNCHANGED) for column in table.columns)
