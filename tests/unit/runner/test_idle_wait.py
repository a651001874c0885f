"""A task of a quiet pipeline waits long, unless another task of its epoch has data."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core

from penstock.attempt import Attempt, DriverToken
from penstock.pace import POLL_SECONDS
from penstock.runner import PySparkRunner
from penstock.runner.harness.idle_wait import IdleWait, NoOtherReaders, Said
from penstock.runner.planning.graph import build_plan
from penstock.runner.planning.plan import Origin, Plan
from penstock.runner.protocol.record import Residual
from penstock.runner.spark.input_exchange import input_of
from penstock.runner.spark.other_readers import other_readers
from penstock.runner.tasks.epoch import EpochInput, EpochLimits, TaskInput
from penstock.runner.tasks.task import run_level
from tests.simulation.inprocess import InProcessEngine

SOON, LATE = 10.0, 30.0


class Others:
    """Other readers, as a test sets them."""

    exist = True

    def __init__(self) -> None:
        self.hear = True
        self.word: Said | None = None
        self.told: list[Said] = []

    def all_hear(self) -> bool:
        return self.hear

    def say(self, what: Said) -> None:
        self.told.append(what)

    def heard(self) -> Said | None:
        return self.word


def test_the_only_task_that_reads_waits_long_in_a_quiet_epoch() -> None:
    assert IdleWait(SOON, LATE, clock=lambda: 0.0).end == LATE
    assert IdleWait(SOON, None, clock=lambda: 0.0).end == SOON
    assert IdleWait(SOON, LATE).poll_seconds > POLL_SECONDS


def test_data_at_another_task_ends_the_wait_at_once() -> None:
    others, now = Others(), [0.0]
    wait = IdleWait(SOON, LATE, others, lambda: now[0])
    assert wait.end > 5.0
    others.word = Said.READ
    now[0] = 5.0
    assert wait.end == 5.0
    now[0] = 20.0
    assert wait.end <= 20.0


def test_a_task_waits_long_only_if_all_tasks_that_read_hear_it() -> None:
    others = Others()
    others.hear = False
    wait = IdleWait(SOON, LATE, others, lambda: SOON)
    assert wait.end == SOON
    others.hear = True
    assert wait.end == SOON, "it decides once"
    assert IdleWait(SOON, LATE, others, lambda: SOON).end == LATE


def test_a_task_does_not_wait_long_for_a_task_that_has_ended() -> None:
    others = Others()
    others.word = Said.ENDED
    assert IdleWait(SOON, LATE, others, lambda: SOON).end == SOON


def test_a_task_says_once_what_it_has_read() -> None:
    others = Others()
    wait = IdleWait(SOON, LATE, others)
    for _ in range(3):
        wait.read_something()
    wait.ended()
    assert others.told == [Said.READ]
    IdleWait(SOON, LATE, others).ended()
    assert others.told == [Said.READ, Said.ENDED]
    IdleWait(SOON, None, others).read_something()
    assert len(others.told) == 2, "in an epoch that is not quiet no task listens"


EPOCH = EpochInput(
    Attempt("job", 1, 7, "first", (DriverToken(1, "token"),)),
    partitions=2,
    limits=EpochLimits(0.2, 1000, 1 << 20, idle_seconds=0.2, quiet_seconds=60.0),
    inputs=tuple(TaskInput(residuals=(Residual("Read", f"1.{n}", b"", 0, 0),)) for n in range(2)),
    watermarks={},
    state={},
    owners=("A", "B"),
)


def test_tasks_of_one_executor_hear_each_other(tmp_path: Path) -> None:
    first, second = (other_readers(index, EPOCH, folder=str(tmp_path)) for index in range(2))
    input_of(0, EPOCH, "A", folder=str(tmp_path))
    assert not first.all_hear(), "the other one has not begun, perhaps it runs on another executor"
    input_of(1, EPOCH, "B", folder=str(tmp_path))
    assert first.all_hear()
    assert second.heard() is None
    first.say(Said.READ)
    assert second.heard() is Said.READ
    second.say(Said.ENDED)
    assert first.heard() is Said.READ


def test_what_was_said_in_another_attempt_does_not_count(tmp_path: Path) -> None:
    other_readers(0, EPOCH, folder=str(tmp_path)).say(Said.READ)
    again = replace(EPOCH, attempt=replace(EPOCH.attempt, nonce="second"))
    assert other_readers(1, again, folder=str(tmp_path)).heard() is None


def test_a_task_without_others_that_read_needs_no_file(tmp_path: Path) -> None:
    alone = replace(EPOCH, inputs=(EPOCH.inputs[0], TaskInput()))
    assert isinstance(other_readers(0, alone, folder=str(tmp_path)), NoOtherReaders)
    hurried = replace(EPOCH, limits=replace(EPOCH.limits, quiet_seconds=0.0))
    assert isinstance(other_readers(0, hurried, folder=str(tmp_path)), NoOtherReaders)


arrived = {"first": threading.Event(), "second": threading.Event()}


class Endless(core.RestrictionProvider):
    def initial_restriction(self, element: str) -> OffsetRange:
        return OffsetRange(0, 1 << 40)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: str, restriction: OffsetRange) -> int:
        return 1


class WaitFn(beam.DoFn):
    """Claims positions, and emits one element when data has arrived for it."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: str, tracker: Any = beam.DoFn.RestrictionParam(Endless())) -> Iterator[str]:
        position = tracker.current_restriction().start
        while tracker.try_claim(position):
            position += 1
            if arrived[element].wait(0.01):
                yield element
                tracker.defer_remainder()
                return


def read(pipeline: beam.Pipeline) -> None:
    _ = pipeline | beam.Create(["first", "second"], reshuffle=False) | "Read" >> beam.ParDo(WaitFn())


def test_the_data_of_one_task_ends_the_epoch_of_all(tmp_path: Path) -> None:
    plan, epoch = _second_epoch()
    ended: list[int] = []

    def task(partition: int) -> None:
        index = input_of(partition, epoch, "AB"[partition], folder=str(tmp_path))
        others = other_readers(index, epoch, folder=str(tmp_path))
        list(run_level(plan, 0, partition, epoch, (), input_index=index, others=others))
        ended.append(partition)

    threads = [threading.Thread(target=task, args=(partition,), daemon=True) for partition in range(2)]
    for thread in threads:
        thread.start()
    threads[0].join(1.0)
    assert not ended, "a quiet epoch is longer than the others"
    arrived["second"].set()
    for thread in threads:
        thread.join(30.0)
    assert sorted(ended) == [0, 1]


def _second_epoch() -> tuple[Plan, EpochInput]:
    """Return a plan that reads two elements, and an epoch that reads one of them in each task."""
    pipeline = beam.Pipeline(runner=PySparkRunner(), options=PipelineOptions([]))
    read(pipeline)
    environment = PySparkRunner().default_environment(pipeline.options)
    plan = build_plan(pipeline.to_runner_api(default_environment=environment), streaming=True)
    impulses = tuple(stage.step for stage in plan.stages if stage.origin is Origin.IMPULSE)
    first = replace(EPOCH, inputs=(TaskInput(impulses=impulses), TaskInput()), owners=())
    carried = [each for report in InProcessEngine(plan).run(first, "", "") for each in report.carried]
    inputs = tuple(
        TaskInput(residuals=(Residual(each.step, f"1.{n}", each.element, 0, 0),))
        for n, each in enumerate(carried)
    )
    return plan, replace(EPOCH, inputs=inputs)


@pytest.fixture(autouse=True)
def nothing_has_arrived() -> None:
    for event in arrived.values():
        event.clear()
