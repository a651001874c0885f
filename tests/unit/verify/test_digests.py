"""Rows have the same bytes if their keys and values are equal, and only then."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.verify.digests import digests_of_columns, digests_of_values, no_rows, row_bytes

TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int16(): st.integers(0, 3),
    pa.int64(): st.integers(-2, 2),
    pa.date32(): st.sampled_from([date(1970, 1, 1), date(2026, 1, 1)]),
    pa.decimal128(5, 2): st.sampled_from([Decimal("0.00"), Decimal("1.50")]),
    pa.string(): st.text("\0\x01a", max_size=3),
    pa.binary(): st.binary(max_size=2),
    pa.list_(pa.int64()): st.lists(st.none() | st.integers(0, 2), max_size=2),
    pa.list_(pa.string()): st.lists(st.none() | st.text("a", max_size=2), max_size=2),
    pa.struct([("a", pa.int64()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 1), "b": st.none() | st.text("a", max_size=1)}
    ),
    pa.timestamp("us", "UTC"): st.integers(0, 2),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[pa.Array], list[tuple[Any, ...]]]:
    types = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=4))
    rows = draw(st.lists(st.tuples(*(st.none() | TYPES[each] for each in types)), min_size=1, max_size=12))
    columns = [pa.array(values, type_) for type_, values in zip(types, zip(*rows, strict=True), strict=True)]
    return columns, [tuple(map(repr, row)) for row in rows]


@given(tables(), st.integers(0, 3))
def test_two_rows_have_the_same_bytes_if_they_are_equal_and_only_then(table: Any, skipped: int) -> None:
    columns, rows = table
    for start in range(min(skipped, len(rows)) + 1):
        found = row_bytes([column.slice(start) for column in columns])
        assert len(found) == len(rows) - start
        assert [a == b for a in found for b in found] == [a == b for a in rows[start:] for b in rows[start:]]
    assert row_bytes([column.slice(len(rows)) for column in columns]) == []


@pytest.mark.parametrize("type_", [pa.string(), pa.list_(pa.string())], ids=str)
def test_rows_that_are_divided_into_columns_in_another_way_differ(type_: pa.DataType) -> None:
    whole, empty = ("ab", "") if type_ == pa.string() else (["a", "b"], [])
    one, other = row_bytes([pa.array([whole, empty], type_), pa.array([empty, whole], type_)])
    assert one != other
    one, other = row_bytes([pa.array([["a", "b"], ["ab"]])])
    assert one != other


def test_more_columns_than_the_bits_of_a_number() -> None:
    columns = [pa.array([None, 1, None]) for _ in range(70)]
    other = [*columns[:-1], pa.array([1, None, None])]
    assert [a == b for a, b in zip(row_bytes(columns), row_bytes(other), strict=True)] == [False, False, True]


def test_the_digest_covers_the_key() -> None:
    keys, same = pa.array(["[1]", "[2]"]), pa.array(["a", "a"])
    one, other = digests_of_columns(keys, [same]).column("digest").to_pylist()
    assert one != other
    one, other = digests_of_values([["[1]", "a"], ["[2]", "a"]]).column("digest").to_pylist()
    assert one != other
    assert no_rows(["[1]"]).column("digest").to_pylist() == [bytes(16)]
