"""Random columns, values and events, for properties of the coder and of the formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from penstock.event import (
    ChangeEvent,
    Column,
    ColumnType,
    Field,
    Interval,
    Kind,
    Op,
    Source,
    TableSchema,
    Transaction,
    Version,
)

integers = st.integers(-(2**70), 2**70)
texts = st.text(st.characters(codec="utf-8"))
names = st.text("abcXYZ_:09é", min_size=1, max_size=6)


def _range(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


documents = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(st.none() | inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)

VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.BOOL: st.booleans(),
    **{Kind(f"INT{bits}"): _range(bits, True) for bits in (8, 16, 32, 64)},
    **{Kind(f"UINT{bits}"): _range(bits, False) for bits in (8, 16, 32, 64)},
    Kind.FLOAT32: st.floats(width=32, allow_nan=False),
    Kind.FLOAT64: st.floats(allow_nan=False),
    Kind.DECIMAL: st.decimals(allow_nan=False, allow_infinity=False, places=None).filter(
        lambda value: abs(int(value.as_tuple().exponent)) < 40
    ),
    Kind.STRING: texts,
    Kind.BYTES: st.binary(),
    Kind.PROTO: st.binary(),
    Kind.DATE: st.integers(-719162, 2932896),
    Kind.TIME: st.integers(0, 86_400 * 10**9 - 1),
    Kind.TIMESTAMP: st.integers(-62135596800 * 10**9, 253402300800 * 10**9 - 1),
    Kind.LOCAL_TIMESTAMP: st.integers(-62135596800 * 10**9, 253402300800 * 10**9 - 1),
    Kind.INTERVAL: st.builds(
        Interval, st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(-(2**50), 2**50)
    ),
    Kind.JSON: documents.map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))),
    Kind.UUID: st.uuids().map(str),
    Kind.ENUM: texts,
    Kind.OTHER: texts,
}
"""The whole range of each kind that every source has."""

scalar_types = st.sampled_from(list(VALUES)).map(ColumnType)
types = (
    scalar_types
    | scalar_types.map(lambda element: ColumnType(Kind.ARRAY, element=element))
    | st.lists(st.tuples(names, scalar_types), max_size=3, unique_by=lambda field: field[0]).map(
        lambda fields: ColumnType(Kind.STRUCT, fields=tuple(Field(*field) for field in fields))
    )
)


def values(
    type_: ColumnType, known: Mapping[Kind, st.SearchStrategy[Any]] = VALUES
) -> st.SearchStrategy[Any]:
    """Return values of a type, NULL too."""
    return st.none() | present(type_, known)


def present(type_: ColumnType, known: Mapping[Kind, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Return values of a type that are not NULL."""
    if type_.kind is Kind.ARRAY and type_.element:
        return st.lists(values(type_.element, known), max_size=4)
    if type_.kind is Kind.STRUCT:
        return st.fixed_dictionaries({field.name: values(field.type, known) for field in type_.fields})
    return known[type_.kind]


KEY_TYPES = st.sampled_from([ColumnType(kind) for kind in (Kind.INT64, Kind.STRING, Kind.BYTES, Kind.UUID)])


@st.composite
def row_events(
    draw: st.DrawFn,
    *,
    known: Mapping[Kind, st.SearchStrategy[Any]] = VALUES,
    accept: Callable[[ColumnType], bool] = lambda type_: True,
    whole_rows: bool = False,
    timestamps: st.SearchStrategy[int] = st.integers(0, 2**62),
) -> ChangeEvent:
    """Return a CREATE, UPDATE, DELETE or READ of a row with a key, as the sources create them.

    `known` are the values of each kind, `accept` chooses types. With `whole_rows` every image has every column.
    """
    keys = draw(st.dictionaries(names, KEY_TYPES, min_size=1, max_size=2))
    others = draw(st.dictionaries(names, types.filter(accept), max_size=5))
    others = {name: type_ for name, type_ in others.items() if name not in keys}
    schema = TableSchema(
        tuple(Column(name, type_, False, place + 1) for place, (name, type_) in enumerate(keys.items()))
        + tuple(Column(name, type_) for name, type_ in others.items())
    )
    key = draw(st.fixed_dictionaries({name: present(type_, known) for name, type_ in keys.items()}))
    columns = {name: values(type_, known) for name, type_ in others.items()}
    row = st.fixed_dictionaries(columns) if whole_rows else st.fixed_dictionaries({}, optional=columns)
    op = draw(st.sampled_from([Op.CREATE, Op.UPDATE, Op.DELETE, Op.READ]))
    has_before = op is Op.DELETE or (op is Op.UPDATE and (whole_rows or draw(st.booleans())))
    before = {**key, **draw(row)} if has_before else None
    after = None if op is Op.DELETE else {**key, **draw(row)}
    timestamp, transaction = draw(timestamps), draw(st.sampled_from(["tx1", "tx2"]))
    sequence = f"{draw(st.integers(0, 99)):08d}"
    return ChangeEvent(
        Source("spanner", "p/i", "db", "", draw(st.sampled_from(["Orders", "Größe"])), "All"),
        op,
        timestamp,
        key,
        before,
        after,
        Version(timestamp, transaction, sequence, draw(st.integers(0, 9))),
        schema,
        Transaction(transaction, 3, 1, True, "tag"),
    )
