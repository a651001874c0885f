"""Logs of a worker reach the user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
PROGRAM = "tests.integration.runner.programs.logs"


@pytest.mark.long(seconds=10)
def test_logs_of_a_dofn_appear_at_the_level_of_the_driver_and_of_beams_options() -> None:
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, '--sdk_harness_log_level_overrides={"silenced": "ERROR"}'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    for line in ("INFO step: info of 7", "WARNING step: warning of 7", "element 7"):
        assert line in done.stderr, done.stderr
    assert "hidden" not in done.stderr
