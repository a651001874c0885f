"""The partitions of Iceberg tables. Needs the extra `iceberg`.

pyiceberg 0.12 divides rows with a package of Rust that is no part of it, so they are divided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.io.columnar.partition_rows import PartitionColumn, divided, ordinals
from penstock.io.columnar.partitions import (
    TIME_UNITS,
    Partition,
    PartitionField,
    derived_name,
)

_FIRST_ID = 1000
"""The id of the first field of a partition spec, by Iceberg's specification."""


def fields_of_table(table: Any) -> tuple[PartitionField, ...]:
    """Return by what an open table is partitioned."""
    schema = table.schema()
    return tuple(
        PartitionField(schema.find_column_name(field.source_id), str(field.transform))
        for field in table.spec().fields
    )


def schema_and_spec(shape: pa.Schema, fields: Sequence[PartitionField]) -> tuple[Any, Any]:
    """Return columns and partitions of a new table as pyiceberg has them."""
    from pyiceberg import partitioning
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyiceberg.transforms import parse_transform

    # What `create_table` does itself with columns of pyarrow. A spec needs their ids before.
    schema = assign_fresh_schema_ids(Catalog._convert_schema_if_needed(shape))
    return schema, partitioning.PartitionSpec(
        *(
            partitioning.PartitionField(
                source_id=schema.find_field(field.column).field_id,
                field_id=_FIRST_ID + number,
                transform=parse_transform(field.transform),
                name=_name(field, shape.names),
            )
            for number, field in enumerate(fields)
        )
    )


def by_partition(rows: pa.Table, schema: Any, spec: Any) -> list[tuple[Partition, pa.Table]]:
    """Return the rows of each partition, for a table with these columns."""
    names = [field.name for field in spec.fields]
    return [
        (Partition(dict(zip(names, values, strict=True)), spec.spec_id), part)
        for values, part in divided(rows, [_column(rows, schema, field) for field in spec.fields])
    ]


def record_of(partition: Partition) -> Any:
    """Return the values of a partition as an entry of a manifest has them."""
    from pyiceberg.typedef import Record

    return Record(*partition.values.values())


def _name(field: PartitionField, columns: Sequence[str]) -> str:
    if field.transform == "identity":
        return field.column
    # As other programs name it, unless a column has this name.
    usual = f"{field.column}_{field.transform}"
    return derived_name(field) if usual in columns else usual


def _column(rows: pa.Table, schema: Any, field: Any) -> PartitionColumn:
    type_, transform = schema.find_type(field.source_id), str(field.transform)
    values = _values(rows, schema.find_column_name(field.source_id))
    if transform == "void" or pa.types.is_null(values.type):
        return PartitionColumn(pa.chunked_array([pa.nulls(rows.num_rows)]))
    if transform in TIME_UNITS:
        return PartitionColumn(pa.chunked_array([ordinals(values, transform)]))
    return PartitionColumn(_stored(values), field.transform.transform(type_))


def _values(rows: pa.Table, path: str) -> pa.ChunkedArray:
    """Return a column, or a field of one; nulls if the rows do not have it."""
    if path in rows.column_names:
        return rows.column(path)
    first, *names = path.split(".")
    if first not in rows.column_names:
        return pa.chunked_array([pa.nulls(rows.num_rows)])
    return pc.struct_field(rows.column(first), names)


def _stored(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return dates and times as the numbers that Iceberg stores."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    if pa.types.is_timestamp(values.type) or pa.types.is_time64(values.type):
        return values.cast(pa.int64())
    return values
