"""The columns of a table of change rows before and after files are added to it. Needs pyarrow.

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
from penstock.event.model import Column, Source, TableSchema
from penstock.event.plain_types import plain_schema
from penstock.event.schema_changes import Adaptation, SchemaChange
from penstock.event.schema_policies import EVOLVE, ChangePolicies
from penstock.io.columnar.arrow_rows import arrow_schema
from penstock.io.columnar.one_schema import joined_schema
from penstock.io.columnar.replica import image_columns, schema_change


@dataclass(frozen=True, slots=True)
class LogShape:
    """The columns of a table of change rows after a commit.

    `columns` are its plain columns, in its order. `left_out` has for each file the columns of the source that are not
    written. `change` is the change of the columns of the source.
    """

    columns: TableSchema
    left_out: tuple[frozenset[str], ...]
    change: SchemaChange


def source_columns(log: TableSchema) -> TableSchema:
    """Return the columns of the source, with their place in the primary key, from the columns of change rows."""
    keys = {field.name: place for place, field in enumerate(_fields(log, "key"), 1)}
    return TableSchema(
        tuple(
            Column(each.name, each.type, key_position=keys.get(each.name)) for each in _fields(log, "after")
        )
    )


def shape_after(
    table: str,
    held: TableSchema,
    files: Sequence[TableSchema],
    source: Source,
    policies: ChangePolicies,
) -> LogShape:
    """Return what the table must have before files with the columns `files` are added.

    All columns are plain (`columns_of_arrow`); `held` are the columns of the table, none if it is new.

    Raises:
        SchemaChangedError: the policy forbids the change, or the types of a column have no common one.
    """
    own = [source_columns(each) for each in files]
    images = image_columns(held, "log")
    wanted, unlike = joined_schema(table, source, [each for each in own if each.columns], images, policies)
    # The policy is about tables that exist.
    after, change = schema_change(table, images, plain_schema(wanted), policies if held.columns else EVOLVE)
    columns = {column.name: column for column in held}
    for column in (column for file in files for column in file if column.name not in IMAGES):
        known = columns.get(column.name)
        columns[column.name] = column if known is None else _with_new_fields(known, column)
    columns |= _images(held, wanted, after)
    left_out = tuple(unlike.get(each, Adaptation()).left_out | change.ignored for each in own)
    return LogShape(TableSchema(_in_order(columns, held)), left_out, change)


def _images(held: TableSchema, wanted: TableSchema, after: TableSchema) -> dict[str, Column]:
    """Return the columns with the images, if they have fields: `after` are the columns of the source in the table."""
    types = {column.name: column.type for column in after}
    # The table's own order comes first: readers find a field of a struct only in a prefix of the table's struct.
    keys = dict.fromkeys(
        [field.name for field in _fields(held, "key")] + [c.name for c in wanted.key_columns]
    )
    key = tuple(Field(name, types[name]) for name in keys if name in types)
    image = tuple(Field(column.name, column.type) for column in after)
    return {
        name: Column(name, ColumnType(Kind.STRUCT, fields=fields))
        for name, fields in zip(IMAGES, (key, image, image), strict=True)
        if fields
    }


def fits(file: TableSchema, table: TableSchema) -> bool:
    """Return whether a file with the columns `file` can be added to a table with the columns `table` as it is.

    Types must be equal, and the fields of a struct the first ones of the table's struct: so are files that are older
    than a column.
    """
    types = {column.name: column.type for column in table}
    return all(_holds(types.get(column.name), column.type) for column in file)


def fitted(rows: pa.Table, table: TableSchema, left_out: frozenset[str], source: Source) -> pa.Table:
    """Return change rows with the columns of a table: in its order, with its types, null where the rows have none.

    `left_out` are columns of the source whose values are not taken.

    Raises:
        UnwritableError: a value that its column cannot hold; the message names the column.
    """
    columns = TableSchema(tuple(column for column in table if column.name in rows.column_names))
    arrays = []
    for column in columns:
        array = rows.column(column.name).combine_chunks()
        if column.type.kind is Kind.STRUCT:
            absent = left_out if column.name in IMAGES else frozenset()
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


def _fields(log: TableSchema, name: str) -> tuple[Field, ...]:
    return next((column.type.fields for column in log if column.name == name), ())


def _with_new_fields(held: Column, new: Column) -> Column:
    """Return a column of the table with the fields that only `new` has: `metadata` may gain some."""
    names = {field.name for field in held.type.fields}
    added = tuple(field for field in new.type.fields if field.name not in names)
    return msgspec.structs.replace(
        held, type=msgspec.structs.replace(held.type, fields=(*held.type.fields, *added))
    )


def _in_order(columns: dict[str, Column], held: TableSchema) -> tuple[Column, ...]:
    """Return the columns of a table in its order, new ones after them in the order of `penstock.event.change_rows`."""
    order = dict.fromkeys((*held.names, "op", "timestamp", *IMAGES, *columns))
    return tuple(columns[name] for name in order if name in columns)


def _holds(held: ColumnType | None, new: ColumnType) -> bool:
    if held is None or held.kind is not Kind.STRUCT or new.kind is not Kind.STRUCT:
        return held == new
    return held.fields[: len(new.fields)] == new.fields
