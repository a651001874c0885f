"""Beam's interactive runner on Spark: `collect` returns the elements, not an empty DataFrame."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.environments import install_command

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=20)]

NOTEBOOK = """
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.interactive import interactive_beam as ib
from apache_beam.runners.interactive.interactive_runner import InteractiveRunner
from penstock.runner import PySparkRunner

if __name__ == "__main__":
    options = PipelineOptions(["--spark_master=local[2]"])
    p = beam.Pipeline(InteractiveRunner(underlying_runner=PySparkRunner()), options=options)
    words = p | beam.Create(["a", "b", "a"])
    counts = words | beam.combiners.Count.PerElement()
    ib.watch({"words": words, "counts": counts})
    print("COUNTS", sorted(ib.collect(counts).itertuples(index=False, name=None)))
    print("WORDS", sorted(ib.collect(words)[0]))
"""


@pytest.fixture(scope="module")
def interactive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with what Beam's interactive runner imports.

    Beam changes what it imports when pandas is installed, so the environment of the other tests stays without it.
    """
    folder = str(tmp_path_factory.mktemp("interactive"))
    packages = ("pandas>=2.2,<2.4", "ipython>=8,<9", "timeloop>=1.0.2,<2")
    subprocess.run(install_command(sys.executable, "--target", folder, *packages), check=True, timeout=600)
    return folder


def test_collect_returns_the_elements_of_a_batch(interactive: str, tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text(NOTEBOOK)
    # At the end: the packages that the tests use come first.
    path = os.pathsep.join([*filter(None, sys.path), interactive])
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "COUNTS [('a', 2), ('b', 1)]" in done.stdout
    assert "WORDS ['a', 'a', 'b']" in done.stdout
