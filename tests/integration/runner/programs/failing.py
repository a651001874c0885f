"""A pipeline on which Spark fails in one way: python -m tests.integration.runner.programs.failing HOW [OPTION …]

HOW is `well` (nothing fails), `killed JVM`, `ended JVM`, `full JVM` (out of memory), `killed worker`,
`crashing worker` (a segmentation fault) or `wait` (the job runs until the program is killed). Prints the error
as JSON, and how many epochs were tried. With a checkpoint folder the pipeline is a stream.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import time
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.runner import PySparkRunner


class _Tries(logging.Handler):
    """Counts the warnings about retried epochs."""

    count = 1

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("epoch ") and " failed" in record.getMessage()


class BreakFn(beam.DoFn):
    def __init__(self, how: str) -> None:
        self._how = how

    def process(self, element: int) -> Any:
        if self._how == "killed worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._how == "crashing worker":
            ctypes.string_at(0)
        if self._how == "killed JVM":
            os.kill(_jvm(), signal.SIGKILL)
        if self._how == "ended JVM":
            os.kill(_jvm(), signal.SIGTERM)
        if self._how == "wait":
            print("waiting", flush=True)
            time.sleep(1_000)
        yield "y" * 30_000_000 if self._how == "full JVM" else str(element)


def _jvm() -> int:
    """The parent of the daemon, which is the parent of this worker."""
    with open(f"/proc/{os.getppid()}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def main() -> None:
    how, *options = sys.argv[1:]
    tries = _Tries()
    logging.getLogger("penstock").addHandler(tries)
    try:
        pipeline = beam.Pipeline(runner=PySparkRunner(), options=PipelineOptions(options))
        _ = (
            pipeline
            | beam.Create(range(60), reshuffle=False)
            | beam.Reshuffle()
            | "Break" >> beam.ParDo(BreakFn(how))
            | "Exchange" >> beam.Reshuffle()
            | "Length" >> beam.Map(len)
        )
        pipeline.run().wait_until_finish()
        told = {"type": "", "text": ""}
    except Exception as error:
        told = {"type": type(error).__name__, "text": str(error)}
    print(json.dumps({**told, "tries": tries.count}))


if __name__ == "__main__":
    main()
