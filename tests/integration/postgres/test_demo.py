"""The second demo of the README."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=20)]


@pytest.mark.campaign
def test_the_demo_of_postgres_ends_with_its_proof(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.demo", "postgres", "--folder", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Replaying the files gives the tables'" in done.stdout
    assert "WRONG" not in done.stdout
    assert "warning" not in done.stdout + done.stderr
