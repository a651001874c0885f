"""The cost of an epoch without any work, against a bare Spark job with as many Python tasks.

    python benchmarks/idle_epoch.py [--epochs 60] [--rounds 5] [--tasks 2] [--keyed 0 1 2]

The stream is a splittable DoFn that has nothing to read and defers without delay, so that one epoch follows the other.
After it come as many keyed stages (a Map and a GroupByKey each) as `--keyed` says. Each exchange adds one more level of
`--tasks` Python tasks.

The peer has the same session, tasks and exchanges: `parallelize` and one `mapPartitions` per level, with
`partitionBy` between them, collected. Each task sends one small record to each task below it, as our tasks send their
reports. The peer runs no Beam, keeps no state and commits nothing. Our epoch also distributes the residual, reads it
with Beam's bundle processor, compares nonces and counts, and commits one record (fsync).

*Fixed* is the cost of an epoch without an exchange. *Marginal* is the cost of each further exchange: the slope from the
lowest to the highest number of keyed stages. CPU time is counted for the whole process tree: driver, JVM, daemon,
workers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import FixedWindows
from measure import Cost, Spread, Stopwatch, heading, machine, ratio, row

from penstock.runner import PySparkRunner
from penstock.runner.planning.graph import build_plan
from penstock.runner.spark.session import context

WARM_EPOCHS = 10
PATIENCE_SECONDS = 120.0


class NothingYet(RestrictionProvider):
    """A restriction without end."""

    def initial_restriction(self, element: Any) -> OffsetRange:
        return OffsetRange(0, 1 << 60)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return 1


class IdleFn(beam.DoFn):
    """Reads nothing, and defers without delay."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: Any, tracker: Any = beam.DoFn.RestrictionParam(NothingYet())) -> Iterator[int]:
        tracker.defer_remainder()
        yield from ()


def build(pipeline: beam.Pipeline, keyed: int) -> None:
    """Apply an idle source and `keyed` keyed stages."""
    stage = (
        pipeline
        | beam.Create([0], reshuffle=False)
        | beam.ParDo(IdleFn()).with_output_types(int)
        | beam.WindowInto(FixedWindows(1))
    )
    for number in range(keyed):
        pairs = stage | f"Key {number}" >> beam.Map(lambda n: (n, n)).with_output_types(tuple[int, int])
        groups = pairs | f"Group {number}" >> beam.GroupByKey()
        stage = groups | f"Count {number}" >> beam.Map(lambda pair: pair[0]).with_output_types(int)


def levels(spark: Any, keyed: int) -> int:
    """Return the number of levels in an epoch of the stream."""
    runner = PySparkRunner(spark)
    pipeline = beam.Pipeline(runner=runner)
    build(pipeline, keyed)
    environment = runner.default_environment(PipelineOptions([]))
    return build_plan(pipeline.to_runner_api(default_environment=environment), streaming=True).depth


def epochs(spark: Any, keyed: int, tasks: int, count: int, checkpoint: str | None = None) -> Cost:
    """Return the cost of one idle epoch of a warm stream, measured over at least `count` epochs.

    `checkpoint` is a new path or URL; None is a temporary folder.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-idle-") as folder:
        flags = [f"--checkpoint_dir={checkpoint or folder + '/checkpoint'}", f"--spark_parallelism={tasks}"]
        pipeline = beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions(flags))
        build(pipeline, keyed)
        result = pipeline.run()
        try:
            first = _wait_for_epochs(result, WARM_EPOCHS)
            watch = Stopwatch()
            last = _wait_for_epochs(result, first + count)
            return watch.stop().per(last - first)
        finally:
            result.stop()
            result.wait_until_finish()


def _wait_for_epochs(result: Any, count: int) -> int:
    """Wait for at least `count` committed epochs; return how many there are."""
    end = time.monotonic() + PATIENCE_SECONDS
    while (done := result.progress().epochs) < count:
        if result.state == "FAILED":
            result.wait_until_finish()
        if time.monotonic() > end:
            raise SystemExit(f"{count} idle epochs were not committed within {PATIENCE_SECONDS:g} s")
        time.sleep(0.02)  # `progress` decodes the residuals: asking it is not free
    return int(done)


def bare_job(spark: Any, depth: int, tasks: int) -> None:
    """Run one Spark job of `depth` levels of `tasks` Python tasks that exchange almost nothing."""
    rdd = spark.parallelize(range(tasks), tasks)
    for level in range(depth):
        if level:
            rdd = rdd.partitionBy(tasks, lambda target: target)
        rdd = rdd.mapPartitions(_to_each(tasks))
    rdd.collect()


def _to_each(tasks: int) -> Callable[[Iterator[Any]], Iterator[tuple[int, bytes]]]:
    def run(records: Iterator[Any]) -> Iterator[tuple[int, bytes]]:
        for _ in records:
            continue
        yield from ((target, b"nothing") for target in range(tasks))

    return run


def bare_jobs(spark: Any, depth: int, tasks: int, count: int) -> Cost:
    """Return the cost of one bare job, measured over `count` jobs."""
    for _ in range(WARM_EPOCHS):
        bare_job(spark, depth, tasks)
    watch = Stopwatch()
    for _ in range(count):
        bare_job(spark, depth, tasks)
    return watch.stop().per(count)


def compare(
    spark: Any, keyed: list[int], tasks: int, count: int, rounds: int
) -> dict[tuple[str, int], list[Cost]]:
    """Measure epochs and bare jobs in turn, for each number of keyed stages."""
    depths = {number: levels(spark, number) for number in keyed}
    costs: dict[tuple[str, int], list[Cost]] = {(who, n): [] for who in ("ours", "theirs") for n in keyed}
    turns: dict[str, Callable[[int], Cost]] = {
        "ours": lambda number: epochs(spark, number, tasks, count),
        "theirs": lambda number: bare_jobs(spark, depths[number], tasks, count),
    }
    for round_number in range(rounds + 1):
        for number in keyed:
            for who in ("ours", "theirs") if round_number % 2 else ("theirs", "ours"):
                cost = turns[who](number)
                if round_number:  # the first round warms the JVM up
                    costs[who, number].append(cost)
    return costs


def tell(costs: dict[tuple[str, int], list[Cost]], keyed: list[int], tasks: int) -> None:
    """Print the costs of an epoch and of a job, then the fixed and the marginal costs."""
    print(heading("keyed stages", "idle epoch, ms", "bare job, ms", "ratio"))
    for number in keyed:
        for what in ("wall", "cpu"):
            ours, theirs = (Spread.of(_part(costs[who, number], what)) for who in ("ours", "theirs"))
            print(row(f"{number}, {what}", ours.text(1, 1e-3), theirs.text(1, 1e-3), ratio(ours, theirs)))
    fewest, most = min(keyed), max(keyed)
    if fewest == most:
        return
    print()
    print(heading("each further exchange", "idle epoch, ms", "bare job, ms", "ratio"))
    for what in ("wall", "cpu"):
        ours, theirs = (
            Spread.of(
                (high - low) / (most - fewest)
                for high, low in zip(
                    _part(costs[who, most], what), _part(costs[who, fewest], what), strict=True
                )
            )
            for who in ("ours", "theirs")
        )
        name = f"marginal, {tasks} tasks, {what}"
        print(row(name, ours.text(1, 1e-3), theirs.text(1, 1e-3), ratio(ours, theirs)))


def _part(costs: list[Cost], what: str) -> list[float]:
    return [cost.wall if what == "wall" else cost.cpu for cost in costs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60, help="number of epochs and jobs per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=2, help="Python tasks per level")
    parser.add_argument(
        "--keyed", type=int, nargs="+", default=[0, 1, 2], help="numbers of keyed stages to measure"
    )
    options = parser.parse_args()
    rounds, keyed = options.rounds, sorted(set(options.keyed))
    print(f"{machine()}; {options.tasks} tasks a level; median of {rounds} (lowest to highest)\n")
    spark = context("local[2,4]", {})
    tell(compare(spark, keyed, options.tasks, options.epochs, rounds), keyed, options.tasks)


if __name__ == "__main__":
    main()
