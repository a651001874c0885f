"""The columns of a change log before and after files are added to it. Needs pyarrow.

A task writes a file before it is known which columns the table has at its commit. `shape_after` says what the table
must have, `fits` whether a file can be added as it is, and `fitted` gives rows the columns of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from penstock.errors import UnwritableError
from penstock.event.arrow import arrow_type
from penstock.event.change_rows import IMAGES
from penstock.event.column_types import ColumnType, Field, Kind
from penstock.event.feed_rows import Layout
from penstock.event.model import Column, Source, TableSchema
from penstock.event.plain_types import plain_schema
from penstock.event.schema_changes import Adaptation, SchemaChange
from penstock.event.schema_policies import EVOLVE, ChangePolicies
from penstock.io.columnar.arrow_rows import arrow_schema
from penstock.io.columnar.log_layout import LOG_LAYOUTS, check_layout, has_feed
from penstock.io.columnar.one_schema import joined_schema
from penstock.io.columnar.replica import schema_change


@dataclass(frozen=True, slots=True)
class LogShape:
    """The columns of a change log after a commit.

    `columns` are its plain columns, in its order. `left_out` has for each file the columns of the source that are not
    written. `change` is the change of the columns of the source.
    """

    columns: TableSchema
    left_out: tuple[frozenset[str], ...]
    change: SchemaChange


def shape_after(
    table: str,
    held: TableSchema,
    files: Sequence[TableSchema],
    source: Source,
    policies: ChangePolicies,
    layout: Layout = "events",
) -> LogShape:
    """Return what the table must have before files with the columns `files` are added.

    All columns are plain (`columns_of_arrow`); `held` are the columns of the table, none if it is new.

    Raises:
        SchemaChangedError: the policy forbids the change, or the types of a column have no common one.
        UsageError: the table has another layout.
    """
    rows = LOG_LAYOUTS[layout]
    if held.columns:
        check_layout(f"the table {table}", held, layout)
    own = [rows.source_columns(each) for each in files]
    images = rows.source_columns(held)
    wanted, unlike = joined_schema(table, source, [each for each in own if each.columns], images, policies)
    # The policy is about tables that exist.
    after, change = schema_change(table, images, plain_schema(wanted), policies if held.columns else EVOLVE)
    columns = {column.name: column for column in held}
    for column in (column for file in files for column in file if rows.is_own(column.name)):
        known = columns.get(column.name)
        columns[column.name] = column if known is None else _with_new_fields(known, column)
    columns |= rows.holding(held, wanted, after)
    # The table's own order, then the order of the layout.
    order = dict.fromkeys((*held.names, *rows.order(after), *columns))
    left_out = tuple(unlike.get(each, Adaptation()).left_out | change.ignored for each in own)
    return LogShape(TableSchema(tuple(columns[name] for name in order if name in columns)), left_out, change)


def fits(file: TableSchema, table: TableSchema) -> bool:
    """Return whether a file with the columns `file` can be added to a table with the columns `table` as it is.

    Types must be equal, and the fields of a struct the first ones of the table's struct: so are files that are older
    than a column.
    """
    types = {column.name: column.type for column in table}
    return all(_holds(types.get(column.name), column.type) for column in file)


def fitted(rows: pa.Table, table: TableSchema, left_out: frozenset[str], source: Source) -> pa.Table:
    """Return rows with the columns of a table: in its order, with its types, null where the rows have none.

    `left_out` are columns of the source whose values are not taken.

    Raises:
        UnwritableError: a value that its column cannot hold; the message names the column.
    """
    is_feed = has_feed(rows.column_names)
    # In change rows no column has the name of a column of the source.
    held = set(rows.column_names) - (left_out if is_feed else frozenset())
    columns = TableSchema(tuple(column for column in table if column.name in held))
    arrays = []
    for column in columns:
        array = rows.column(column.name).combine_chunks()
        if column.type.kind is Kind.STRUCT:
            absent = left_out if column.name in IMAGES and not is_feed else frozenset()
            arrays.append(_struct(array, column.type.fields, absent, source))
        else:
            arrays.append(_cast(column.name, array, column.type, source))
    return pa.Table.from_arrays(arrays, schema=arrow_schema(columns))


def _struct(array: pa.Array, fields: Sequence[Field], left_out: frozenset[str], source: Source) -> pa.Array:
    held = {field.name for field in array.type} - left_out
    children = [
        _cast(each.name, array.field(each.name), each.type, source)
        if each.name in held
        else pa.nulls(len(array), arrow_type(each.type, "us"))
        for each in fields
    ]
    named = [pa.field(each.name, child.type) for each, child in zip(fields, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=named, mask=array.is_null())


def _cast(name: str, array: pa.Array, type_: ColumnType, source: Source) -> pa.Array:
    wanted = arrow_type(type_, "us")
    try:
        return array if array.type == wanted else array.cast(wanted)
    except pa.ArrowException:  # its text shows values
        raise UnwritableError(
            f"column {name} of {source.qualified_table} has a value that Arrow's {wanted} cannot hold"
        ) from None


def _with_new_fields(held: Column, new: Column) -> Column:
    """Return a column of the table with the fields that only `new` has: `metadata` may gain some."""
    names = {field.name for field in held.type.fields}
    added = tuple(field for field in new.type.fields if field.name not in names)
    return msgspec.structs.replace(
        held, type=msgspec.structs.replace(held.type, fields=(*held.type.fields, *added))
    )


def _holds(held: ColumnType | None, new: ColumnType) -> bool:
    if held is None or held.kind is not Kind.STRUCT or new.kind is not Kind.STRUCT:
        return held == new
    return held.fields[: len(new.fields)] == new.fields
