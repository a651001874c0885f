"""A backlog: the watermark waits for what the sink has not written, and an epoch reads a bounded part of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from penstock.runner.metrics import Metrics as CommittedMetrics
from penstock.runner.metrics import deserialized
from penstock.runner.protocol.record import CommitRecord, WatermarkKind
from penstock.runner.tasks.epoch import EpochLimits
from tests.integration.runner.sources import Endless
from tests.simulation.stream import run_stream

BACKLOG, BURST = 1_000, 25
"""Elements at one a second of event time, of which the source gives `BURST` at once and then defers the rest."""


class BacklogFn(beam.DoFn):
    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: str,
        tracker: Any = beam.DoFn.RestrictionParam(Endless()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[TimestampedValue]:
        first = tracker.current_restriction().start
        for number in range(first, min(first + BURST, BACKLOG)):
            if not tracker.try_claim(number):
                return
            yield TimestampedValue((element, "x" * 1_000), Timestamp(number))
            watermark.set_watermark(Timestamp(number + 1))
        if first + BURST >= BACKLOG:
            tracker.try_claim(10**12)
        else:
            tracker.defer_remainder()


class CountingSinkFn(beam.DoFn):
    def process(self, element: Any) -> None:
        Metrics.counter("sink", "written").inc()


def _written(record: CommitRecord) -> int:
    found = CommittedMetrics(deserialized(record.state.metrics)).query()["counters"]
    return sum(each.committed for each in found)


def test_the_watermark_never_passes_what_the_sink_has_not_written() -> None:
    seen: list[tuple[int, float]] = []

    def build(p: beam.Pipeline) -> None:
        numbers = p | beam.Create(["a"]) | beam.ParDo(BacklogFn())
        _ = numbers | beam.Reshuffle() | beam.ParDo(CountingSinkFn())

    def look(record: CommitRecord, folder: Path) -> None:
        marks = [m for key, m in record.state.watermarks.items() if key.kind is WatermarkKind.OUTPUT]
        seen.append((_written(record), min(marks, default=0) / 1e6))

    record = run_stream(build, on_commit=look, limits=EpochLimits(5.0, 100_000, 64 << 20))
    assert _written(record) == BACKLOG
    reading = [(written, mark) for written, mark in seen if 0 < mark <= BACKLOG]
    assert len(reading) > BACKLOG // BURST // 2
    assert all(written >= mark for written, mark in reading)
    assert all(written <= mark + BURST for written, mark in reading), (
        "an epoch reads no more than the source gives"
    )


class FewFn(beam.DoFn):
    """Emits as many elements as an epoch may read, then defers the rest."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: str, tracker: Any = beam.DoFn.RestrictionParam(Endless())) -> Iterator[str]:
        first = tracker.current_restriction().start
        for number in range(first, first + FEW):
            if not tracker.try_claim(number):
                return
            yield element
        tracker.defer_remainder()


FEW, EPOCHS = 5, 6
reached: list[str] = []


def arrive(element: str) -> None:
    reached.append(element)


def test_an_epoch_ends_when_its_task_has_read_enough_and_the_other_elements_come_first_in_the_next() -> None:
    reached.clear()
    counts: list[Counter[str]] = []

    def build(p: beam.Pipeline) -> None:
        read = p | beam.Create(["a", "b", "c"]) | beam.ParDo(FewFn())
        _ = read | beam.Reshuffle() | beam.Map(arrive)

    def look(record: CommitRecord, folder: Path) -> None:
        counts.append(Counter(reached))

    limits = EpochLimits(5.0, FEW, 64 << 20)
    run_stream(build, 1, look, limits=limits, stop=lambda record: len(reached) >= FEW * EPOCHS)
    read = [count for count in counts if count]
    assert [count.total() for count in read] == [FEW * (number + 1) for number in range(EPOCHS)]
    assert all(max(count.values()) - min(count[name] for name in "abc") <= FEW for count in read)
