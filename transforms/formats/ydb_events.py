"""Converts `ChangefeedRecord`s to `ChangeEvent`s, with the parser of the record's format and the table's schema. Pure.

| record | event |
|---|---|
| `update`, op `u`, MODIFY | UPDATE |
| the same without an old image in mode NEW_AND_OLD_IMAGES, op `c`, INSERT | CREATE |
| `reset` | UPDATE with every column; those that the record lacks are NULL |
| `erase`, op `d`, REMOVE | DELETE |
| a row of the initial scan, op `r` | READ |
| `tableChanges` | SCHEMA |

The version of an event is (step, transaction id, offset). Without virtual timestamps it is (time of writing, offset).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

from penstock.event import ChangeEvent, Column, Op, Source, TableSchema, Version
from penstock.io.ydb.record import ChangefeedRecord, Table
from penstock.transforms.formats.dynamodb_parse import DynamoDbParser
from penstock.transforms.formats.ydb_parse import Barrier, YdbParser
from penstock.transforms.formats.ydb_types import column_type

_Parse = Callable[[ChangefeedRecord], ChangeEvent]


class EventConverter:
    """Converts the records of one changefeed. Each event's source has its `server` and `database`."""

    def __init__(self, server: str = "", database: str = "") -> None:
        self._server, self._database = server, database
        self._parsers: dict[Table, _Parse] = {}
        # Neighbours share their table, and its hash walks all columns.
        self._last_table: Table | None = None
        self._last: _Parse | None = None

    def __call__(self, record: ChangefeedRecord) -> list[ChangeEvent]:
        """Return the one event of a record.

        Raises:
            ValueError: a value does not have the form of its type; the message names table and column, not the value.
        """
        if record.table is not self._last_table or self._last is None:
            self._last_table, self._last = record.table, self._parser(record.table)
        return [self._last(record)]

    def _parser(self, table: Table) -> _Parse:
        found = self._parsers.get(table)
        if found is None:
            source = Source("ydb", self._server, self._database, "", table.name, table.changefeed, table.mode)
            make = _dynamodb if table.format == "DYNAMODB_STREAMS_JSON" else _ydb
            found = self._parsers[table] = make(table, source)
        return found


def _ydb(table: Table, source: Source) -> _Parse:
    parser = YdbParser(table_schema(table), source, mode=table.mode)  # type: ignore[arg-type]

    def parse(record: ChangefeedRecord) -> ChangeEvent:
        sequence = _sequence(record)
        event = parser(
            record.key or None,
            record.data,
            timestamp=record.created_at,
            version=Version(record.written_at, "", sequence),
            initial_scan=record.is_initial_scan,
        )
        if isinstance(event, Barrier):
            raise ValueError("a barrier is no change")
        # A schema change has its number there.
        if event.version.sequence or event.op is Op.SCHEMA:
            return event
        return msgspec.structs.replace(
            event, version=msgspec.structs.replace(event.version, sequence=sequence)
        )

    return parse


def _dynamodb(table: Table, source: Source) -> _Parse:
    parser = DynamoDbParser(table_schema(table), source)

    def parse(record: ChangefeedRecord) -> ChangeEvent:
        version = Version(record.written_at, "", _sequence(record))
        return parser(record.data, timestamp=record.created_at, version=version)

    return parse


def _sequence(record: ChangefeedRecord) -> str:
    # Texts compare as numbers if they have the same length.
    return f"{record.offset:020d}"


@lru_cache(maxsize=256)
def table_schema(table: Table) -> TableSchema:
    """Return the schema of a table."""
    return TableSchema(
        tuple(
            Column(
                column.name,
                column_type(column.type),
                column.nullable,
                table.key.index(column.name) + 1 if column.name in table.key else None,
            )
            for column in table.columns
        )
    )
