"""Reads the header of a message: its virtual timestamp, a barrier, or a schema change. Pure.

Values of rows are not decoded here, but in `events`. The JSON decoder skips them.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from penstock.io.ydb.record import Table, TableColumn


class Header(NamedTuple):
    """`ts`: the virtual timestamp. `is_read`: a row of the initial scan, where the format marks it."""

    ts: tuple[int, int] | None = None
    resolved: tuple[int, int] | None = None
    schema: str = ""
    is_read: bool = False


class _Json(msgspec.Struct):
    ts: tuple[int, int] | None = None
    resolved: tuple[int, int] | None = None
    tableChanges: list[_TableChange] | None = None  # noqa: N815  (names of the format)


class _TableChange(msgspec.Struct):
    table: msgspec.Raw


class _Version(msgspec.Struct):
    schemaVersion: int = 0  # noqa: N815


class _Changed(msgspec.Struct):
    columns: dict[str, str | _ChangedColumn]
    primaryKeyColumnNames: list[str] | str = []  # noqa: N815  (a text in some releases)


class _ChangedColumn(msgspec.Struct):
    type: str
    notNull: bool | None = None  # noqa: N815


class _Debezium(msgspec.Struct):
    payload: _Payload


class _Payload(msgspec.Struct):
    source: _Source
    op: str = ""


class _Source(msgspec.Struct):
    step: int = 0
    txId: int = 0  # noqa: N815
    snapshot: bool | str = False


class _DynamoDb(msgspec.Struct):
    eventName: str  # noqa: N815


_json = msgspec.json.Decoder(_Json).decode
_debezium = msgspec.json.Decoder(_Debezium).decode
_dynamodb = msgspec.json.Decoder(_DynamoDb).decode
_version = msgspec.json.Decoder(_Version).decode
_changed = msgspec.json.Decoder(_Changed).decode

_NOTHING = Header()


def read_json(data: bytes) -> Header:
    """Return the header of a message in format JSON.

    Raises:
        ValueError: it is not a JSON object, or its parts have other types.
    """
    found = _json(data)
    if found.resolved is not None or found.tableChanges:
        # A changefeed has one table, so the list has one description.
        schema = "" if not found.tableChanges else _schema_text(found.tableChanges[0].table)
        return Header(found.ts, found.resolved, schema)
    # Without virtual timestamps nearly every message has this header, so all of them share one object.
    return _NOTHING if found.ts is None else Header(found.ts)


def read_debezium(data: bytes) -> Header:
    """Return the header of a message in format DEBEZIUM_JSON; raises ValueError as `read_json` does."""
    payload = _debezium(data).payload
    source = payload.source
    return Header((source.step, source.txId), is_read=payload.op == "r")


def read_dynamodb(data: bytes) -> Header:
    """Return the header of a message in format DYNAMODB_STREAMS_JSON; raises ValueError as `read_json` does."""
    _dynamodb(data)
    return _NOTHING


READERS = {"JSON": read_json, "DEBEZIUM_JSON": read_debezium, "DYNAMODB_STREAMS_JSON": read_dynamodb}


def changed_table(table: Table, schema: str) -> Table:
    """Return `table` as a schema change describes it; `schema`: see `Position.schema`.

    Raises:
        ValueError: it is no description of a table.
    """
    changed = _changed(schema[_DIGITS:].encode())
    columns = tuple(
        TableColumn(name, column)
        if isinstance(column, str)
        else TableColumn(name, column.type, None if column.notNull is None else not column.notNull)
        for name, column in changed.columns.items()
    )
    names = changed.primaryKeyColumnNames
    key = (names,) if isinstance(names, str) else tuple(names)
    return msgspec.structs.replace(table, columns=columns, key=key or table.key)


_DIGITS = 20
"""Number of digits of a 64-bit schema version, with which the stored schema begins."""


def _schema_text(raw: msgspec.Raw) -> str:
    compact = msgspec.json.format(bytes(raw), indent=-1).decode()
    # Of fixed width, so that the greatest text is the newest schema (`frontier._opening`).
    return f"{_version(raw).schemaVersion:0{_DIGITS}d}{compact}"
