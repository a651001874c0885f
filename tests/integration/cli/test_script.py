"""A small script on `PySparkRunner`, as a newcomer writes it: it prints its result and nothing else."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_pipeline_of_three_elements_prints_its_result_and_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "three.py"
    program.write_text(
        textwrap.dedent(
            """
            import apache_beam as beam
            from penstock.runner import PySparkRunner

            with beam.Pipeline(runner=PySparkRunner()) as pipeline:
                pipeline | beam.Create([1, 2, 3]) | beam.Map(print)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=180, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert sorted((done.stdout + done.stderr).split()) == ["1", "2", "3"]
