"""The partitions of Delta tables, which are values of columns. Needs pyarrow.

A unit of a time is a column of the sink, such as `_penstock_day_of_created_at`, with an ISO text in UTC. Files have no
partition columns. They are in the folder of the table: readers take their values from the log, not from paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from penstock.io.columnar.partition_rows import PartitionColumn, divided, texts
from penstock.io.columnar.partitions import (
    TIME_UNITS,
    PartitionField,
    TimeUnit,
    derived_name,
    field_of_column,
)

Values = dict[str, str | None]
"""The values of a partition as Delta's log has them."""


def fields_of_table(table: Any) -> tuple[PartitionField, ...]:
    """Return by what an open table is partitioned."""
    return tuple(map(field_of_column, table.metadata().partition_columns))


def column_of(field: PartitionField) -> str:
    """Return the column whose values are the partitions."""
    return derived_name(field) if field.transform in TIME_UNITS else field.column


def are_plain(shape: pa.Schema, names: Sequence[str]) -> bool:
    """Return whether the sink writes the values of these partition columns as other programs do."""
    return all(_is_plain(shape.field(name).type) for name in names)


def with_units(rows: pa.Table, fields: Sequence[PartitionField]) -> pa.Table:
    """Return rows with the columns for units of times."""
    for field in fields:
        name = column_of(field)
        if name == field.column:
            continue
        if field.column in rows.column_names:
            units: Any = texts(rows.column(field.column), cast("TimeUnit", field.transform))
        else:
            units = pa.nulls(rows.num_rows, pa.string())
        rows = (
            rows.set_column(rows.column_names.index(name), name, units)
            if name in rows.column_names
            else rows.append_column(name, units)
        )
    return rows


def by_partition(rows: pa.Table, names: Sequence[str]) -> list[tuple[Values, pa.Table]]:
    """Return the rows of each partition without the partition columns. Without partitions all rows are one part."""
    if not names:
        return [({}, rows)] if rows.num_rows else []
    columns = [PartitionColumn(_texts(rows, name), _value_in_log) for name in names]
    held = [name for name in names if name in rows.column_names]
    return [
        (dict(zip(names, values, strict=True)), part.drop_columns(held))
        for values, part in divided(rows, columns)
    ]


def constants(values: Mapping[str, str | None], shape: pa.Schema, count: int) -> dict[str, pa.Array]:
    """Return the partition columns of a file with `count` rows, with the types of the table."""
    return {
        name: pa.array([value or None] * count, pa.string()).cast(shape.field(name).type)
        for name, value in values.items()
        if name in shape.names
    }


def _texts(rows: pa.Table, name: str) -> pa.ChunkedArray:
    # A column that another program has added; changes have no value for it.
    if name not in rows.column_names:
        return pa.chunked_array([pa.nulls(rows.num_rows, pa.string())])
    return rows.column(name).cast(pa.string())


def _value_in_log(text: str | None) -> str | None:
    return text or None  # Delta reads an empty text as NULL


def _is_plain(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_integer(type_)
        or pa.types.is_date(type_)
        or pa.types.is_boolean(type_)
    )
