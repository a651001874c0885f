"""The reader counts splits, merges and moves from the closes of streams."""

from __future__ import annotations

import pytest

from penstock.io.bigtable.frontier import Closed
from penstock.io.bigtable.keys import EVERYTHING, KeyRange
from penstock.io.bigtable.metrics import lineage_events
from penstock.io.bigtable.record import Continuation

LOW, HIGH = KeyRange(b"", b"m"), KeyRange(b"m", b"")


@pytest.mark.parametrize(
    ("closed", "ways", "splits", "merges", "moves"),
    [
        (EVERYTHING, [(LOW, LOW), (HIGH, HIGH)], 1, 0, 0),
        (LOW, [(LOW, EVERYTHING)], 0, 1, 0),
        (HIGH, [(HIGH, EVERYTHING)], 0, 0, 0),
        (LOW, [(LOW, LOW)], 0, 0, 1),
    ],
)
def test_a_close_is_counted_as_splits_merges_and_moves(
    closed: KeyRange, ways: list[tuple[KeyRange, KeyRange]], splits: int, merges: int, moves: int
) -> None:
    events = lineage_events(Closed(closed, tuple(Continuation(part, "t", target) for part, target in ways)))
    assert (events["splits"], events["merges"], events["moves"]) == (splits, merges, moves)
