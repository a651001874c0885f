"""A backlog of many partitions is read in memory that does not depend on its length."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
LEEWAY_MB = 16


@pytest.mark.long(seconds=5)
def test_a_backlog_of_many_partitions_is_read_in_flat_memory(campaign: Any) -> None:
    partitions, mods = campaign.size(200, 5_000), campaign.size(400_000, 5_000_000)
    command = [sys.executable, "-m", "tests.simulation.spanner.backlog", str(partitions), str(mods)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=campaign.size(300, 7200))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    first = figures["megabytes_above_start_in_the_first_half"]
    second = figures["megabytes_above_start_in_the_second_half"]
    assert second <= first + LEEWAY_MB
    # The budget of 32 MB counts bytes as sent. Decoded they take two to three times as much.
    assert second <= 150 + partitions * 0.02
    campaign.record("spanner-backlog", **figures)
