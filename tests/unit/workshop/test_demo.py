"""`make run` on a machine that lacks something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def test_without_the_cloud_sdk_the_demo_ends_with_one_sentence_and_exit_code_3(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SPANNER_EMULATOR_BIN"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.demo", "--folder", str(tmp_path)],
        cwd=ROOT,
        env=environment | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3
    assert done.stderr.startswith(
        "Error: No gcloud on PATH, so no Spanner emulator. Install the Google Cloud SDK"
    )
    assert len(done.stderr.splitlines()) == 1
