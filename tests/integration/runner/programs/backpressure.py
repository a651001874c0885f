"""A stream under pressure: a slow step, an endless backlog, or a burst.

    python -m tests.integration.runner.programs.backpressure WHAT FOLDER SECONDS

WHAT is a name of `CASES`. The program prints one line of JSON: the epochs, and whether the watermark was ever ahead of
the elements that the step had taken.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from penstock.runner import PySparkRunner
from tests.integration.runner.sources import Endless

READERS = 2
VALUE = b"x" * 200


@dataclass(frozen=True, slots=True)
class Case:
    """`cost_us` is the time of the step for each element. The source has `per_second` elements a second, and `burst`
    more after `burst_after` seconds; None means that it always has more."""

    cost_us: float = 0.0
    per_second: float | None = None
    burst: int = 0
    burst_after: float = 0.0


CASES = {
    "slow_step": Case(cost_us=200),
    "backlog": Case(),
    "burst": Case(cost_us=20, per_second=200, burst=100_000, burst_after=20),
}


class SourceFn(beam.DoFn):
    """Emits the numbers that are available, number n at event time n seconds; then it defers by 50 ms."""

    def __init__(self, case: Case, began: float) -> None:
        self._case = case
        self._began = began

    def _available(self) -> float:
        case, seconds = self._case, time.time() - self._began
        if case.per_second is None:
            return float("inf")
        return case.per_second * seconds + (case.burst if seconds > case.burst_after else 0)

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(Endless()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        number = tracker.current_restriction().start
        available = self._available()
        while number < available:
            if not tracker.try_claim(number):
                return
            yield TimestampedValue((element, VALUE), Timestamp(number))
            number += 1
            watermark.set_watermark(Timestamp(number))
        tracker.defer_remainder(Duration(0.05))


class StepFn(beam.DoFn):
    """Takes its time for each element, and counts the elements of each reader."""

    CHUNK = 50

    def __init__(self, cost_us: float) -> None:
        self._seconds = self.CHUNK * cost_us / 1e6
        self._taken = 0

    def process(self, element: tuple[int, bytes]) -> None:
        self._taken += 1
        if self._seconds and self._taken % self.CHUNK == 0:
            time.sleep(self._seconds)
        beam.metrics.Metrics.counter("pressure", f"taken {element[0]}").inc()


def run(case: Case, folder: str, seconds: float) -> dict[str, Any]:
    """Run the case for a time, and return its figures."""
    flags = ["--spark_master=local[2,4]", "--spark_parallelism=2", "--streaming"]
    p = beam.Pipeline(
        runner=PySparkRunner(), options=PipelineOptions([*flags, f"--checkpoint_dir={folder}/checkpoint"])
    )
    read = p | beam.Create(range(READERS)) | "Read" >> beam.ParDo(SourceFn(case, time.time()))
    _ = read | beam.Reshuffle() | beam.ParDo(StepFn(case.cost_us))
    result = p.run()
    began = time.monotonic()
    ends: list[float] = []
    ahead, seen = 0, result.progress().epochs
    while (now := time.monotonic() - began) < seconds:
        if (epochs := result.progress().epochs) != seen:
            ends += [now] * (epochs - seen)
            seen = epochs
            # The watermark first: a commit between the two reads can only add elements.
            marks = list(result.watermarks.values())
            ahead += bool(marks) and _seconds(min(marks)) > min(_taken(result))
        time.sleep(0.01)
    taken = _taken(result)
    result.stop()
    result.wait_until_finish()
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    later = lengths[len(lengths) // 2 :]
    return {
        "epochs": len(ends),
        "longest_epoch_seconds": round(max(lengths), 2),
        "median_later_epoch_seconds": round(statistics.median(later), 2),
        "longest_later_epoch_seconds": round(max(later), 2),
        "elements_per_second": round(sum(taken) / ends[-1]),
        "epochs_with_watermark_ahead": ahead,
    }


def _taken(result: Any) -> list[int]:
    counters = result.metrics().query()["counters"]
    found = {each.key.metric.name: each.committed for each in counters}
    return [found.get(f"taken {reader}", 0) for reader in range(READERS)]


def _seconds(mark: Any) -> float:
    return float(mark) / 1e6


def main() -> None:
    """Run one case."""
    what, folder, seconds = sys.argv[1:]
    print(json.dumps(run(CASES[what], folder, float(seconds))))


if __name__ == "__main__":
    main()
