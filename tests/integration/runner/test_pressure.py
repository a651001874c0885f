"""Under pressure on real Spark: memory is flat, epochs adapt to a slow step, and the watermark is honest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle.kill import python
from tests.support.oracle.memory import measure

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.campaign]


@pytest.mark.parametrize("case", ["slow_step", "backlog", "burst"])
def test_memory_is_flat_and_the_watermark_honest_under(case: str, tmp_path: Path, campaign: Any) -> None:
    seconds = campaign.size(30, 90)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = python("tests.integration.runner.programs.backpressure", case, str(tmp_path), str(seconds))
    measured = measure(command, 600.0, {**os.environ, "SPARK_LOCAL_DIRS": str(scratch)}, sample_seconds=5.0)
    campaign.record(
        f"backpressure-{case.replace('_', '-')}",
        run_seconds=seconds,
        resident_mb_every_5_seconds=measured.samples,
        **measured.facts(),
    )
    figures = measured.figures
    assert figures["epochs_with_watermark_ahead"] == 0
    # Half of the epoch is work on records that were read before the limit was known.
    assert figures["longest_later_epoch_seconds"] < 15
    samples = [sample for sample in measured.samples if sample["worker"]]
    middle, last = (samples[len(samples) // 3 : 2 * len(samples) // 3], samples[2 * len(samples) // 3 :])
    for role in ("driver", "worker"):
        before, after = (max(each[role] for each in part) for part in (middle, last))
        assert after <= 1.15 * before + 30, role
    # The heap of a JVM grows for some minutes before it is collected, up to a limit of its own.
    assert measured.jvm_mb < 700
