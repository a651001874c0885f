"""Seeded histories of splits, merges and moves, read in parts that lag, are split and crash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.io.spanner.frontier import Frontier, Waiting

HISTORIES = 1000


@pytest.mark.slow
def test_a_thousand_histories_keep_order_lose_nothing_and_report_correct_watermarks(reading: Any) -> None:
    crashes = 0
    for seed in range(HISTORIES):
        run = reading(seed)
        try:
            run.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        crashes += run.crashes
    assert crashes > HISTORIES, "the histories do not crash enough to show anything"


@pytest.mark.long_cases("1", seconds=5)
@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_every_single_step_changes_nothing(reading: Any, seed: int) -> None:
    undisturbed = reading(seed)
    undisturbed.run()
    for step in range(undisturbed.steps):
        reading(seed, crash_at=step).run()


@pytest.mark.long(seconds=5)
def test_histories_with_moves_keep_order_lose_nothing_and_report_correct_watermarks(
    reading: Any, campaign: Any
) -> None:
    crashes = 0
    for seed in range(campaign.size(60, HISTORIES)):
        run = reading(seed, mutable=True)
        try:
            run.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        crashes += run.crashes
    assert crashes > 60, "the histories do not crash enough to show anything"


@pytest.mark.long(seconds=5)
def test_a_crash_at_every_single_step_of_a_history_with_moves_changes_nothing(
    reading: Any, campaign: Any
) -> None:
    undisturbed = reading(3, mutable=True)
    undisturbed.run()
    for step in range(0, undisturbed.steps, campaign.size(5, 1)):
        reading(3, crash_at=step, mutable=True).run()


@pytest.mark.long(seconds=15)
def test_streams_whose_keys_move_between_lineages_are_read_in_order_in_step(
    reading: Any, broken: Any
) -> None:
    assert share_of_broken_histories(reading, broken, scattered=True, globally_ordered=True) == 0
    assert share_of_broken_histories(reading, broken, scattered=True) > 50


def share_of_broken_histories(reading: Any, broken: Any, histories: int = 200, **options: Any) -> int:
    failures = 0
    for seed in range(histories):
        try:
            reading(seed, **options).run()
        except broken:
            failures += 1
        except Exception:  # a lineage error is a broken history too
            failures += 1
    return failures


@pytest.mark.long(seconds=5)
def test_starting_a_child_with_its_first_parent_breaks_nearly_every_history(
    reading: Any, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = Frontier._closed

    def first_parent_is_enough(self: Frontier, token: str) -> Frontier:
        waiting = {
            child: Waiting(entry.start, frozenset() if token in entry.unfinished else entry.unfinished)
            for child, entry in self.waiting.items()
        }
        return closed(replace(self, waiting=waiting), token)

    monkeypatch.setattr(Frontier, "_closed", first_parent_is_enough)
    assert share_of_broken_histories(reading, broken) > 150


@pytest.mark.long(seconds=5)
def test_treating_an_unknown_parent_as_finished_breaks_nearly_every_history(
    reading: Any, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = Frontier._announced

    def unknown_is_finished(self: Frontier, token: str, record: Any) -> Frontier:
        after = announced(self, token, record)
        known = {*after.open, *after.waiting}
        waiting = {
            child: Waiting(entry.start, entry.unfinished & known) for child, entry in after.waiting.items()
        }
        return replace(after, waiting=waiting)

    monkeypatch.setattr(Frontier, "_announced", unknown_is_finished)
    assert share_of_broken_histories(reading, broken) > 150
