"""Events and columns for tests of formats."""

from __future__ import annotations

from typing import Any

from penstock.event import (
    ChangeEvent,
    Column,
    ColumnType,
    Image,
    Kind,
    Op,
    Source,
    TableSchema,
    Transaction,
    Version,
)


def schema_of(keys: dict[str, Kind | ColumnType], **columns: Kind | ColumnType) -> TableSchema:
    """Return a schema: first the columns of the key, then the others."""
    every = {**keys, **columns}
    return TableSchema(
        tuple(
            Column(
                name,
                type_ if isinstance(type_, ColumnType) else ColumnType(type_),
                None,
                place if name in keys else None,
            )
            for place, (name, type_) in enumerate(every.items(), 1)
        )
    )


def event_of(
    schema: TableSchema,
    op: Op = Op.UPDATE,
    *,
    before: Image | None = None,
    after: Image | None = None,
    timestamp: int = 1_670_792_400_890_000_000,
    source: Source | None = None,
    **more: Any,
) -> ChangeEvent:
    """Return an event whose key is taken from its images."""
    row = after if after is not None else before or {}
    key = {column.name: row[column.name] for column in schema.key_columns}
    return ChangeEvent(
        source or Source("spanner", "p/i", "shop", "", "Orders", "All", ""),
        op,
        timestamp,
        key,
        before,
        after,
        Version(timestamp, "tx", "00000001", 0),
        schema,
        Transaction("tx", 1, 1, True),
        **more,
    )
