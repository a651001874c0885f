"""From the end of a window to its pane, against bare Spark jobs that follow each other without a pause.

    python benchmarks/pane_delay.py [--seconds 15] [--rounds 3] [--epoch-seconds 0.2]

A splittable DoFn makes 5,000 elements per second with 10 keys. Their timestamps are the wall clock, and the DoFn
defers for 0.1 s when it has caught up. The pipeline counts them per key in windows of one second. The delay is the
time when the count of a window reaches the next step minus the end of the window.

The peer is the best that an epoch loop on Spark can reach: jobs of as many levels of two Python tasks which do
nothing. Each job starts when the one before has ended. Its delay is the time from each full second to the end of the
first job that started after it.

CPU time is counted for the whole process tree (driver, JVM, daemon, workers) in the measured seconds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from measure import Spread, Stopwatch, heading, machine, percentile, ratio, row

from penstock.runner import PySparkRunner
from penstock.runner.spark.session import context

PER_SECOND, KEYS = 5_000, 10
PER_BATCH = 50
"""Elements between two updates of the watermark. A reader that is behind may be split before it has caught up."""
DEFER_SECONDS = 0.1
LEVELS, TASKS = 2, 2
START_SECONDS, WARM_SECONDS = 6.0, 10.0
"""Seconds until the first element, and until the measurement begins. The first epochs of a process are slow."""
PERCENTS = (50, 95)


class Ticks(RestrictionProvider):
    """The numbers from 0 on."""

    def initial_restriction(self, element: Any) -> OffsetRange:
        return OffsetRange(0, 1 << 50)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return 1

    def truncate(self, element: Any, restriction: OffsetRange) -> None:
        """A drain ends it."""


class TickFn(beam.DoFn):
    """Emits element n at `start` + n / 5,000 s, not before that time."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        start: float,
        tracker: Any = beam.DoFn.RestrictionParam(Ticks()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        number = tracker.current_restriction().start
        while True:
            until = int((time.time() - start) * PER_SECOND)
            while number < until:
                if not tracker.try_claim(number):
                    return
                at = Timestamp.of(start + number / PER_SECOND)
                yield TimestampedValue((number % KEYS, number), at)
                number += 1
                if number % PER_BATCH == 0:
                    watermark.set_watermark(at)
            tracker.defer_remainder(Duration.of(DEFER_SECONDS))
            return


class NoteFn(beam.DoFn):
    """Notes when the count of a window arrives."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def process(self, element: Any, within: Any = beam.DoFn.WindowParam) -> None:
        with open(f"{self._folder}/{os.getpid()}", "a") as file:
            file.write(f"{float(within.end)} {time.time() - float(within.end)} {element[1]}\n")


def ours(spark: Any, seconds: float, epoch_seconds: float) -> tuple[list[float], float]:
    """Return the delays of panes within `seconds`, and the CPU seconds of that time."""
    with tempfile.TemporaryDirectory(prefix="penstock-panes-") as folder:
        flags = [
            f"--checkpoint_dir={folder}/checkpoint",
            f"--epoch_seconds={epoch_seconds}",
            f"--spark_parallelism={TASKS}",
        ]
        pipeline = beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions(flags))
        _ = (
            pipeline
            | beam.Create([time.time() + START_SECONDS])
            | beam.ParDo(TickFn())
            | beam.WindowInto(FixedWindows(1))
            | beam.combiners.Count.PerKey()
            | beam.ParDo(NoteFn(folder))
        )
        result = pipeline.run()
        time.sleep(WARM_SECONDS)
        begin, watch = time.time(), Stopwatch()
        time.sleep(seconds)
        cost, end = watch.stop(), time.time()
        result.stop()
        result.wait_until_finish()
        notes = [
            line.split() for path in Path(folder).glob("[0-9]*") for line in path.read_text().splitlines()
        ]
    if not notes:
        raise SystemExit("no window was over: the machine is too slow for this rate")
    whole = [note for note in notes if begin < float(note[0]) < end - 2]
    if any(int(count) != PER_SECOND // KEYS for _, _, count in whole):
        raise SystemExit("a window has not all its elements")
    return [float(delay) for _, delay, _ in whole], cost.cpu


def theirs(spark: Any, seconds: float) -> tuple[list[float], float]:
    """Return the delays of bare jobs, and the CPU seconds of that time."""
    jobs = []
    watch = Stopwatch()
    end = time.time() + seconds
    while (begin := time.time()) < end:
        rdd = spark.parallelize(range(TASKS), TASKS).map(lambda task: (task, task))
        for _ in range(LEVELS - 1):
            rdd = rdd.partitionBy(TASKS, lambda target: target).mapPartitions(lambda pairs: list(pairs))
        rdd.collect()
        jobs.append((begin, time.time()))
    cpu = watch.stop().cpu
    first = int(jobs[0][0]) + 1
    seconds_in = [at for at in range(first, int(jobs[-1][0])) if any(start >= at for start, _ in jobs)]
    return [next(done for start, done in jobs if start >= at) - at for at in seconds_in], cpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="measured seconds per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epoch-seconds", type=float, default=0.2)
    options = parser.parse_args()
    print(f"{machine()}; epochs of at most {options.epoch_seconds:g} s; median of {options.rounds}\n")
    spark = context("local[2,4]", {})
    rounds = [
        (ours(spark, options.seconds, options.epoch_seconds), theirs(spark, options.seconds))
        for _ in range(options.rounds)
    ]
    print(heading("window end to pane", "PySparkRunner", "bare jobs", "ratio"))
    for percent in PERCENTS:
        mine = Spread.of([1000 * percentile(delays, percent) for (delays, _), _ in rounds])
        bare = Spread.of([1000 * percentile(delays, percent) for _, (delays, _) in rounds])
        print(row(f"p{percent}, ms", mine.text(0), bare.text(0), ratio(mine, bare)))
    mine = Spread.of([cpu for (_, cpu), _ in rounds])
    bare = Spread.of([cpu for _, (_, cpu) in rounds])
    print(row(f"CPU s of {options.seconds:g} s", mine.text(1), bare.text(1), ratio(mine, bare)))


if __name__ == "__main__":
    main()
