"""The levels below the readers run in the driver if they have nothing to do, and on workers otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import TimerSpec, on_timer

from penstock.attempt import Attempt
from penstock.runner import PySparkRunner
from penstock.runner.driver.epoch_input import EpochInputs
from penstock.runner.driver.pacing import Pacing
from penstock.runner.driver.residuals import Residuals
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.graph import build_plan
from penstock.runner.planning.plan import Origin, Plan
from penstock.runner.planning.worker_logging import WorkerLogging
from penstock.runner.protocol.frames import Frame
from penstock.runner.protocol.record import EarliestTimers, EpochState
from penstock.runner.spark.engine import check_reports
from penstock.runner.store.keys import KEY_GROUPS
from penstock.runner.tasks.epoch import QUIET_BYTES, EpochInput, EpochLimits, StepState, TaskInput, TaskReport
from penstock.runner.tasks.quiet_levels import QuietLevels, frames_by_target
from penstock.runner.tasks.task import Packet, run_level

PARTITIONS = 3
ATTEMPT = Attempt("job", 1, 2, "nonce")


class LaterFn(beam.DoFn):
    """Has a timer of the processing time."""

    TIMER = TimerSpec("later", TimeDomain.REAL_TIME)

    def process(self, element: tuple[int, int], timer: Any = beam.DoFn.TimerParam(TIMER)) -> Iterator[Any]:
        timer.set(1.0)
        yield element

    @on_timer(TIMER)
    def fire(self) -> None:
        pass


class RefuseFn(beam.DoFn):
    def process(self, element: Any) -> Iterator[Any]:
        raise ValueError("refused")
        yield


def plan_of(first: beam.DoFn) -> Plan:
    """A plan of several levels below `first`."""
    pipeline = beam.Pipeline(runner=PySparkRunner(), options=PipelineOptions([]))
    pairs = pipeline | beam.Impulse() | beam.ParDo(first) | beam.WithKeys(1)
    _ = pairs | beam.Reshuffle() | "later" >> beam.ParDo(LaterFn()) | beam.GroupByKey() | beam.Values()
    environment = PySparkRunner().default_environment(pipeline.options)
    return build_plan(pipeline.to_runner_api(default_environment=environment), streaming=True)


class PassFn(beam.DoFn):
    def process(self, element: bytes) -> Iterator[int]:
        yield len(element)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of(PassFn())


class Workers:
    """Runs levels as workers would, in this process; notes which."""

    def __init__(self, plan: Plan, epoch: EpochInput) -> None:
        self._plan, self._epoch = plan, epoch
        self.ran: list[range] = []

    def collect(self, levels: range, packets: Sequence[Packet]) -> list[Packet]:
        self.ran.append(levels)
        sent = list(packets)
        for level in levels:
            inboxes = frames_by_target(sent, PARTITIONS)
            sent = [
                packet
                for partition, inbox in enumerate(inboxes)
                for packet in run_level(self._plan, level, partition, self._epoch, iter(inbox))
            ]
        return sent

    def quiet(self) -> list[TaskReport]:
        """Run the epoch as one that may be quiet."""
        return self._reports(QuietLevels(self._plan).run(self._epoch, self.collect))

    def busy(self) -> list[TaskReport]:
        """Run all levels at once."""
        return self._reports(self.collect(range(self._plan.depth), []))

    def _reports(self, packets: list[Packet]) -> list[TaskReport]:
        frames = [Frame.unpack(data) for _, data in packets]
        return check_reports(frames, [PARTITIONS] * self._plan.depth)


def epoch_of(plan: Plan, *, data: bool = False, state: dict[str, StepState] | None = None) -> EpochInput:
    """An epoch of which one task gets an impulse, if there is `data`."""
    impulses = tuple(stage.step for stage in plan.stages if stage.origin is Origin.IMPULSE)
    return EpochInput(
        attempt=ATTEMPT,
        partitions=PARTITIONS,
        limits=EpochLimits(1.0, 1000, 1 << 20, is_quiet=True),
        inputs=tuple(
            TaskInput(impulses=impulses if data and not index else ()) for index in range(PARTITIONS)
        ),
        watermarks={},
        state=state or {},
    )


def without_nonces(reports: Sequence[TaskReport]) -> list[TaskReport]:
    """The reports without what differs between two runs of an epoch."""
    return [
        replace(
            report,
            nonce="",
            inputs=[(attempt.level, attempt.partition) for attempt in report.inputs],
            **dict.fromkeys(("working_seconds", "reading_seconds", "publishing_seconds"), 0.0),
        )
        for report in reports
    ]


def test_an_epoch_that_read_nothing_needs_workers_for_the_first_level_only(plan: Plan) -> None:
    assert plan.depth > 2
    workers = Workers(plan, epoch_of(plan))
    quiet = workers.quiet()
    assert workers.ran == [range(1)]
    assert without_nonces(quiet) == without_nonces(workers.busy())
    assert len({report.nonce for report in quiet}) == PARTITIONS * plan.depth


def test_what_was_read_goes_through_workers(plan: Plan) -> None:
    workers = Workers(plan, epoch_of(plan, data=True))
    quiet = workers.quiet()
    assert workers.ran == [range(1), range(1, plan.depth)]
    assert [sorted(report.timers) for report in quiet] == [sorted(report.timers) for report in workers.busy()]
    assert any(report.timers for report in quiet), "the element has set a timer"


def test_a_timer_that_is_due_fires_on_a_worker(plan: Plan) -> None:
    (step,) = (stage.state for stage in plan.stages if "later" in stage.label)
    timers = EarliestTimers(step, 0, KEY_GROUPS - 1, None, 1, None)
    workers = Workers(plan, epoch_of(plan, state={step: StepState(timers=(timers,))}))
    workers.quiet()
    assert workers.ran == [range(1), range(1, plan.depth)]
    later = replace(timers, processing_us=1 << 60)
    workers = Workers(plan, epoch_of(plan, state={step: StepState(timers=(later,))}))
    workers.quiet()
    assert workers.ran == [range(1)]


def test_a_reader_that_fails_fails_the_epoch() -> None:
    plan = plan_of(RefuseFn())
    (report,) = Workers(plan, epoch_of(plan, data=True)).quiet()
    assert report.failure is not None
    assert "refused" in str(report.failure)


def test_log_records_of_the_driver_are_not_those_of_a_worker(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = replace(plan, logging=replace(plan.logging, to_driver=True))
    collected: list[tuple[str, bool]] = []
    where = ["driver"]

    def collect_logs(wanted: WorkerLogging, into: list[Any]) -> AbstractContextManager[None]:
        collected.append((where[-1], wanted.to_driver))
        return nullcontext()

    monkeypatch.setattr("penstock.runner.tasks.task.collected_logs", collect_logs)
    workers = Workers(told, epoch_of(told))

    def collect(levels: range, packets: Sequence[Packet]) -> list[Packet]:
        where.append("worker")
        sent = workers.collect(levels, packets)
        where.pop()
        return sent

    QuietLevels(told).run(epoch_of(told), collect)
    assert set(collected) == {("worker", True), ("driver", False)}


@pytest.mark.parametrize(
    ("without_data", "quiet_seconds", "is_quiet"), [(1, 1.5, False), (2, 0.0, False), (2, 1.5, True)]
)
def test_a_quiet_epoch_reads_little(
    plan: Plan, without_data: int, quiet_seconds: float, is_quiet: bool
) -> None:
    pacing = Pacing(0.5)
    for _ in range(without_data):
        pacing.observe(0)
    inputs = EpochInputs(
        plan,
        Residuals(PlanContext(plan)),
        partitions=PARTITIONS,
        limits=EpochLimits(1.0, 1000, 64 << 20),
        state_folder="",
    )
    epoch = inputs.make(
        ATTEMPT,
        EpochState(),
        (),
        (),
        event=None,
        owners=(),
        committed_nonces=frozenset(),
        test_clock_us=None,
        publication_inputs=(),
        pacing=pacing,
        quiet_seconds=quiet_seconds,
    )
    assert epoch.limits.is_quiet is is_quiet
    assert epoch.limits.max_bytes == (QUIET_BYTES if is_quiet else 64 << 20)
