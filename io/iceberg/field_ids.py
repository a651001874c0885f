"""The ids of the fields of a data file, by which Iceberg's readers find a column. Pure, but needs pyiceberg.

A name in a file says nothing to a reader: a column may have been renamed, or removed and added again. So a file of a
task has the ids of its table. The ids of columns that the table does not have yet are those that Iceberg would give
them now, and the driver compares them before it commits the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

_ID = b"PARQUET:field_id"
"""The key under which pyarrow reads and writes the id of a field."""


def with_field_ids(rows: pa.Schema, table: Schema) -> pa.Schema | None:
    """Return the schema of rows with the ids that their fields have in a table.

    None: the table has no such field, or one with another type.
    """
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    try:
        shape = pa.schema(_fields(rows, table.as_struct()))
    except _UnlikeError:
        return None
    # Types of foreign tables, such as UUIDs, are texts in the event model.
    own = pyarrow_to_schema(shape)
    same = (
        table.find_type(id_) == own.find_type(id_) for id_ in _ids(shape) if own.find_type(id_).is_primitive
    )
    return shape if all(same) else None


def field_ids(shape: pa.Schema) -> tuple[int, ...]:
    """Return the ids of all fields of a schema: each field before those in it."""
    return tuple(_ids(shape))


class _UnlikeError(Exception):
    """A table does not have a field."""


def _fields(fields: Any, struct: Any) -> list[pa.Field]:
    found = [(field, struct.field_by_name(field.name)) for field in fields]
    if any(held is None for _, held in found):
        raise _UnlikeError
    return [_field(field, held.field_id, held.field_type) for field, held in found]


def _field(field: pa.Field, id_: int, type_: Any) -> pa.Field:
    shape = field.type
    if pa.types.is_struct(shape):
        if not type_.is_struct:
            raise _UnlikeError
        shape = pa.struct(_fields(shape, type_))
    elif pa.types.is_list(shape):
        if not hasattr(type_, "element_id"):
            raise _UnlikeError
        shape = pa.list_(_field(shape.value_field, type_.element_id, type_.element_type))
    return pa.field(field.name, shape, field.nullable, {_ID: str(id_)})


def _ids(fields: Any) -> Iterator[int]:
    for field in fields:
        yield int(field.metadata[_ID])
        if pa.types.is_struct(field.type):
            yield from _ids(field.type)
        elif pa.types.is_list(field.type):
            yield from _ids([field.type.value_field])
