"""The pipeline of the kill campaigns of sinks: one source, and the sinks that the configuration names.

    python -m tests.integration.sinks.program CONFIGURATION [runner options]

The configuration is a JSON file: `checkpoint`, `hooks`, `refused` (folders), `master`, and `sinks`: for each name of
`tests.support.sinks` the arguments of its `write`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from penstock.event import ChangeEvent
from penstock.runner import PySparkRunner
from tests.integration.files.counting import ENDLESS, Count
from tests.support.sinks import TARGETS
from tests.support.sinks.refused import write_refused
from tests.support.sinks.source import PER_SECOND, WRITERS, event_seconds, events_of
from tests.support.sinks.target import Refused

ROOT = Path(__file__).resolve().parents[3]
"""Executors of a cluster have another working folder, and a client library installs a package `tests` too."""


def writer_fn(hooks: str) -> beam.DoFn:
    """Return a DoFn from writer to rows ``{"key": …, "n": 0}``, ``{"key": …, "n": 1}``, …

    A writer makes `PER_SECOND` statements since HOOKS/begun, whether the pipeline runs or not. HOOKS/end is the number
    at which all writers end; then all statements before it are there at once.
    """

    class WriterFn(beam.DoFn):
        @beam.DoFn.unbounded_per_element()
        def process(
            self,
            element: str,
            tracker: Any = beam.DoFn.RestrictionParam(Count()),
            watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
        ) -> Iterator[TimestampedValue]:
            number = tracker.current_restriction().start
            end = _number_in(Path(hooks, "end"))
            made = int((time.time() - Path(hooks, "begun").stat().st_mtime) * PER_SECOND)
            while number < (made if end is None else end):
                if not tracker.try_claim(number):
                    return
                at = Timestamp(event_seconds(number))
                yield TimestampedValue({"key": element, "n": number}, at)
                watermark.set_watermark(at)
                number += 1
            if end is None:
                tracker.defer_remainder(Duration(seconds=0.05))
            else:
                tracker.try_claim(ENDLESS)

    return WriterFn()


def _number_in(path: Path) -> int | None:
    return int(path.read_text()) if path.exists() else None


class ProgressFn(beam.DoFn):
    """Emits every row unchanged, and writes the highest number of each writer to the hooks when a bundle ends."""

    def __init__(self, hooks: str) -> None:
        self._hooks = hooks
        self._highest: dict[str, int] = {}

    def process(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self._highest[row["key"]] = row["n"]
        yield row

    def finish_bundle(self) -> None:
        for writer, number in self._highest.items():
            # The name has the number, so that an older bundle that ends late does not hide a newer one.
            Path(self._hooks, f"read-{writer}-{number}").touch()
        self._highest = {}


def main(path: str, *options: str) -> int:
    """Run to the end; 0 if the pipeline is DONE."""
    given = json.loads(Path(path).read_text())
    arguments = [f"--checkpoint_dir={given['checkpoint']}", "--streaming", "--epoch_retries=10"]
    arguments += [f"--spark_master={given['master']}", f"--spark_conf=spark.executorEnv.PYTHONPATH={ROOT}"]
    pipeline = beam.Pipeline(runner=PySparkRunner(), argv=[*arguments, *options])
    events = (
        pipeline
        | beam.Create(list(WRITERS))
        | "Writers" >> beam.ParDo(writer_fn(given["hooks"])).with_output_types(dict[str, Any])
        | "Read" >> beam.ParDo(ProgressFn(given["hooks"])).with_output_types(dict[str, Any])
        | "Events" >> beam.FlatMap(events_of).with_output_types(ChangeEvent)
    )
    refused: Refused = {}
    for name, options in given["sinks"].items():
        refused |= TARGETS[name].write(events, **options)
    write_refused(refused, given["refused"])
    return 0 if pipeline.run().wait_until_finish() == "DONE" else 1


if __name__ == "__main__":
    from tests.integration.sinks import program  # workers must find the DoFns by name

    sys.exit(program.main(*sys.argv[1:]))
