"""The driver's part of an epoch, with tasks that do nothing: work in the record is given to the epoch or stays."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
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
from penstock.runner.protocol.errors import EpochAbortedError
from penstock.runner.protocol.frames import Frame, Kind
from penstock.runner.protocol.record import CommitRecord, EpochState, Publication, Residual
from penstock.runner.spark.engine import check_reports
from penstock.runner.tasks.epoch import EpochInput, EpochLimits, Failure, ResidualReport, TaskReport


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
    """Notes what it should run; the tasks report what they are given here."""

    def __init__(self, *reports: TaskReport) -> None:
        self.ran: list[EpochInput] = []
        self.described: list[str] = []
        self.finalized: list[frozenset[str]] = []
        self.reports = list(reports)

    def run(self, epoch: EpochInput, description: str, group: str) -> list[TaskReport]:
        self.ran.append(epoch)
        self.described.append(description)
        return self.reports

    def finalize(self, epoch: int, nonces: frozenset[str], partitions: int, group: str) -> frozenset[str]:
        self.finalized.append(nonces)
        return frozenset(sorted(nonces)[:1])


def _read(streaming: bool) -> Plan:
    pipeline = beam.Pipeline(runner=PySparkRunner())
    _ = pipeline | beam.Impulse() | "Read" >> beam.ParDo(_ReadFn())
    environment = PySparkRunner().default_environment(pipeline.options)
    return build_plan(pipeline.to_runner_api(default_environment=environment), streaming=streaming)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """`Read` alone."""
    return _read(streaming=True)


def _driver(
    plan: Plan, engine: _NoTasks, now_us: Callable[[], int], pause: Callable[[float], None] = lambda s: None
) -> Driver:
    return Driver(
        plan,
        engine,
        Residuals(PlanContext(plan)),
        partitions=2,
        limits=EpochLimits(0.1, 100, 1 << 20),
        state_folder="",
        name="test",
        now_us=now_us,
        pause=pause,
    )


def test_a_residual_that_becomes_due_during_planning_is_not_lost(plan: Plan) -> None:
    due = {f"1.{n}": 3 * n for n in range(200)}
    residuals = tuple(Residual("Read", name, b"", 0, at) for name, at in due.items())
    record = CommitRecord(1, 1, "writer", None, 0, "epoch", 1, EpochState(residuals=residuals))
    engine, ticking = _NoTasks(), itertools.count(10)
    state = _driver(plan, engine, lambda: next(ticking))(record, Attempt("job", 1, 2, "a"))
    assert state is not None
    running = [residual.element_id for task in engine.ran[0].inputs for residual in task.residuals]
    assert sorted([*running, *(r.element_id for r in state.residuals)]) == sorted(due)


def _after_one_epoch(plan: Plan, engine: _NoTasks) -> tuple[Driver, CommitRecord]:
    """A driver that has run an epoch and has nothing to do, and the record that it committed."""
    driver = _driver(plan, engine, lambda: 50)
    state = driver(
        CommitRecord(1, 1, "writer", None, 0, "initial", 0, EpochState()), Attempt("job", 1, 2, "a")
    )
    assert state is not None
    waiting = replace(state, residuals=(Residual("Read", "1.0", b"", 0, 100),), done=False)
    return driver, CommitRecord(2, 1, "writer", None, 0, "epoch", 1, waiting)


def test_a_driver_without_work_runs_the_bundle_finalizers_of_its_last_commit_once(plan: Plan) -> None:
    engine = _NoTasks(
        TaskReport("a", has_finalizers=True), TaskReport("b"), TaskReport("c", has_finalizers=True)
    )
    driver, record = _after_one_epoch(plan, engine)
    for _ in range(2):
        assert driver(record, Attempt("job", 1, 3, "b")) is None
    assert engine.finalized == [{"a", "c"}, {"c"}], (
        "the second round is for the task that the first one missed"
    )


def test_bundle_finalizers_of_an_epoch_that_was_not_committed_do_not_run(plan: Plan) -> None:
    engine = _NoTasks(TaskReport("a", has_finalizers=True))
    driver, record = _after_one_epoch(plan, engine)
    driver.finalize_bundles(replace(record, number=1))
    assert engine.finalized == []


@pytest.mark.parametrize(("streaming", "description"), [(True, "test: epoch 2"), (False, "test")])
def test_a_batch_does_not_mention_epochs(streaming: bool, description: str) -> None:
    engine = _NoTasks()
    _after_one_epoch(_read(streaming), engine)
    assert engine.described == [description]


def test_the_note_of_an_error_names_the_step_and_no_epoch(plan: Plan) -> None:
    failure = Failure("ValueError: no", "Traceback", "Parse", pickle.dumps(ValueError("no")))
    with pytest.raises(ValueError, match="no") as raised:
        _after_one_epoch(plan, _NoTasks(TaskReport("a", failure=failure)))
    assert raised.value.__notes__ == ["in Parse; in the worker:\nTraceback"]


def _limits_of_three_epochs(plan: Plan, engine: _NoTasks, *publications: Publication) -> list[int]:
    """Run three epochs, of which the last two have something to publish; return the limits of their tasks."""
    driver = _driver(plan, engine, lambda: 50)
    due = EpochState(residuals=(Residual("Read", "1.0", b"", 0, 0),))
    publishing = replace(due, publications=publications)
    for number, state in enumerate([due, publishing, publishing], 1):
        driver(
            CommitRecord(number, 1, "writer", None, 0, "epoch", 1, state),
            Attempt("job", 1, number + 1, "a"),
        )
    return [epoch.limits.max_records for epoch in engine.ran]


def test_the_epoch_after_a_slow_one_reads_less(plan: Plan) -> None:
    engine = _NoTasks(TaskReport("a", records_read=100), TaskReport("b", level=1, working_seconds=4.0))
    first, second, third = _limits_of_three_epochs(plan, engine)
    assert first == 100
    assert second == third == pytest.approx(10, abs=1)


def test_slow_publications_limit_the_epochs_that_follow(plan: Plan) -> None:
    engine = _NoTasks(TaskReport("a", records_read=100, publishing_seconds=4.0))
    first, second, third = _limits_of_three_epochs(plan, engine, Publication("Send", b""))
    assert first == second == 100
    assert third == pytest.approx(10, abs=1)


def test_an_epoch_knows_which_processes_have_the_streams_of_its_inputs(plan: Plan) -> None:
    rest = ResidualReport("Read", "1.0", b"", 0, 0)
    reports = [
        TaskReport("a", process="B", input_index=1, residuals=[rest]),
        TaskReport("b", process="A", input_index=0),
        TaskReport("c", level=1, process="B", input_index=0),
    ]
    engine = _NoTasks(*reports)
    driver = _driver(plan, engine, lambda: 50)
    due = EpochState(residuals=(Residual("Read", "1.0", b"", 0, 0),))
    for number in (1, 2):
        driver(
            CommitRecord(number, 1, "writer", None, 0, "epoch", 1, due), Attempt("job", 1, number + 1, "a")
        )
    assert [epoch.owners for epoch in engine.ran] == [(), ("", "B")], "nothing of input 0 remains to be read"


def test_a_task_that_publishes_is_not_the_one_that_reads(plan: Plan) -> None:
    engine = _NoTasks(
        TaskReport("a", process="A", input_index=0, residuals=[ResidualReport("Read", "1.0", b"", 0, 0)]),
        TaskReport("b", process="B", input_index=1),
    )
    _limits_of_three_epochs(plan, engine, Publication("Send", b""))
    inputs = engine.ran[1].inputs
    assert [(len(each.residuals), len(each.publications)) for each in inputs] == [(1, 0), (0, 1)]
    assert engine.ran[2].owners == ("A", "B"), "the connection to the target stays in its process"


@pytest.mark.parametrize("indices", [(0, 0), (1, 1)])
def test_tasks_that_ran_one_input_twice_void_the_epoch(indices: tuple[int, int]) -> None:
    frames = [
        Frame(
            Kind.CONTROL, 0, partition, f"{partition:016d}", 0, 0, pickle.dumps(TaskReport(input_index=index))
        )
        for partition, index in enumerate(indices)
    ]
    with pytest.raises(EpochAbortedError, match="did not run each input once"):
        check_reports(frames, [2])
