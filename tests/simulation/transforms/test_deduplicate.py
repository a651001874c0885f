"""`Deduplicate` over streams with repeats."""

from __future__ import annotations

import pytest

from penstock.errors import UsageError
from penstock.transforms import Deduplicate
from penstock.transforms.deduplicate import identity
from tests.simulation.transforms.scripts import emitted, emitted_in_batch, event, live_cells


def test_a_repeat_before_the_horizon_is_dropped_and_the_first_is_emitted_at_once() -> None:
    first = event(1, 1_000_000)
    steps = [[first, event(2, 1_000_000)], 500, [first], 5_000, [first], 5_500]
    found = emitted(Deduplicate(horizon_seconds=10), steps)
    assert sorted((each.key["Id"], at) for each, at in found if each.key) == [(1, 1_000_000), (2, 1_000_000)]


def test_two_changes_of_one_key_are_both_kept() -> None:
    found = emitted(Deduplicate(horizon_seconds=10), [[event(1, 1_000_000), event(1, 2_000_000)]])
    assert len(found) == 2


def test_a_repeat_in_a_batch_is_dropped_on_beams_own_runner() -> None:
    events = [event(n % 5, 1_000_000) for n in range(20)]
    assert len(emitted_in_batch(Deduplicate(horizon_seconds=10), events)) == 5


def test_the_marks_are_removed_after_the_horizon() -> None:
    cells = live_cells(
        Deduplicate(horizon_seconds=2), [[event(n, 1_000_000) for n in range(9)], 2_000, 3_002, 4_000]
    )
    assert max(cells) > 0
    assert cells[-1] == 0


def test_changes_of_two_rows_of_bigtable_in_one_version_differ() -> None:
    assert identity(event(1, 5, "")) != identity(event(2, 5, ""))


def test_the_horizon_is_positive() -> None:
    with pytest.raises(UsageError, match="more than 0 seconds"):
        Deduplicate(horizon_seconds=0)
