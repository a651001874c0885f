"""Output leaves a task while its stages still make it, so a worker's memory does not grow with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics as BeamMetrics
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.attempt import Attempt
from penstock.runner import PySparkRunner
from penstock.runner.metrics import Metrics, deserialized
from penstock.runner.planning.graph import build_plan
from penstock.runner.planning.plan import Origin, Plan
from penstock.runner.protocol.frames import FRAME_BYTES, Frame, Kind
from penstock.runner.tasks.epoch import EpochInput, EpochLimits, TaskInput
from penstock.runner.tasks.task import Packet, run_level
from tests.simulation.batch import run_batch

VALUE_BYTES = 100_000
VALUES = 200
AHEAD = 3 * FRAME_BYTES // VALUE_BYTES
"""How many values may have been made of which no frame has left yet."""

made: list[int] = []
ended: list[str] = []


class MakeFn(beam.DoFn):
    """Makes many big values of one element; says when it ended."""

    def process(self, element: int) -> Iterator[bytes]:
        try:
            for number in range(VALUES):
                made.append(number)
                yield bytes(VALUE_BYTES)
        finally:
            ended.append("make")


def plan_of(build: Callable[[beam.Pipeline], Any]) -> Plan:
    pipeline = beam.Pipeline(runner=PySparkRunner(), options=PipelineOptions([]))
    build(pipeline)
    environment = PySparkRunner().default_environment(pipeline.options)
    return build_plan(pipeline.to_runner_api(default_environment=environment), streaming=False)


def first_level(plan: Plan) -> Iterator[Packet]:
    """Run the only task of level 0, with all Impulses."""
    impulses = tuple(stage.step for stage in plan.stages if stage.origin is Origin.IMPULSE)
    epoch = EpochInput(
        attempt=Attempt("job", 1, 2, "nonce"),
        partitions=1,
        limits=EpochLimits(1.0, 1000, 1 << 20),
        inputs=(TaskInput(impulses=impulses),),
        watermarks={},
        state={},
    )
    made.clear()
    ended.clear()
    return run_level(plan, 0, 0, epoch, ())


def straight(pipeline: beam.Pipeline) -> None:
    _ = pipeline | beam.Impulse() | beam.ParDo(MakeFn()) | beam.Reshuffle() | beam.Map(len)


def through_a_flatten(pipeline: beam.Pipeline) -> None:
    other = pipeline | "other" >> beam.Impulse() | "empty" >> beam.FlatMap(lambda _: [])
    big = pipeline | beam.Impulse() | beam.ParDo(MakeFn())
    pairs = (big, other) | beam.Flatten() | beam.Map(lambda value: (len(value), value))
    _ = pairs | beam.GroupByKey() | "read" >> beam.Map(len)
    _ = (big, other) | "again" >> beam.Flatten() | beam.Reshuffle() | "count" >> beam.Map(len)


@pytest.mark.parametrize("build", [straight, through_a_flatten])
def test_a_task_sends_output_while_its_element_is_still_processed(
    build: Callable[[beam.Pipeline], Any],
) -> None:
    left = 0
    for _, data in first_level(plan_of(build)):
        frame = Frame.unpack(data)
        left += len(frame.payload) if frame.kind is Kind.DATA else 0
        assert len(made) * VALUE_BYTES - left < AHEAD * VALUE_BYTES
    assert len(made) == VALUES
    assert left >= VALUES * VALUE_BYTES


def test_a_task_that_spark_abandons_ends_the_dofn_that_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    packets = first_level(plan_of(straight))
    next(packets)
    assert not ended
    with caplog.at_level(logging.ERROR):
        packets.close()
    assert ended == ["make"]
    assert not caplog.records, "it is not an error of the DoFn"
    assert len(made) < VALUES


class CountFn(beam.DoFn):
    """Counts an element before and after it has put it out."""

    def __init__(self, name: str) -> None:
        self._before, self._after = (
            BeamMetrics.counter("test", f"{name} {when}") for when in ("before", "after")
        )

    def process(self, element: bytes) -> Iterator[bytes]:
        self._before.inc()
        yield element
        self._after.inc()


def test_metrics_belong_to_their_step_when_one_stage_feeds_another_in_the_same_task() -> None:
    def build(pipeline: beam.Pipeline) -> None:
        big = pipeline | beam.Impulse() | beam.ParDo(MakeFn()) | "first" >> beam.ParDo(CountFn("first"))
        other = pipeline | "other" >> beam.Impulse() | "empty" >> beam.FlatMap(lambda _: [])
        both = (big, other) | beam.Flatten() | "second" >> beam.ParDo(CountFn("second"))
        _ = both | beam.Reshuffle() | beam.Map(len)
        _ = (big, other) | "again" >> beam.Flatten() | "third" >> beam.ParDo(CountFn("third"))

    counters = Metrics(deserialized(run_batch(build).state.metrics)).query()["counters"]
    counted = {counter.key.metric.name: counter.committed for counter in counters}
    assert counted == dict.fromkeys(counted, VALUES)
    assert len(counted) == 6
    assert all(counter.key.metric.name.split()[0] == counter.key.step for counter in counters)
