"""A selection emits exactly the chosen entries, and no record without entries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.io.bigtable.filter import Selection
from penstock.io.bigtable.record import (
    AddToCell,
    ChangeStreamMutation,
    DeleteCells,
    DeleteFamily,
    Entry,
    MutationType,
    SetCell,
    UnknownMutation,
)

A, B, C = SetCell("f", b"a", 0, b""), DeleteCells("f", b"b", 0, None), AddToCell("g", b"c", 0, 1)
ALL: tuple[Entry, ...] = (A, B, C, DeleteFamily("f"), DeleteFamily("g"), UnknownMutation(b"x"))
RECORD = ChangeStreamMutation(b"r", MutationType.USER, "east", 1, 0, "t", 1, ALL)


@pytest.mark.parametrize(
    ("selection", "left_out"),
    [
        (Selection(), ()),
        (Selection(families=frozenset("f")), (C, DeleteFamily("g"))),
        (Selection(columns=frozenset([("f", b"a")])), (B, C, DeleteFamily("g"))),
        (Selection(families=frozenset("g"), columns=frozenset([("f", b"a")])), (B,)),
        (Selection(ignored_families=frozenset("f")), (A, B, DeleteFamily("f"))),
        (Selection(ignored_columns=frozenset([("f", b"a")])), (A,)),
        (
            Selection(families=frozenset("f"), ignored_columns=frozenset([("f", b"a")])),
            (A, C, DeleteFamily("g")),
        ),
    ],
)
def test_a_selection_excludes_entries(selection: Selection, left_out: tuple[Entry, ...]) -> None:
    selected = selection.apply(RECORD)
    assert selected is not None
    assert selected.entries == tuple(entry for entry in ALL if entry not in left_out)


def test_a_record_without_selected_entries_is_not_emitted() -> None:
    assert Selection(families=frozenset("x")).apply(replace(RECORD, entries=(A,))) is None


def test_changes_of_other_clusters_and_collected_garbage_can_be_left_out() -> None:
    garbage = replace(RECORD, type=MutationType.GARBAGE_COLLECTION, source_cluster_id="")
    assert Selection(source_clusters=frozenset(["west"])).apply(RECORD) is None
    assert Selection(source_clusters=frozenset(["west"])).apply(garbage) is garbage
    assert Selection(garbage_collection=False).apply(garbage) is None
    assert Selection(garbage_collection=False).apply(RECORD) is RECORD


def test_only_an_empty_selection_includes_everything() -> None:
    assert Selection().everything
    assert not Selection(garbage_collection=False).everything
