"""The recorded history of this folder as log records and as events."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from penstock.event import ChangeEvent
from penstock.io.postgres import messages as m
from penstock.io.postgres.catalog import describe
from penstock.io.postgres.column_types import CatalogType
from penstock.io.postgres.decode import decode
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.logged_rows import KINDS, LoggedRows
from penstock.io.postgres.record import ChangeKind, LogRecord, Table
from penstock.io.postgres.transactions import TransactionReader
from tests.unit.postgres.pgoutput import encode

HERE = Path(__file__).parent


def read(name: str) -> Any:
    return json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))


@cache
def records() -> tuple[LogRecord, ...]:
    log = read("log")
    types = {row[0]: CatalogType(*row) for row in log["types"]}
    tables = log["tables"]
    reader = TransactionReader(lambda r, _: describe(r, tables.get(str(r.oid), []), types), 0, 0)
    return tuple(
        step
        for lsn, data in log["messages"]
        for step in reader.read(lsn, decode(base64.b64decode(data)))
        if isinstance(step, LogRecord)
    )


@cache
def events() -> tuple[ChangeEvent, ...]:
    convert = EventConverter("", "history", "changes")
    return tuple(event for record in records() for event in convert(record))


def as_logged(records: Sequence[LogRecord]) -> list[LoggedRows]:
    """Return the rows of transactions among records as the server sends them, while the tables stay as they are."""
    rows = [record for record in records if record.transaction is not None and record.kind in KINDS.values()]
    found: list[list[LogRecord]] = []
    tables: dict[int, Table] = {}
    for record in rows:
        table = cast(Table, record.table)
        if not found or tables.setdefault(table.oid, table) != table:
            found.append([])
            tables = {table.oid: table}
        found[-1].append(record)
    return [_logged(each) for each in found]


def parts_of_history(size: int) -> list[LoggedRows]:
    """Return all rows of the history in parts of this size, most of them from several transactions."""
    return [
        rows[start : start + size] for rows in as_logged(records()) for start in range(0, len(rows), size)
    ]


def _logged(records: Sequence[LogRecord]) -> LoggedRows:
    one_of = {record.transaction: record.transaction for record in records if record.transaction is not None}
    return LoggedRows(
        {record.table.oid.to_bytes(4, "big"): record.table for record in records if record.table is not None},
        [(record.lsn, encode(_message(record))) for record in records],
        [one_of[record.transaction] for record in records if record.transaction is not None],
        [record.event_timestamp for record in records],
        [record.sequence for record in records],
        [record.last for record in records],
    )


def _message(record: LogRecord) -> m.Message:
    oid, new, old = cast(Table, record.table).oid, record.new, record.old
    if record.kind is ChangeKind.INSERT:
        return m.Insert(oid, cast(m.Row, new))
    if record.kind is ChangeKind.UPDATE:
        return m.Update(oid, cast(m.Row, new), old, record.old_is_full)
    return m.Delete(oid, cast(m.Row, old), record.old_is_full)


def forget() -> None:
    """Drop what was read of `HERE`, so that the files of another folder are read."""
    records.cache_clear()
    events.cache_clear()
