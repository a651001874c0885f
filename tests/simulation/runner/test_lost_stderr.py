"""A pipeline runs to its end even if its standard error is closed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import logging, warnings
import apache_beam as beam
from tests.integration.runner.sources import CountFn
from tests.simulation.stream import run_stream

logging.basicConfig(level=logging.DEBUG)


def warn(pair):
    warnings.warn(f"number {pair[1]}")
    logging.getLogger("user").warning("number %d", pair[1])
    return pair


record = run_stream(
    lambda p: p | beam.Create(["a"]) | beam.ParDo(CountFn(10_000, 50, defer_every=10)) | beam.Map(warn)
)
print("done" if record.state.done else "not done")
"""


def _broken_pipe() -> int:
    """The writing end of a pipe whose reader has gone, as after `2>&1 | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.long_cases("_full_disk", seconds=5)
@pytest.mark.parametrize("stderr", [_broken_pipe, _full_disk])
def test_a_pipeline_ends_normally_when_its_messages_cannot_be_written(stderr: Callable[[], int]) -> None:
    descriptor = stderr()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
            stdout=subprocess.PIPE,
            stderr=descriptor,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(descriptor)
    assert done.stdout == "done\n"


@pytest.mark.long(seconds=5)
def test_a_pipeline_ends_normally_without_standard_error() -> None:
    command = f"exec {sys.executable} -c '{PROGRAM.replace(chr(39), chr(34))}' 2>&-"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "done\n"
