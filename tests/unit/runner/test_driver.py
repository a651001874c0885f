"""The driver's part of an epoch, with tasks that do nothing: what the record holds goes into the epoch or stays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.core import RestrictionProvider

from penstock.attempt import Attempt
from penstock.runner import PySparkRunner
from penstock.runner.driver.driver import Driver
from penstock.runner.driver.residuals import Residuals
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.graph import build_plan
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.record import CommitRecord, EpochState, Residual
from penstock.runner.tasks.epoch import EpochInput, EpochLimits, TaskReport


class _Ranges(RestrictionProvider):  # type: ignore[misc, unused-ignore]
    def initial_restriction(self, element: Any) -> OffsetRange:
        return OffsetRange(0, 1)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return 1


class _ReadFn(beam.DoFn):
    @beam.DoFn.unbounded_per_element()
    def process(self, element: Any, tracker: Any = beam.DoFn.RestrictionParam(_Ranges())) -> Iterator[Any]:
        yield element


class _NoTasks:
    """Notes what it is to run."""

    def __init__(self) -> None:
        self.ran: list[EpochInput] = []

    def run(self, epoch: EpochInput, description: str, group: str) -> list[TaskReport]:
        self.ran.append(epoch)
        return []


@pytest.fixture(scope="module")
def plan() -> Plan:
    """`Read` alone."""
    pipeline = beam.Pipeline(runner=PySparkRunner())
    _ = pipeline | beam.Impulse() | "Read" >> beam.ParDo(_ReadFn())
    environment = PySparkRunner().default_environment(pipeline.options)
    return build_plan(pipeline.to_runner_api(default_environment=environment), streaming=True)


def _driver(plan: Plan, engine: _NoTasks, now_us: Callable[[], int]) -> Driver:
    return Driver(
        plan,
        engine,
        Residuals(PlanContext(plan)),
        partitions=2,
        limits=EpochLimits(0.1, 100, 1 << 20),
        state_folder="",
        name="test",
        now_us=now_us,
    )


def test_no_residual_is_lost_that_falls_due_while_the_epoch_is_laid_out(plan: Plan) -> None:
    due = {f"1.{n}": 3 * n for n in range(200)}
    residuals = tuple(Residual("Read", name, b"", 0, at) for name, at in due.items())
    record = CommitRecord(1, 1, "writer", None, 0, "epoch", 1, EpochState(residuals=residuals))
    engine, ticking = _NoTasks(), itertools.count(10)
    state = _driver(plan, engine, lambda: next(ticking))(record, Attempt("job", 1, 2, "a"))
    assert state is not None
    running = [residual.element_id for task in engine.ran[0].inputs for residual in task.residuals]
    assert sorted([*running, *(r.element_id for r in state.residuals)]) == sorted(due)
