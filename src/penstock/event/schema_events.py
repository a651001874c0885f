"""SCHEMA events: what tells the consumer of a log that the columns of a table have changed. Pure.

    known, columns = note_columns(known, event)          # for each event of a table, in the order in which they come

Logs of databases have no record of DDL. The first change with other columns shows it, so the event precedes this
change and has its version. What counts is the name of a column, its type and its place in the primary key, in the order
of the table. Defaults and NOT NULL do not: sources do not tell them with each change.

An older change than the newest one says nothing: partitions of a source come in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from penstock.event.model import ChangeEvent, Column, Op, SchemaChange, TableSchema, Version

WHOLE_CAPTURES = ("NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
"""Capture types of Spanner whose records have all watched columns."""

_CHANGES = (Op.CREATE, Op.UPDATE)


class KnownColumns(msgspec.Struct, frozen=True, array_like=True):
    """The newest columns of a table, and the version of its newest change."""

    newest: Version
    columns: tuple[Column, ...]


def shows_all_columns(event: ChangeEvent) -> bool:
    """Return whether the schema of an event has every column of its table that the source sends.

    Rows of a snapshot have the columns of the time of their query, and older changes may follow them. A record of
    Spanner has the columns that its mutation wrote, unless the capture type sends whole rows.
    """
    source = event.source
    if source.system == "spanner":
        return event.op in _CHANGES and source.capture in WHOLE_CAPTURES
    return source.system == "postgresql" and event.op is not Op.READ and bool(event.schema.columns)


def note_columns(
    known: KnownColumns | None, event: ChangeEvent
) -> tuple[KnownColumns | None, SchemaChange | None]:
    """Return what is known after an event of a table, and the change of the columns that it shows; None: it shows none.

    The same event again changes nothing.
    """
    if not shows_all_columns(event):
        return known, None
    columns = _described(event.schema)
    if known is None:
        return KnownColumns(event.version, columns), SchemaChange(None)
    if event.version <= known.newest:
        return known, None
    change = None if known.columns == columns else SchemaChange(known.columns)
    return KnownColumns(event.version, columns), change


def schema_events(event: ChangeEvent, change: SchemaChange, shards: int) -> Iterator[ChangeEvent]:
    """Yield the SCHEMA event that precedes an event, once for each shard."""
    for shard in range(shards):
        yield ChangeEvent(
            event.source,
            Op.SCHEMA,
            event.timestamp,
            None,
            None,
            None,
            event.version,
            event.schema,
            schema_change=msgspec.structs.replace(change, shard=shard),
        )


def described_columns(columns: tuple[Column, ...]) -> list[dict[str, object]]:
    """Return columns as formats in JSON show them: name, kind, the type's name in the source, and place in the key."""
    return [
        {
            "name": each.name,
            "type": str(each.type.kind),
            "native_type": each.type.native,
            "key_position": each.key_position,
        }
        for each in columns
    ]


@lru_cache(maxsize=4096)
def _described(schema: TableSchema) -> tuple[Column, ...]:
    return tuple(Column(each.name, each.type, key_position=each.key_position) for each in schema)
