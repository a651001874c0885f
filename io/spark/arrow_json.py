"""Rows whose images are JSON text from change rows in Arrow, without events in between. Pure but for pyarrow.

`json_rows` makes the same rows of events, one value at a time. Here a column becomes text at once, and the texts of a
row are joined. Needs the extra `arrow`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.event.change_rows import IMAGES
from penstock.event.plain_json import encode_json
from penstock.io.spark.json_rows import json_schema

_TEXT = pa.string()
_ESCAPED = r'["\\\x00-\x1f]'
"""The characters that JSON writes in another way."""


def json_of_rows(rows: pa.Table) -> pa.Table | None:
    """Return change rows (`penstock.event.change_rows`) with images as JSON; None: they must be made of events.

    An old row of an update must be whole: change rows do not tell NULL from a value that was not sent there. Old rows
    of deletions may lack columns, which `metadata.not_sent` names. Lists, structs, 32 bit floats, and numbers that JSON
    does not have are left to events.
    """
    schema = json_schema()
    absent = _absent_columns(rows.column("metadata").combine_chunks())
    if absent is None:
        return None
    names, is_absent = absent
    columns: dict[str, Any] = {name: rows.column(name) for name in ("op", "timestamp", "metadata")}
    for name in IMAGES:
        if name not in rows.schema.names:  # a table without a primary key
            columns[name] = pa.nulls(rows.num_rows, _TEXT)
            continue
        image = rows.column(name).combine_chunks()
        texts = _texts(image)
        if texts is None:
            return None
        json = _joined(texts)
        if names and name == "before":
            json = pc.if_else(is_absent, _joined({n: t for n, t in texts.items() if n not in names}), json)
        columns[name] = pc.if_else(pc.is_valid(image), json, pa.scalar(None, _TEXT))
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _absent_columns(metadata: pa.StructArray) -> tuple[Collection[str], pa.Array] | None:
    """Return the columns that rows lack, and which rows; None: not all of these rows lack the same columns."""
    lists = pc.struct_field(metadata, "not_sent")
    is_absent = pc.greater(pc.list_value_length(lists), 0)
    found = {tuple(each) for each in lists.filter(is_absent).to_pylist()}
    return None if len(found) > 1 else (next(iter(found), ()), is_absent)


def _texts(image: pa.StructArray) -> dict[str, pa.Array] | None:
    """Return the JSON texts of the values of each column; NULL stays NULL."""
    found = {}
    # Not `flatten`: where the row is absent, the values do not count.
    for field, values in zip(image.type, image.flatten(), strict=True):
        texts = _column(values)
        if texts is None:
            return None
        found[field.name] = texts
    return found


def _column(values: pa.Array) -> pa.Array | None:
    type_ = values.type
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return values.cast(_TEXT)
    if pa.types.is_float64(type_):
        return _floats(values)
    if pa.types.is_string(type_):
        has_escapes = pc.any(pc.match_substring_regex(values, _ESCAPED)).as_py()
        return _one_by_one(values) if has_escapes else _quoted(values)
    if pa.types.is_binary(type_):
        return _one_by_one(values)
    if pa.types.is_decimal(type_) or pa.types.is_date32(type_):
        return _quoted(values.cast(_TEXT))
    # A column with a time zone is in UTC, which JSON shows as Z.
    if pa.types.is_timestamp(type_):
        local = _quoted(_moments(values.cast(pa.timestamp("us"))))
        return local if type_.tz is None else pc.binary_replace_slice(local, -1, -1, "Z")
    return None


def _floats(values: pa.Array) -> pa.Array | None:
    if pc.any(pc.invert(pc.is_finite(values))).as_py():
        return None
    # Arrow writes 1.0 as 1. No number has a comma.
    texts = encode_json(values.to_pylist())[1:-1].decode().split(",") if len(values) else []
    return pa.array([None if each == "null" else each for each in texts], _TEXT)


def _one_by_one(values: pa.Array) -> pa.Array:
    return pa.array(
        [None if each is None else encode_json(each).decode() for each in values.to_pylist()], _TEXT
    )


def _moments(values: pa.Array) -> pa.Array:
    """Return times as ISO 8601 with microseconds; Arrow writes a space in place of T."""
    return pc.binary_replace_slice(values.cast(_TEXT), 10, 11, "T")


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _joined(texts: dict[str, pa.Array]) -> pa.Array:
    """Return the JSON objects of rows."""
    parts: list[Any] = []
    for name, values in texts.items():
        parts += [("," if parts else "{") + encode_json(name).decode() + ":", values]
    return pc.binary_join_element_wise(*parts, "}", "", null_handling="replace", null_replacement="null")
