"""`penstock dead-letters replay` on Spark: the letters are published once, whoever asks again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.test_replay import MASKED, NATIVE, OTHER, SHOP, letter, lines_below, refused

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=10)]


@pytest.mark.campaign
def test_replayed_letters_are_published_once(penstock: list[str], tmp_path: Path) -> None:
    out, dead = tmp_path / "out", tmp_path / "dead"
    parameters: dict[str, Any] = {**SHOP, "output": str(out), "format": "ydb", "dead_letters": str(dead)}
    runner = {"checkpoint_dir": str(tmp_path / "checkpoint"), "master": "local[2,4]"}
    job = tmp_path / "job.yaml"
    parameters |= {"roll_seconds": 0, "without_tables": ["Others"]}
    content = {"template": "spanner-to-files", "parameters": parameters}
    job.write_text(json.dumps({**content, "runner": runner}))
    refused(
        job, "1.jsonl", letter(NATIVE, "ToChangeEvents"), letter(MASKED, "ToLines"), letter(OTHER, "ToLines")
    )
    for _ in range(2):
        command = [*penstock, "dead-letters", "replay", str(job), "--progress", "line"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(line["update"]["Name"] for line in lines_below(out)) == ["A", "Bob"]
    assert "no dead letters that can be replayed" in done.stdout
