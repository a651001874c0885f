"""`Driver` runs single epochs of a plan: `protocol.loop.run_epochs` calls it for each try.

    record ─► Schedule: is there work? ─► EpochInputs ─► Engine (Spark) ─► NextStates ─► state of the next record

An epoch depends on the record and on the data that it reads, and on nothing that the driver remembers. The driver
remembers only the last epoch that it ran, for metrics and for bundle finalizers. A driver that takes over after a crash
continues without that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.attempt import Attempt
from penstock.parked import TableRequest
from penstock.runner.driver import schedule as due_rules
from penstock.runner.driver.compatibility import state_for_plan
from penstock.runner.driver.cost_meter import EpochCostMeter
from penstock.runner.driver.epoch_input import EpochInputs
from penstock.runner.driver.merge_reports import raise_failure
from penstock.runner.driver.next_state import NextStates
from penstock.runner.driver.pacing import Pacing
from penstock.runner.driver.parked_tables import after_requests
from penstock.runner.driver.publication_shares import PublicationShares
from penstock.runner.driver.publish_on_driver import DriverPublisher
from penstock.runner.driver.reading_limit import ReadingLimit
from penstock.runner.driver.residuals import Residuals
from penstock.runner.driver.schedule import Schedule
from penstock.runner.driver.state_schema import state_schemas
from penstock.runner.driver.teststream import TestStreamEvent, TestStreamSource
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.record import CommitRecord, EpochState, Residual
from penstock.runner.tasks.epoch import EpochInput, EpochLimits, TaskReport
from penstock.runner.tasks.worker_logs import show_logs
from penstock.runner.tasks.worker_warnings import show_warnings
from penstock.timeline import trace

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 0.2
"""Longest pause of a driver without work. It then checks again, and notices a stop or a newer driver."""

_FINALIZE_ROUNDS = 3
"""How often the driver looks for worker processes that have not run their bundle finalizers."""


class Engine(Protocol):
    """Runs the tasks of an epoch somewhere."""

    def run(self, epoch: EpochInput, description: str, group: str) -> list[TaskReport]:
        """Run all levels and return the reports of one consistent run."""

    def finalize(self, epoch: int, nonces: frozenset[str], partitions: int, group: str) -> frozenset[str]:
        """Run the bundle finalizers of these task attempts of an epoch; return the nonces of those that ran.

        `partitions` tasks look for them, each in the process in which it happens to run.
        """


@dataclass(frozen=True, slots=True)
class _LastEpoch:
    """The last epoch that this driver ran. It is committed if the record has its number.

    Tasks of the next epoch get the `nonces` of its tasks, so that workers run the bundle finalizers
    of bundles that were committed. `unfinalized` are the nonces of tasks that have such finalizers. `owners` is by
    input of the epoch the process that has run it, or "" if it has neither read nor published.
    """

    number: int = 0
    job: str = ""
    nonces: frozenset[str] = frozenset()
    unfinalized: frozenset[str] = frozenset()
    metrics: tuple[bytes, ...] = ()
    owners: tuple[str, ...] = ()

    @classmethod
    def of(cls, epoch: EpochInput, reports: Sequence[TaskReport]) -> _LastEpoch:
        """Return what the driver remembers of an epoch whose tasks all succeeded."""
        return cls(
            number=epoch.attempt.epoch,
            job=epoch.attempt.job,
            nonces=frozenset(report.nonce for report in reports),
            unfinalized=frozenset(report.nonce for report in reports if report.has_finalizers),
            metrics=tuple(info for report in reports for info in report.metrics),
            owners=tuple(
                # It has the streams of its reads, or the connections to the targets of its publications.
                report.process if report.residuals or epoch.inputs[report.input_index].publications else ""
                for report in sorted(reports, key=lambda report: report.input_index)
                if report.level == 0
            ),
        )


class Driver:
    """Runs single epochs of a plan.

    `staging` is a folder or URL that sinks are offered for staged files.
    `task_slots` is the number of tasks that run at the same time; None means `partitions`.
    `dropped` are steps whose state is deleted (`--drop_state`). `draining` says whether a drain was requested.
    `table_requests` returns the requests about parked tables; it is asked only if a record has such.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        residuals: Residuals,
        *,
        partitions: int,
        limits: EpochLimits,
        state_folder: str,
        name: str,
        staging: str | None = None,
        task_slots: int | None = None,
        dropped: Collection[str] = (),
        draining: Callable[[], bool] = lambda: False,
        table_requests: Callable[[], Collection[TableRequest]] = lambda: (),
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        pause: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._residuals = residuals
        self._name = name
        self._dropped = frozenset(dropped)
        self._draining = draining
        self._table_requests = table_requests
        self._now_us = now_us
        self._pause = pause
        self._monotonic = monotonic
        self._schedule = Schedule(plan)
        self._test_stream = TestStreamSource(residuals.context)
        self._inputs = EpochInputs(
            plan,
            residuals,
            partitions=partitions,
            limits=limits,
            state_folder=state_folder,
            staging=staging,
        )
        self._on_driver = DriverPublisher(plan, residuals.context, staging)
        self._next_states = NextStates(
            plan, self._schedule, residuals, state_schemas(residuals.context), now_us
        )
        self._last = _LastEpoch()
        self._pacing = Pacing(limits.seconds, hurried=limits.may_end_early)
        self._reading_limit = ReadingLimit(limits.seconds, limits.max_records)
        self._costs = EpochCostMeter(self._reading_limit, task_slots or partitions, monotonic)
        self._shares = PublicationShares(partitions)

    def __call__(self, record: CommitRecord, attempt: Attempt) -> EpochState | None:
        """Run one try of the epoch that follows `record`; None if there is no work yet.

        Raises:
            the user's exception, with the worker's traceback, the step and the element as notes.
            EpochAbortedError: the tasks did not work on the same data.
        """
        # Invariant: until `_run` has succeeded, nothing of this try is kept in `self` except what is measured. The next
        # try starts from the same record and must not see that there was one.
        self._costs.driver_asks_for_work()
        # This runs at each epoch, although only the record of an earlier program can differ: the driver keeps no state
        # between epochs, so it does not know which program has written the record.
        state = state_for_plan(record.state, self._plan, self._dropped)
        drain_begins = self._draining() and not state.draining
        if drain_begins:
            # Truncate only in the epoch that begins the drain. Its record says that the pipeline drains, so a driver
            # that takes over does not truncate again.
            residuals = tuple(self._residuals.truncate(state.residuals))
            state = replace(state, draining=True, residuals=residuals)
        # Read the clock once: with two readings a residual could be neither due nor waiting, and would be lost.
        now_us = self._now_us()
        until_us = due_rules.residuals_due_until_us(now_us, record.committed_us)
        set_back_us = (
            due_rules.timers_set_back_us(state, now_us, record.committed_us)
            # The clock of a TestStream is part of the record and never goes back.
            if self._test_stream.clock_us(state) is None
            else 0
        )
        due, waiting = due_rules.split_by_due(state.residuals, until_us)
        event = self._next_event(state, due)
        requests = self._table_requests() if state.parked else ()
        state = after_requests(state, requests)
        if event is not None:
            state = self._test_stream.apply(state, event)
        elif not (
            drain_begins
            or set_back_us
            or requests
            or self._schedule.needs_epoch(state, due, self._processing_time_us(state))
        ):
            self.finalize_bundles(record)
            self._pause(min(_IDLE_SECONDS, due_rules.seconds_until_next_due(state, self._now_us())))
            return None
        # Rebalance all residuals, also those that wait: a merge of two partitions may need one of each kind. If no
        # residual is due, this epoch reads nothing, and a new division would only change the record.
        if due:
            rebalanced = self._residuals.rebalance(state.residuals, self._inputs.partitions)
            due, waiting = due_rules.split_by_due(rebalanced, until_us)
        # Publish before the tasks run: the same step in the tasks reports the publications as done.
        began = self._monotonic()
        parked = self._on_driver.publish(state, attempt)
        self._costs.driver_published(self._monotonic() - began, tasks_publish=bool(state.publications))
        reports = self._run(record, attempt, state, due, waiting, event, set_back_us, hurried=bool(requests))
        input_complete = self._test_stream.next_event(state) is None and self._schedule.input_complete(state)
        return self._next_states.make(
            state, attempt, reports, waiting, input_complete=input_complete, parked=parked
        )

    def measured(self, epoch: int) -> tuple[bytes, ...]:
        """Return the serialized `MonitoringInfo`s of an epoch; empty unless it is the last one that ran here."""
        return self._last.metrics if self._last.number == epoch else ()

    def timings(self, epoch: int) -> dict[str, float]:
        """Return how an epoch that was just committed spent its seconds; empty unless it ran here last."""
        return self._costs.timings(epoch)

    def finalize_bundles(self, record: CommitRecord) -> None:
        """Run the bundle finalizers of the last epoch now, if it is committed.

        Tasks of the next epoch would run them. Call this if there is no next epoch, because the pipeline ends or has
        nothing to do. Best effort, as in Beam: a worker process that is gone runs nothing, and an error is only logged.
        """
        last = self._last
        if last.number != record.number or not last.unfinalized:
            return
        self._last = replace(last, unfinalized=frozenset())
        left = last.unfinalized
        try:
            # Spark chooses the process of each task, so one round may miss a process.
            for _ in range(_FINALIZE_ROUNDS):
                group = f"penstock-{last.job}"
                # Twice as many tasks as partitions, so that every process is likely to get one.
                left -= self._engine.finalize(last.number, left, 2 * self._inputs.partitions, group)
                if not left:
                    return
            logger.debug("the bundle finalizers of %d tasks did not run", len(left))
        except Exception as error:
            logger.warning("bundle finalizers of the last epoch failed: %s", type(error).__name__)

    def _next_event(self, state: EpochState, due: Sequence[Residual]) -> TestStreamEvent | None:
        """Return the event of a TestStream to apply in this epoch; None while work of earlier epochs is due."""
        clock_us = self._test_stream.clock_us(state)
        if clock_us is None or self._schedule.is_busy(state, due, clock_us):
            return None
        event = self._test_stream.next_event(state)
        if event is None:  # after the last event only the clock can make a timer due, so let it advance
            advance_us = self._schedule.advance_clock_to_next_timer(state, clock_us)
            return None if advance_us is None else TestStreamEvent(advance_us=advance_us)
        return event

    def _processing_time_us(self, state: EpochState) -> int:
        clock_us = self._test_stream.clock_us(state)
        return self._now_us() if clock_us is None else clock_us

    def _quiet_seconds(
        self, state: EpochState, due: Sequence[Residual], waiting: Sequence[Residual]
    ) -> float:
        """Return how long tasks may wait in this epoch if data at one of them ends the wait of all; 0: not at all."""
        if self._test_stream.clock_us(state) is not None:
            return 0.0  # its clock stands still during an epoch
        longest = self._schedule.longest_wait_seconds(
            state, due, waiting, self._inputs.partitions, self._now_us()
        )
        return min(self._pacing.quiet_seconds, longest)

    def _run(
        self,
        record: CommitRecord,
        attempt: Attempt,
        state: EpochState,
        due: Sequence[Residual],
        waiting: Sequence[Residual],
        event: TestStreamEvent | None,
        set_back_us: int,
        *,
        hurried: bool,
    ) -> list[TaskReport]:
        epoch = self._inputs.make(
            attempt,
            state,
            due,
            waiting,
            event=event,
            owners=self._last.owners if due else (),
            committed_nonces=self._last.nonces if self._last.number == record.number else frozenset(),
            test_clock_us=self._test_stream.clock_us(state),
            publication_inputs=self._shares.deal(len(state.publications), self._inputs.readers(due)),
            set_back_us=set_back_us,
            pacing=self._pacing,
            # A person waits for the answer to a request.
            quiet_seconds=0.0 if hurried else self._quiet_seconds(state, due, waiting),
            max_records=self._reading_limit.max_records,
        )
        # A batch pipeline runs its epochs too, but its user never hears of epochs.
        label = f"epoch {attempt.epoch}" if self._plan.streaming else ""
        description = f"{self._name}: {label}" if label else self._name
        trace("started", epoch=attempt.epoch)
        self._costs.tasks_begin()
        reports = self._engine.run(epoch, description, f"penstock-{attempt.job}")
        trace("reported", epoch=attempt.epoch)
        self._costs.tasks_end(attempt.epoch)
        show_logs(record for report in reports for record in report.logs)
        show_warnings(warning for report in reports for warning in report.warnings)
        raise_failure(reports)
        # This comes after `raise_failure`: a failed epoch has no bundles to finalize and no metrics, and must not
        # influence the pace.
        self._pacing.observe(
            sum(report.records_read for report in reports),
            is_behind=any(report.is_behind for report in reports),
        )
        self._costs.tasks_succeeded(reports)
        self._shares.observe(reports, len(state.publications))
        self._last = _LastEpoch.of(epoch, reports)
        if late := sum(report.dropped for report in reports):
            logger.warning(
                "dropped %d elements that arrived after their window%s", late, label and f" ({label})"
            )
        return reports
