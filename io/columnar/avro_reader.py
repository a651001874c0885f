"""Reads Avro files of change rows as Arrow tables. Needs the extras `arrow` and `avro`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.event.change_rows import IMAGES, change_row_schema
from penstock.event.column_types import ColumnType, Field, Kind
from penstock.event.model import Column, TableSchema
from penstock.io.columnar.avro import ORIGINAL_NAME, TYPES

_KINDS = {
    (type_["type"], type_["logicalType"]) if isinstance(type_, dict) else (type_, None): kind
    for kind, type_ in TYPES.items()
}


def change_rows_of_avro(content: bytes) -> pa.Table:
    """Return the rows of a file that `AvroRows` wrote, with the columns and types of `penstock.event.change_rows`.

    Raises:
        ValueError: it is another file.
    """
    import fastavro

    blocks = fastavro.block_reader(io.BytesIO(content))
    written = blocks.writer_schema
    parts = written.get("fields", ()) if isinstance(written, dict) else ()
    fields = {field["name"]: field["type"] for field in parts}
    if not {"op", "timestamp", "metadata"} <= fields.keys():
        raise ValueError("it has no columns of change rows")
    schema = change_row_schema(_table_schema({name: fields[name][1] for name in IMAGES if name in fields}))
    plain = _plain(written)
    rows: list[Any] = []
    for block in blocks:
        block.writer_schema = plain
        rows += block
    return pa.Table.from_pylist(rows, schema)


def _table_schema(images: dict[str, Any]) -> TableSchema:
    """Return the columns of a table whose images have these records."""
    keys = [_name(field) for field in images.get("key", {"fields": ()})["fields"]]
    return TableSchema(
        tuple(
            Column(
                name, _column_type(field["type"]), key_position=keys.index(name) + 1 if name in keys else None
            )
            for field in images.get("after", {"fields": ()})["fields"]
            for name in [_name(field)]
        )
    )


def _column_type(type_: Any) -> ColumnType:
    """Return the plain type of an Avro type; the way back from `penstock.io.columnar.avro`."""
    if isinstance(type_, list):  # all values may be null
        return _column_type(type_[1])
    if isinstance(type_, str):
        return ColumnType(_KINDS[type_, None])
    if type_["type"] == "array":
        return ColumnType(Kind.ARRAY, element=_column_type(type_["items"]))
    if type_["type"] == "record":
        fields = tuple(Field(_name(field), _column_type(field["type"])) for field in type_["fields"])
        return ColumnType(Kind.STRUCT, fields=fields)
    if type_["logicalType"] == "decimal":
        return ColumnType(Kind.DECIMAL, precision=type_["precision"], scale=type_["scale"])
    return ColumnType(_KINDS[type_["type"], type_["logicalType"]])


def _plain(type_: Any) -> Any:
    """Return a schema that reads times as the numbers that the file has, and fields by the names of their columns.

    `datetime`, in which fastavro reads times, ends with the year 9999.
    """
    if isinstance(type_, list):
        return [_plain(each) for each in type_]
    if isinstance(type_, str):
        return type_
    if type_["type"] == "array":
        return {**type_, "items": _plain(type_["items"])}
    if type_["type"] == "record":
        return {**type_, "fields": _plain_fields(type_["fields"])}
    return type_ if type_["logicalType"] == "decimal" else type_["type"]


def _plain_fields(fields: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**field, "name": _name(field), "type": _plain(field["type"])} for field in fields]


def _name(field: dict[str, Any]) -> str:
    return str(field.get(ORIGINAL_NAME, field["name"]))
