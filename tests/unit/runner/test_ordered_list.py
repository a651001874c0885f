"""Ordered-list state: sorted by its sort keys, read and cleared by range, forgotten with its window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runner.store import StateStore
from penstock.runner.store.cells import Cells, at_sort_key
from penstock.runner.store.keys import KEY_GROUPS

KEYS = st.integers(-(1 << 62), 1 << 62)


@pytest.mark.slow
@given(st.lists(st.tuples(KEYS, st.binary(max_size=3))), KEYS, KEYS)
def test_a_range_returns_its_values_in_the_order_of_sort_keys(
    puts: list[tuple[int, bytes]], start: int, end: int
) -> None:
    cells = Cells(StateStore.temporary(0, KEY_GROUPS - 1))
    for key, value in puts:
        cells.append(3, b"k", b"w", at_sort_key(b"list", key), value)
        cells.append(3, b"k", b"w", at_sort_key(b"list2", key), b"another list")
    found = [value for _, chunks in cells.between(3, b"k", b"w", b"list", start, end) for value in chunks]
    assert found == [value for key, value in sorted(puts, key=lambda put: put[0]) if start <= key < end]


def test_an_ordered_list_is_deleted_with_its_window() -> None:
    cells = Cells(StateStore.temporary(0, KEY_GROUPS - 1))
    cells.append(3, b"k", b"w", at_sort_key(b"list", 1), b"x")
    cells.delete_window(3, b"k", b"w")
    assert cells.between(3, b"k", b"w", b"list", 0, 10) == []
