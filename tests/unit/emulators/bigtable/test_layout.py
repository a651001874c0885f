"""Partitions of the key space, and what a stream is told when they change."""

from __future__ import annotations

import pytest

from penstock_emulators.bigtable.layout import KeyRange, Layout, LayoutError

WHOLE = KeyRange(b"", b"")


def layout(*keys: bytes) -> Layout:
    return Layout.whole().with_boundaries(keys)


def test_an_empty_end_is_after_every_key() -> None:
    assert WHOLE.holds(b"\xff" * 9)
    assert KeyRange(b"a", b"").overlap(KeyRange(b"", b"b")) == KeyRange(b"a", b"b")
    assert KeyRange(b"a", b"b").overlap(KeyRange(b"b", b"")) is None
    assert not KeyRange(b"a", b"b").covers(KeyRange(b"a", b""))
    assert not KeyRange(b"a", b"b").holds(b"b")


def test_a_range_without_keys_is_refused() -> None:
    with pytest.raises(LayoutError, match="start below its end"):
        KeyRange(b"b", b"b")


def test_the_documented_example_of_a_crossing_is_closed_as_documented() -> None:
    # [B,D) ends; new partitions [A,C) and [C,E); tokens for [B,C) and [C,D).
    ways = layout(b"A", b"C", b"E").close(KeyRange(b"B", b"D"))
    assert ways == (
        (KeyRange(b"B", b"C"), KeyRange(b"A", b"C")),
        (KeyRange(b"C", b"D"), KeyRange(b"C", b"E")),
    )


def test_a_split_that_is_merged_back_is_another_incarnation() -> None:
    again = layout(b"g").split(b"m").merge(b"m")
    assert again.partitions == layout(b"g").partitions
    assert again.incarnation(KeyRange(b"g", b"")) != layout(b"g").incarnation(KeyRange(b"g", b""))
    assert again.incarnation(KeyRange(b"", b"g")) == layout(b"g").incarnation(KeyRange(b"", b"g"))


def test_a_move_changes_one_incarnation_and_no_range() -> None:
    moved = layout(b"g").move(b"z")
    assert moved.partitions == layout(b"g").partitions
    assert moved.incarnation(KeyRange(b"g", b"")) == moved.changes
    assert moved.incarnation(KeyRange(b"", b"g")) == layout(b"g").incarnation(KeyRange(b"", b"g"))


def test_a_crossing_moves_one_boundary_in_one_step() -> None:
    crossed = layout(b"g", b"p").cross(b"g", b"k")
    assert crossed.boundaries == (b"k", b"p")
    assert crossed.changes == layout(b"g", b"p").changes + 1


@pytest.mark.parametrize(
    "change",
    [
        lambda: layout(b"g").split(b"g"),
        lambda: layout(b"g").split(b""),
        lambda: layout(b"g").merge(b"h"),
        lambda: layout(b"g", b"p").cross(b"g", b"p"),
        lambda: layout(b"g", b"p").cross(b"p", b"g"),
        lambda: layout(b"g", b"p").cross(b"g", b"z"),
        lambda: layout(b"g", b"p").cross(b"g", b"g"),
    ],
)
def test_an_invalid_layout_change_is_refused(change) -> None:
    with pytest.raises(LayoutError):
        change()


def test_an_unknown_range_has_no_incarnation() -> None:
    assert layout(b"g").incarnation(WHOLE) is None
    assert layout(b"g").incarnation(KeyRange(b"a", b"g")) is None
