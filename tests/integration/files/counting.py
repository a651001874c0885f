"""A program for kill campaigns: keys that count, and `WriteToJsonLines` after keyed state and right after the source.

    python -m tests.integration.files.counting OUTPUT CHECKPOINT HOOKS KEYS [runner options]

Each key is an element of a splittable DoFn that emits 0, 1, 2, … up to the number in the file HOOKS/end (exclusive).
While there is no such file, the DoFn does not end. After it has ended, the pipeline publishes everything and ends too.
The steps create empty files in HOOKS (``read-…`` and ``exchanged-…``), which tell the killing process how far an epoch
is.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from penstock.io.files import WriteToJsonLines
from penstock.pace import current_pace
from penstock.runner import PySparkRunner

AT_ONCE = " at once"
"""End of the keys of lines that were written right after the source."""
START = 1_763_740_800  # 2025-11-21T16:00:00Z
PER_SECOND = 400
"""Numbers per key and second. The event time of each number is 2 s after that of the number before it."""


BEHIND = 2_000
"""Each second range of as many numbers is a backlog: the source says that it is behind."""

ENDLESS = 1 << 40


class Count(RestrictionProvider):
    """The numbers from 0."""

    def initial_restriction(self, element: str) -> OffsetRange:
        return OffsetRange(0, ENDLESS)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: str, restriction: OffsetRange) -> int:
        return restriction.size()

    def truncate(self, element: str, restriction: OffsetRange) -> None:
        """A drain ends the counting at the current number."""


def count_fn(hooks: str) -> beam.DoFn:
    """Return a DoFn from key to rows ``{"key": …, "n": 0}``, ``{"key": …, "n": 1}``, …"""

    class CountFn(beam.DoFn):
        @beam.DoFn.unbounded_per_element()
        def process(
            self,
            element: str,
            tracker: Any = beam.DoFn.RestrictionParam(Count()),
            watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
        ) -> Iterator[TimestampedValue]:
            number = tracker.current_restriction().start
            if (pace := current_pace()) is not None:
                pace.is_behind = number // BEHIND % 2 == 1
            while tracker.try_claim(number if number < self._end() else ENDLESS):
                at = Timestamp(START + 2 * number)
                yield TimestampedValue({"key": element, "n": number}, at)
                watermark.set_watermark(at)
                number += 1
                time.sleep(1 / PER_SECOND)

        def _end(self) -> int:
            end = Path(hooks, "end")
            return int(end.read_text()) if end.exists() else ENDLESS

    return CountFn()


class SeenFn(beam.DoFn):
    """Adds to each row the number of rows of its key before it, from keyed state. The exchange keeps a key's order."""

    _count = beam.DoFn.StateParam(ReadModifyWriteStateSpec("count", VarIntCoder()))

    def process(self, element: tuple[str, dict[str, Any]], count: Any = _count) -> Iterator[dict[str, Any]]:
        before = count.read() or 0
        count.write(before + 1)
        yield {**element[1], "seen": before}


class HookFn(beam.DoFn):
    """Emits every element unchanged, and creates an empty file in a folder at the end of each bundle with elements."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = os.path.join(folder, name)
        self._any = False

    def process(self, element: Any) -> Iterator[Any]:
        self._any = True
        yield element

    def finish_bundle(self) -> None:
        if self._any:
            with open(f"{self._path}-{uuid.uuid4().hex}", "x"):
                self._any = False


def build(pipeline: beam.Pipeline, output: str, hooks: str, keys: int) -> beam.PCollection:
    """Apply the pipeline with the keys ``k0`` to ``k<keys - 1>``; the lines right after the source have others."""
    rows = (
        pipeline
        | beam.Create([f"k{number}" for number in range(keys)])
        | "Count" >> beam.ParDo(count_fn(hooks)).with_output_types(dict[str, Any])
        | "Read" >> beam.ParDo(HookFn(hooks, "read")).with_output_types(dict[str, Any])
    )
    # Small files, so that a task that reads a backlog has whole ones.
    _ = (
        rows
        | "Rename" >> beam.Map(lambda row: {**row, "key": f"{row['key']}{AT_ONCE}"})
        | AT_ONCE.strip() >> WriteToJsonLines(output, table="at-once", roll_seconds=0.5, roll_bytes=16_000)
    )
    return (
        rows
        | "Keys" >> beam.WithKeys(lambda row: row["key"]).with_output_types(tuple[str, dict[str, Any]])
        | "Seen" >> beam.ParDo(SeenFn()).with_output_types(dict[str, Any])
        | "Exchanged" >> beam.ParDo(HookFn(hooks, "exchanged")).with_output_types(dict[str, Any])
        | WriteToJsonLines(
            output, table="counts", key=lambda row: row["key"], shards=3, roll_seconds=0.5, mark_complete=True
        )
    )


def expected(keys: int, count: int) -> dict[Any, int]:
    """Return how far each key of the lines counts, exclusive."""
    return {f"k{number}{kind}": count for number in range(keys) for kind in ("", AT_ONCE)}


def main(output: str, checkpoint: str, hooks: str, keys: str, *options: str) -> int:
    """Run to the end; 0 if the pipeline is DONE."""
    arguments = [f"--checkpoint_dir={checkpoint}", "--streaming", "--spark_master=local[2,4]", *options]
    pipeline = beam.Pipeline(runner=PySparkRunner(), argv=arguments)
    build(pipeline, output, hooks, int(keys))
    result = pipeline.run()
    return 0 if result.wait_until_finish() == "DONE" else 1


if __name__ == "__main__":
    from tests.integration.files import counting  # workers must find the DoFns by name

    sys.exit(counting.main(*sys.argv[1:]))
