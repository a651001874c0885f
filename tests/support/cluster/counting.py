"""A program for spark-submit: keys that count, keyed state, and files of lines, all in an object store.

    spark-submit counting.py OUTPUT CHECKPOINT CONTROL KEYS [runner options]

Each key emits 0, 1, 2, … up to the number in the object `end` of the URL CONTROL (exclusive); without it the pipeline
does not end. Executors have only Penstock, so this file imports nothing of the tests.
"""

from __future__ import annotations

import sys
import time

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from penstock.io.files import WriteToJsonLines
from penstock.object_stores import locate, store_at
from penstock.runner import PySparkRunner

START = 1_763_740_800  # 2025-11-21T16:00:00Z
PER_SECOND = 200
ENDLESS = 1 << 40


class Count(RestrictionProvider):
    """The numbers from 0."""

    def initial_restriction(self, element):
        return OffsetRange(0, ENDLESS)

    def create_tracker(self, restriction):
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element, restriction):
        return restriction.size()

    def truncate(self, element, restriction):
        """A drain ends the counting at the current number."""


class CountFn(beam.DoFn):
    """From a key to rows ``{"key": …, "n": 0}``, ``{"key": …, "n": 1}``, …"""

    def __init__(self, control):
        self._control = control

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element,
        tracker=beam.DoFn.RestrictionParam(Count()),
        watermark=beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ):
        store = store_at(locate(self._control))
        end = int(store.read("end")) if store.exists("end") else ENDLESS
        number = tracker.current_restriction().start
        while tracker.try_claim(number if number < end else ENDLESS):
            at = Timestamp(START + 2 * number)
            yield TimestampedValue({"key": element, "n": number}, at)
            watermark.set_watermark(at)
            number += 1
            time.sleep(1 / PER_SECOND)


class SeenFn(beam.DoFn):
    """Adds to each row the number of rows of its key before it, from keyed state."""

    _count = beam.DoFn.StateParam(ReadModifyWriteStateSpec("count", VarIntCoder()))

    def process(self, element, count=_count):
        before = count.read() or 0
        count.write(before + 1)
        yield {**element[1], "seen": before}


def main(output, checkpoint, control, keys, *options):
    """Run to the end; 0 if the pipeline is DONE."""
    arguments = [f"--checkpoint_dir={checkpoint}", "--streaming", *options]
    pipeline = beam.Pipeline(runner=PySparkRunner(), argv=arguments)
    (
        pipeline
        | beam.Create([f"k{number}" for number in range(int(keys))])
        | "Count" >> beam.ParDo(CountFn(control)).with_output_types(dict)
        | "Keys" >> beam.WithKeys(lambda row: row["key"]).with_output_types(tuple[str, dict])
        | "Seen" >> beam.ParDo(SeenFn()).with_output_types(dict)
        | WriteToJsonLines(output, table="counts", key=lambda row: row["key"], shards=3, roll_seconds=0.5)
    )
    return 0 if pipeline.run().wait_until_finish() == "DONE" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
