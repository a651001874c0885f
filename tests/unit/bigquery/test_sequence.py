"""Sequence numbers of BigQuery sort as the versions of a row's changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.event import Version
from penstock.event.replica import NotReplicableError
from penstock.io.bigquery.sequence import sequence_number

ORDERS = st.integers(0, 3) | st.just(2**63)


def sections(version: Version) -> list[int]:
    parts = sequence_number(version).split("/")
    assert len(parts) == 4
    assert all(1 <= len(each) <= 16 for each in parts)
    return [int(each, 16) for each in parts]


def digits(width: int) -> st.SearchStrategy[str]:
    return st.integers(0, 20).map(lambda number: f"{number:0{width}d}")


@given(ORDERS, ORDERS, st.data())
def test_numbers_sort_as_versions_with_transaction_ids_that_are_numbers(
    one: int, other: int, data: st.DataObject
) -> None:
    rest = st.tuples(st.just("") | digits(20), digits(8), st.integers(0, 3))
    first, second = (Version(order, *data.draw(rest)) for order in (one, other))
    assert (sections(first) < sections(second)) is (first < second)


@given(ORDERS, ORDERS, st.data())
def test_numbers_sort_as_versions_where_one_transaction_has_a_commit_timestamp(
    one: int, other: int, data: st.DataObject
) -> None:
    rest = st.tuples(digits(8), st.integers(0, 3))
    first, second = (Version(order, f"tx{order}=", *data.draw(rest)) for order in (one, other))
    assert (sections(first) < sections(second)) is (first < second)


def test_a_row_of_a_snapshot_is_older_than_a_change_with_its_timestamp() -> None:
    assert sections(Version(5, "", "orders")) < sections(Version(5, "NjQx", "00000000"))


def test_a_part_with_more_than_64_bits_is_refused() -> None:
    with pytest.raises(NotReplicableError, match="64 bits"):
        sequence_number(Version(2**64))
