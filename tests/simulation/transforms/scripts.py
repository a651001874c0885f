"""Streams of events for transforms that keep state: a script of a TestStream, and what the transform emits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.coders import registry
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from penstock.event import ChangeEvent, Op, Transaction, Version
from penstock.event.coder import ChangeEventCoder  # noqa: F401  (registers the coder)
from penstock.runner.protocol.record import CommitRecord
from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.store.filesystem import LocalFileSystem
from penstock.runner.store.state import StateStore
from tests.simulation.stream import run_stream
from tests.unit.transforms.events import order

Emitted = tuple[Any, int]
"""An element and its timestamp in microseconds."""

seen: list[Emitted] = []


class NoteFn(beam.DoFn):
    """Notes each element with its timestamp."""

    def process(self, element: Any, at: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        seen.append((element, at.micros))
        yield element


def event(
    number: int,
    at_us: int,
    transaction: str = "t",
    sequence: int = 0,
    index: int = 0,
    op: Op = Op.UPDATE,
    **values: Any,
) -> ChangeEvent:
    """Return the change of order `number` that was committed `at_us` microseconds after the epoch."""
    return msgspec.structs.replace(
        order(number, op, **values),
        timestamp=at_us * 1000,
        version=Version(at_us * 1000, transaction, f"{sequence:08d}", index),
        transaction=Transaction(transaction),
    )


def stamped(event: ChangeEvent) -> TimestampedValue:
    return TimestampedValue(event, Timestamp(micros=event.timestamp // 1000))


Step = Sequence[ChangeEvent] | int
"""Events that arrive together, or the watermark in milliseconds."""


def script(steps: Sequence[Step]) -> TestStream:
    stream = TestStream(coder=registry.get_coder(ChangeEvent))
    for step in steps:
        if isinstance(step, int):
            stream.advance_watermark_to(Timestamp(micros=step * 1000))
        else:
            stream.add_elements([stamped(each) for each in step])
    return stream.advance_watermark_to_infinity()


def emitted(transform: Any, steps: Sequence[Step], **options: Any) -> list[Emitted]:
    """Return what a transform emits on PySparkRunner, in one process."""
    seen.clear()
    run_stream(lambda p: p | script(steps) | transform | "Note" >> beam.ParDo(NoteFn()), **options)
    return list(seen)


def emitted_in_batch(transform: Any, events: Sequence[ChangeEvent]) -> list[Emitted]:
    """Return what a transform emits on Beam's FnApiRunner.

    It runs no TestStream: its watermark jumps from the start to the end.
    """
    seen.clear()
    with beam.Pipeline(FnApiRunner(), options=PipelineOptions()) as pipeline:
        stream = pipeline | beam.Create(events) | beam.Map(stamped).with_output_types(ChangeEvent)
        _ = stream | transform | "Note" >> beam.ParDo(NoteFn())
    return list(seen)


def shuffled_with_lag(events: Sequence[ChangeEvent], rng: random.Random, lag_ms: int) -> list[Step]:
    """Return the events in another order with watermarks that follow them, never before an event that is to come."""
    arrivals = sorted(events, key=lambda each: each.timestamp // 1_000_000 + rng.randrange(lag_ms))
    steps: list[Step] = []
    while arrivals:
        count = rng.randrange(1, 4)
        steps.append(arrivals[:count])
        arrivals = arrivals[count:]
        if arrivals and rng.random() < 0.7:
            steps.append(min(each.timestamp for each in arrivals) // 1_000_000)
    # A script's watermark never goes back.
    highest = -1
    kept: list[Step] = []
    for step in steps:
        if not isinstance(step, int) or step > highest:
            kept.append(step)
        if isinstance(step, int):
            highest = max(highest, step)
    return kept


def live_cells(transform: Any, steps: Sequence[Step]) -> list[int]:
    """Return how many entries of state and timers the checkpoint has after each epoch but the last."""
    counts: list[int] = []

    def note(record: CommitRecord, folder: Path) -> None:
        counts.append(
            sum(_live(stage, record, folder) for stage in {r.stage for r in record.state.state_runs})
        )

    emitted(transform, steps, on_commit=note)
    # The window ends with the stream, and with it all state: the last epoch shows nothing about the transform.
    return counts[:-1]


def _live(stage: str, record: CommitRecord, folder: Path) -> int:
    runs = [run for run in record.state.state_runs if run.stage == stage]
    first, last = min(r.first_key_group for r in runs), max(r.last_key_group for r in runs)
    state_folder = Checkpoint.open(f"{folder}/checkpoint").state_folder
    store = StateStore.open(LocalFileSystem(), state_folder, runs, first, last)
    return sum(1 for _ in store.scan(first, last))
