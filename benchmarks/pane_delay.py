"""From the end of a window to its pane, against bare Spark jobs that follow each other without a pause.

    python benchmarks/pane_delay.py [--seconds 15] [--rounds 3] [--epoch-seconds 0.2] [--peers bare Prism Flink]

A splittable DoFn makes 5,000 elements per second with 10 keys. Their timestamps are the wall clock, and the DoFn
defers for 0.1 s when it has caught up. The pipeline counts them per key in windows of one second. The delay is the
time when the count of a window reaches the next step minus the end of the window.

The first peer is the best that an epoch loop on Spark can reach: *bare* jobs of as many levels of two Python tasks
which do nothing. Each job starts when the one before has ended. Its delay is the time from each full second to the end
of the first job that started after it. *Prism* and Beam's runner on *Flink* run the same pipeline without a checkpoint.

CPU time is counted for the whole process tree (driver, JVM, daemon, workers) in the measured seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from measure import Spread, Stopwatch, machine, peers_heading, peers_row, percentile
from peers.runners import job_server

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
OURS, BARE = "PySparkRunner", "bare"
STREAMING = ("Prism", "Flink")
"""Other runners of Beam that run this pipeline; the one on Spark has no splittable DoFns without an end."""


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


Measured = tuple[list[float], float]
"""Delays of panes in seconds, and the CPU seconds of the process tree meanwhile."""


def here(spark: Any, seconds: float, epoch_seconds: float) -> Measured:
    """Measure PySparkRunner."""
    with tempfile.TemporaryDirectory(prefix="penstock-panes-") as folder:
        flags = [
            f"--checkpoint_dir={folder}/checkpoint",
            f"--epoch_seconds={epoch_seconds}",
            f"--spark_parallelism={TASKS}",
        ]
        return panes(PySparkRunner(spark), flags, seconds, stop)


def stop(result: Any) -> None:
    result.stop()
    result.wait_until_finish()


def elsewhere(peer: str, seconds: float) -> Measured:
    """Measure another runner of Beam, in a process of its own."""
    command = [sys.executable, __file__, "--serve", peer, f"--seconds={seconds}"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(f"{peer} failed:\n{answer.stderr[-4000:]}")
    delays, cpu = json.loads(answer.stdout.splitlines()[-1])
    return delays, cpu


def serve(peer: str, seconds: float) -> None:
    """Print what `elsewhere` reads."""
    with job_server(peer) as flags:
        measured = panes("PortableRunner", [*flags, "--streaming"], seconds, lambda result: result.cancel())
    print(json.dumps(measured), flush=True)


def panes(runner: Any, flags: Sequence[str], seconds: float, end_run: Callable[[Any], None]) -> Measured:
    """Measure the panes of windows that end within `seconds`."""
    with tempfile.TemporaryDirectory(prefix="penstock-panes-") as folder:
        pipeline = beam.Pipeline(runner=runner, options=PipelineOptions(list(flags)))
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
        end_run(result)
        notes = [
            line.split() for path in Path(folder).glob("[0-9]*") for line in path.read_text().splitlines()
        ]
    if not notes:
        raise SystemExit("no window was over: the machine is too slow for this rate")
    whole = [note for note in notes if begin < float(note[0]) < end - 2]
    if any(int(count) != PER_SECOND // KEYS for _, _, count in whole):
        raise SystemExit("a window has not all its elements")
    return [float(delay) for _, delay, _ in whole], cost.cpu


def bare_jobs(spark: Any, seconds: float) -> Measured:
    """Measure jobs that do nothing."""
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
    parser.add_argument("--peers", nargs="+", choices=[BARE, *STREAMING], default=[BARE])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.seconds)
        return
    print(f"{machine()}; epochs of at most {options.epoch_seconds:g} s; median of {options.rounds}\n")
    spark = context("local[2,4]", {})
    names = [OURS, *options.peers]
    rounds: dict[str, list[Measured]] = {name: [] for name in names}
    for _, name in itertools.product(range(options.rounds), names):
        if name == OURS:
            measured = here(spark, options.seconds, options.epoch_seconds)
        elif name == BARE:
            measured = bare_jobs(spark, options.seconds)
        else:
            measured = elsewhere(name, options.seconds)
        rounds[name].append(measured)
    print(peers_heading("window end to pane", OURS, options.peers))
    for percent in PERCENTS:
        ours, *theirs = (
            Spread.of([1000 * percentile(delays, percent) for delays, _ in rounds[name]]) for name in names
        )
        print(peers_row(f"p{percent}, ms", ours, theirs, digits=0))
    ours, *theirs = (Spread.of([cpu for _, cpu in rounds[name]]) for name in names)
    print(peers_row(f"CPU s of {options.seconds:g} s", ours, theirs, digits=1))


if __name__ == "__main__":
    main()
