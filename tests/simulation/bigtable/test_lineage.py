"""Seeded histories of splits, merges and crossing layouts, read in parts that lag, are split and crash."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.bigtable.reading import Reading

HISTORIES = 300


def test_histories_keep_order_lose_nothing_and_report_correct_watermarks(campaign: Any) -> None:
    crashes = reopened = 0
    histories = campaign.size(HISTORIES, 5000)
    for seed in range(histories):
        run = Reading(seed)
        try:
            run.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        crashes += run.crashes
        reopened += run.reopened
    assert crashes > histories, "the histories do not crash enough to show anything"
    assert reopened > histories, "the histories do not stall enough to show anything"
    campaign.record("bigtable-lineage", histories=histories, crashes=crashes, reopened=reopened)


@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_every_single_step_changes_nothing(seed: int) -> None:
    undisturbed = Reading(seed, events=20)
    undisturbed.run()
    for step in range(undisturbed.steps):
        Reading(seed, events=20, crash_at=step).run()
