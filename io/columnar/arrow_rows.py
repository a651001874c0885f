"""Rows of tables as Arrow tables, and back; and the column types behind Arrow types. Needs the extra `arrow`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.event.arrow import arrow_array, arrow_type, python_values
from penstock.event.change_feed import change_feed_schema
from penstock.event.change_rows import change_row_schema
from penstock.event.column_types import ColumnType, Field, Kind
from penstock.event.feed_rows import Layout
from penstock.event.model import Column, Source, TableSchema
from penstock.io.columnar.table_rows import Mode, StoredRow, table_schema

_KINDS = {
    pa.bool_(): Kind.BOOL,
    pa.int8(): Kind.INT8,
    pa.int16(): Kind.INT16,
    pa.int32(): Kind.INT32,
    pa.int64(): Kind.INT64,
    pa.float32(): Kind.FLOAT32,
    pa.float64(): Kind.FLOAT64,
    pa.date32(): Kind.DATE,
}


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of plain columns."""
    # Delta's timestamps have microseconds, and so have Iceberg's up to table version 2.
    return pa.schema([pa.field(column.name, arrow_type(column.type, "us")) for column in schema])


def new_table_schema(schema: TableSchema, mode: Mode, layout: Layout = "events") -> pa.Schema:
    """Return the Arrow schema of a table that a sink creates for events with the columns `schema`.

    Raises:
        UsageError: in the mode *log* with the layout *table*, a column has a name of the change feed.
    """
    if mode == "log":
        shape = change_row_schema(schema) if layout == "events" else change_feed_schema(schema, "the table")
    else:
        shape = arrow_schema(table_schema(schema, mode))
    # Nullable: a column that a later event does not have must not be refused.
    return pa.schema([field.with_nullable(True) for field in shape])


def rows_to_arrow(rows: Sequence[StoredRow], schema: TableSchema, source: Source) -> pa.Table:
    """Return rows as an Arrow table with the plain columns `schema`. A column that a row does not have is null.

    Raises:
        UnwritableError: a value that its column cannot hold; the message names the column.
    """
    arrays = [
        arrow_array(column.name, column.type, [row.get(column.name) for row in rows], "us", source)
        for column in schema
    ]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def rows_of_arrow(table: pa.Table) -> list[StoredRow]:
    """Return the rows of an Arrow table of plain columns; times are in nanoseconds."""
    schema = columns_of_arrow(table.schema)
    table = table.cast(arrow_schema(schema))  # Iceberg reads texts and lists as their large variants
    columns = {
        column.name: python_values(table.column(column.name).combine_chunks(), column.type, "us")
        for column in schema
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def columns_of_arrow(schema: pa.Schema) -> TableSchema:
    """Return plain columns for the fields of an Arrow schema."""
    return TableSchema(tuple(Column(field.name, column_type_of(field.type)) for field in schema))


def column_type_of(type_: pa.DataType) -> ColumnType:
    """Return the plain column type of an Arrow type."""
    if type_ in _KINDS:
        return ColumnType(_KINDS[type_])
    # Arrow has one type for both; the zone tells them apart.
    if pa.types.is_timestamp(type_):
        return ColumnType(Kind.LOCAL_TIMESTAMP if type_.tz is None else Kind.TIMESTAMP)
    if pa.types.is_decimal(type_):
        return ColumnType(Kind.DECIMAL, precision=type_.precision, scale=type_.scale)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return ColumnType(Kind.ARRAY, element=column_type_of(type_.value_type))
    if pa.types.is_struct(type_):
        return ColumnType(
            Kind.STRUCT, fields=tuple(Field(field.name, column_type_of(field.type)) for field in type_)
        )
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return ColumnType(Kind.BYTES)
    # Strings, and types that no sink of Penstock creates.
    return ColumnType(Kind.STRING)
