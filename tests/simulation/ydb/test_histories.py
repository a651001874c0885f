"""Seeded histories of transactions, lagging shards, scans, splits and merges, read in parts that lag and crash."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.ydb.reading import Reading

HISTORIES = 100


def test_histories_lose_nothing_double_nothing_keep_order_and_report_correct_watermarks(
    campaign: Any,
) -> None:
    crashes = splits = merges = records = 0
    histories = campaign.size(HISTORIES, 1000)
    for seed in range(histories):
        run = Reading(seed)
        try:
            run.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        crashes, splits, merges = crashes + run.crashes, splits + run.splits, merges + run.merges
        records += len(run.committed)
    assert min(crashes, splits, merges) > histories // 2, "the histories are too quiet to show anything"
    campaign.record(
        "ydb-histories", histories=histories, crashes=crashes, splits=splits, merges=merges, records=records
    )


@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_every_single_step_changes_nothing(seed: int) -> None:
    undisturbed = Reading(seed, events=20, crash_at=-1)
    undisturbed.run()
    for step in range(undisturbed.steps):
        Reading(seed, events=20, crash_at=step).run()
