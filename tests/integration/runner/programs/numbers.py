"""A stream of numbers through a keyed stage into files, each number once; run as a separate program.

    python -m tests.integration.runner.programs.numbers FOLDER MASTER END [OPTION …]

Reads 0, 1, … for two elements, carries them by key to a stateful step that checks that each key counts up
without a gap, and publishes (element, n) as files. Ends after END numbers of each element.
`FOLDER/slow` lists "key seconds": the keyed step of that key waits there, once for each change of the file, and
leaves the pid of its worker in `FOLDER/waiting`; `FOLDER/reader-ELEMENT` has the pid of who read last.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate

from penstock.publish import PublishAfterCommit
from penstock.runner import PySparkRunner
from tests.integration.runner.sources import AppendFn, CountFn, Endless

KEYS = 8


class InOrderFn(beam.DoFn):
    """Passes numbers on; a gap or a repeat within a key is an error."""

    NEXT = userstate.ReadModifyWriteStateSpec("next", VarIntCoder())

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def process(
        self, keyed: tuple[str, tuple[str, int]], expected: Any = beam.DoFn.StateParam(NEXT)
    ) -> Iterator[Any]:
        key, (element, n) = keyed
        self._wait_if_told(key)
        turn = n // KEYS
        if (expected.read() or 0) != turn:
            raise AssertionError(f"{key}: expected turn {expected.read() or 0}, got {turn}")
        expected.write(turn + 1)
        yield element, n

    def _wait_if_told(self, key: str) -> None:
        told = Path(self.folder, "slow")
        if told.exists():
            slow, seconds = told.read_text().split()
            if key == slow:
                told.rename(told.with_name("was slow"))
                _leave_pid(Path(self.folder, "waiting"))
                time.sleep(float(seconds))


class SignedCountFn(CountFn):
    """Counts, and records the pid of its worker."""

    def __init__(self, folder: str, per_second: float, end: int) -> None:
        super().__init__(per_second, end)
        self.folder = folder

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(Endless()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        _leave_pid(Path(self.folder, f"reader-{element}"))
        yield from super().process(element, tracker, watermark)


def _leave_pid(path: Path) -> None:
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    fresh.write_text(str(os.getpid()))
    fresh.rename(path)


def main(folder: str, master: str, end: str, *options: str) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("penstock").setLevel(logging.INFO)
    out = Path(folder, "published")
    out.mkdir(parents=True, exist_ok=True)
    flags = [
        f"--spark_master={master}",
        f"--checkpoint_dir={folder}/checkpoint",
        "--epoch_seconds=0.2",
        *options,
    ]
    pipeline = beam.Pipeline(runner=PySparkRunner(), options=PipelineOptions(flags))
    _ = (
        pipeline
        | beam.Create(["a", "b"])
        | "Count" >> beam.ParDo(SignedCountFn(folder, 100, int(end)))
        | beam.Map(lambda pair: (f"{pair[0]}{pair[1] % KEYS}", pair))
        | "In order" >> beam.ParDo(InOrderFn(folder))
        | "Publish" >> PublishAfterCommit(AppendFn(str(out)))
    )
    result = pipeline.run()
    try:
        state = result.wait_until_finish()
    finally:
        print("state", result.state, "epochs", result.progress().epochs, flush=True)
    os._exit(0 if state == "DONE" else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
