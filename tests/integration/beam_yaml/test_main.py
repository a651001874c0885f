"""A pipeline in YAML, started as Beam's documentation says, run by PySparkRunner on real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.beam_yaml import PROVIDERS
from penstock_emulators.bigtable import BigtableEmulator
from tests.integration.bigtable.conftest import INSTANCE, PROJECT, Table
from tests.integration.emulators.bigtable.client import set_cell

pytestmark = [pytest.mark.spark, pytest.mark.emulator, pytest.mark.slow(seconds=10)]

PIPELINE = """
pipeline:
  type: chain
  transforms:
    - type: ReadFromBigtableChangeStream
      config:
        project: {project}
        instance: {instance}
        table: {table}
        emulator_host: "{host}"
        start: {start}
        end: {end}
    - type: Filter
      config: {{language: python, keep: "op == 'UPDATE'"}}
    - type: FormatEvents
      config: {{format: debezium, system: bigtable, options: {{server: srv}}}}
    - type: WriteToJsonLines
      config: {{output: {output}, roll_seconds: 0}}
providers:
  - include: {providers}
"""


def test_a_pipeline_in_yaml_runs_on_spark(tmp_path: Path) -> None:
    with BigtableEmulator.start() as emulator:
        table, start = Table(emulator), time.time_ns()
        for key in (b"one", b"two", b"three"):
            table.client.write(key, set_cell("f", b"q", b"x"))
        text = PIPELINE.format(
            project=PROJECT,
            instance=INSTANCE,
            table=table.id,
            host=emulator.host,
            start=start,
            end=time.time_ns(),
            output=tmp_path / "out",
            providers=PROVIDERS,
        )
        (tmp_path / "pipeline.yaml").write_text(text)
        command = [
            *(sys.executable, "-m", "apache_beam.yaml.main"),
            f"--yaml_pipeline_file={tmp_path / 'pipeline.yaml'}",
            "--runner=penstock.runner.PySparkRunner",
            f"--checkpoint_dir={tmp_path / 'checkpoint'}",
        ]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line for file in (tmp_path / "out").rglob("*.jsonl") for line in file.read_text().splitlines()]
    events = [json.loads(line) for line in lines]
    assert sorted(event["source"]["cells"][0]["family"] for event in events) == ["f", "f", "f"]
    assert {event["op"] for event in events} == {"u"}
