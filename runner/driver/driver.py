"""The driver's part of an epoch: from the last record to the tasks' input, from reports to the next state.

`Driver` is what `protocol.loop.run_epochs` calls for each try. It is a function of the record: nothing that
matters for the next epoch is kept beside it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from penstock.attempt import Attempt
from penstock.runner.driver.compatibility import drop_steps, pending_impulses
from penstock.runner.driver.merge_reports import (
    metrics_after,
    raise_failure,
    runs_after,
    state_of,
    timers_after,
    watermarks_after,
)
from penstock.runner.driver.residuals import Residuals
from penstock.runner.driver.state_schema import state_schemas
from penstock.runner.driver.teststream import Event, Script
from penstock.runner.planning.plan import Plan, Routing
from penstock.runner.protocol.record import (
    CommitRecord,
    EpochState,
    Publication,
    Residual,
    WatermarkKey,
)
from penstock.runner.tasks import worker_warnings as warned
from penstock.runner.tasks.epoch import (
    BEGINNING_US,
    MAX_US,
    EpochInput,
    EpochLimits,
    TaskInput,
    TaskReport,
    TestStreamBlock,
)

logger = logging.getLogger(__name__)

_IDLE_S = 0.2


class Engine(Protocol):
    """Runs the tasks of an epoch somewhere."""

    def run(self, epoch: EpochInput, description: str, group: str) -> list[TaskReport]:
        """Run all levels and return the reports of one consistent run."""


class Driver:
    """Runs single epochs of a plan."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        residuals: Residuals,
        *,
        partitions: int,
        limits: EpochLimits,
        folder: str,
        name: str,
        dropped: Collection[str] = (),
        draining: Callable[[], bool] = lambda: False,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._residuals = residuals
        self._schemas = state_schemas(residuals.context)
        self._partitions = partitions
        self._limits = limits
        self._folder = folder
        self._name = name
        self._dropped = frozenset(dropped)
        self._draining = draining
        self._now_us = now_us
        self._pause = pause
        self._script = Script(residuals.context)
        self._ran: tuple[int, frozenset[str]] = (0, frozenset())
        """The last epoch that was run, and its tasks: bundles are finalized, as well as can be, after the commit."""
        self._measured: tuple[bytes, ...] = ()

    def __call__(self, record: CommitRecord, attempt: Attempt) -> EpochState | None:
        """Run one try of the epoch that follows `record`; None when there is nothing to do yet.

        Raises:
            the user's exception, with the worker's traceback and the place as notes.
            EpochAborted: the tasks did not work on the same data.
        """
        state = drop_steps(record.state, self._dropped)
        drain = state.draining or self._draining()
        residuals = list(state.residuals)
        if drain and not state.draining:
            residuals = self._residuals.truncated(residuals)
        now = self._due_until_us(
            record
        )  # asked once: between two answers a residual would be neither due nor waiting
        due = [r for r in residuals if r.not_before_us <= now]
        event = None if self._busy(state, due) else self._script.next_event(state) or self._leap(state)
        if event is not None:
            state = self._script.played(state, event)
        elif not self._anything_to_do(state, due, drain):
            self._pause(min(_IDLE_S, max(0.0, self._next_due_s(state))))
            return None
        dealt = self._residuals.dealt(residuals, self._partitions) if due else residuals
        running = [r for r in dealt if r.not_before_us <= now]
        waiting = [r for r in dealt if r.not_before_us > now]
        number, nonces = self._ran
        committed = nonces if number == record.number else frozenset()
        epoch = self._input(state, attempt, running, waiting, committed, event)
        description = f"{self._name}: epoch {attempt.epoch}"
        reports = self._engine.run(epoch, description, f"penstock-{attempt.job}")
        warned.show(warning for report in reports for warning in report.warnings)
        raise_failure(reports, attempt.epoch)
        self._ran = attempt.epoch, frozenset(report.nonce for report in reports)
        self._measured = tuple(info for report in reports for info in report.metrics)
        return self._next_state(state, attempt, reports, waiting, drain)

    def measured(self, epoch: int) -> tuple[bytes, ...]:
        """The serialised `MonitoringInfo`s of an epoch's tasks; nothing if it is not the last one that ran here."""
        return self._measured if self._ran[0] == epoch else ()

    # Before the tasks.

    def _due_until_us(self, record: CommitRecord) -> int:
        """Up to which time residuals are due: now, or all of them if the clock was set back since the last commit.

        A moment that one asked to wait would else be as long as the step, and nothing would be read meanwhile.
        """
        now = self._now_us()
        return now if now >= record.committed_us else MAX_US

    def _busy(self, state: EpochState, due: Sequence[Residual]) -> bool:
        """Whether something is left of what earlier epochs began."""
        return bool(due or state.publications or self._to_start(state)) or self._rings(state)

    def _anything_to_do(self, state: EpochState, due: Sequence[Residual], drain: bool) -> bool:
        if self._busy(state, due):
            return True
        if drain and not state.draining:
            return True
        return not state.residuals and not (self._settled(state) and any(t.pending for t in state.timers))

    def _rings(self, state: EpochState) -> bool:
        """Whether a processing-time timer is due."""
        clock = self._script.clock_us(state)
        now = self._now_us() if clock is None else clock
        return any(t.processing_us is not None and t.processing_us <= now for t in state.timers)

    def _leap(self, state: EpochState) -> Event | None:
        """When the script is over and only its clock would bring something: the clock leaps to the next timer."""
        clock = self._script.clock_us(state)
        times = [t.processing_us for t in state.timers if t.processing_us is not None]
        if clock is None or not times or state.residuals or not self._settled(state):
            return None
        return Event(advance_us=min(times) - clock)

    def _to_start(self, state: EpochState) -> tuple[str, ...]:
        return pending_impulses(state, self._plan)

    def _through(self, state: EpochState) -> bool:
        """Whether nothing can reach a step any more that the record carries elements to."""
        return self._script.next_event(state) is None and all(
            state.watermarks.get(WatermarkKey.carried(edge.name), BEGINNING_US) >= MAX_US
            for edge in self._plan.edges
            if edge.routing.carried
        )

    def _settled(self, state: EpochState) -> bool:
        """Whether an epoch has seen the watermarks of all that the record carries elements to.

        If nothing else is left, another epoch would move no watermark: only the clock can bring anything.
        """
        keys = [WatermarkKey.carried(edge.name) for edge in self._plan.edges if edge.routing.carried]
        return all(
            key in state.watermarks and state.observed_watermarks.get(key) == state.watermarks[key]
            for key in keys
        )

    def _carried_watermarks(self, state: EpochState) -> dict[WatermarkKey, int]:
        keys = [WatermarkKey.carried(edge.name) for edge in self._plan.edges if edge.routing.carried]
        return {key: state.watermarks[key] for key in keys if key in state.watermarks}

    def _next_due_s(self, state: EpochState) -> float:
        times = [r.not_before_us for r in state.residuals]
        times += [t.processing_us for t in state.timers if t.processing_us is not None]
        return (min(times, default=0) - self._now_us()) / 1e6

    def _input(
        self,
        state: EpochState,
        attempt: Attempt,
        running: Sequence[Residual],
        waiting: Sequence[Residual],
        committed: frozenset[str],
        event: Event | None,
    ) -> EpochInput:
        holds: dict[str, int] = {}
        for residual in waiting:
            mark = residual.watermark_us
            holds[residual.transform] = min(mark, holds.get(residual.transform, mark))
        return EpochInput(
            attempt=attempt,
            partitions=self._partitions,
            limits=self._limits,
            inputs=tuple(self._task_input(p, state, running, event) for p in range(self._partitions)),
            watermarks=dict(state.watermarks),
            state=state_of(state),
            waiting_residuals_us=holds,
            earliest_window_end_us=self._residuals.open_windows([*running, *waiting]),
            state_folder=self._folder,
            committed_nonces=committed,
            test_clock_us=self._script.clock_us(state),
        )

    def _task_input(
        self, partition: int, state: EpochState, running: Sequence[Residual], event: Event | None
    ) -> TaskInput:
        mine = slice(partition, None, self._partitions)
        played = event is not None and event.step and partition == 0
        return TaskInput(
            impulses=self._to_start(state) if partition == 0 else (),
            residuals=tuple(running[mine]),
            publications=tuple(state.publications[mine]),
            test_stream=(TestStreamBlock(event.step, event.block),) if event and played else (),
        )

    # After the tasks.

    def _next_state(
        self,
        state: EpochState,
        attempt: Attempt,
        reports: Sequence[TaskReport],
        waiting: Sequence[Residual],
        drain: bool,
    ) -> EpochState:
        arrived = self._arrived(state, attempt, reports)
        if drain:
            arrived = self._residuals.truncated(arrived)
        residuals = [*waiting, *self._left(reports), *arrived]
        publications = self._publications(reports)
        if late := sum(report.dropped for report in reports):
            logger.warning("epoch %d dropped %d elements that came after their window", attempt.epoch, late)
        timers = timers_after(state.timers, reports)
        pending = any(t.pending for t in timers)
        fed = self._plan.fed_by_impulse()
        fired = {name: tuple(sorted(fed[name])) for name in self._to_start(state)}
        return EpochState(
            residuals=tuple(residuals),
            publications=publications,
            state_runs=runs_after(state.state_runs, reports),
            timers=timers,
            watermarks=watermarks_after(state.watermarks, reports),
            observed_watermarks=self._carried_watermarks(state),
            fired_impulses={**state.fired_impulses, **fired},
            schemas=self._schemas,
            metrics=metrics_after(state.metrics, reports),
            draining=drain,
            test_events_applied=state.test_events_applied,
            test_clock_us=state.test_clock_us,
            done=self._through(state) and not (residuals or publications or pending),
        )

    def _left(self, reports: Iterable[TaskReport]) -> list[Residual]:
        now = self._now_us()
        return [
            Residual(left.step, left.element_id, left.element, left.watermark_us, now + left.delay_us)
            if left.delay_us
            else Residual(left.step, left.element_id, left.element, left.watermark_us, 0)
            for report in reports
            for left in report.residuals
        ]

    def _arrived(self, state: EpochState, attempt: Attempt, reports: Iterable[TaskReport]) -> list[Residual]:
        """New elements of splittable DoFns; the id is minted here, so two equal elements stay two."""
        arrived = [pair for report in reports for pair in report.carried if self._reads(pair.step)]
        return [
            Residual(
                transform=carried.step,
                element_id=f"{attempt.epoch}.{index}",
                element=carried.element,
                watermark_us=state.watermarks.get(WatermarkKey.carried(carried.step), BEGINNING_US),
                not_before_us=0,
            )
            for index, carried in enumerate(arrived)
        ]

    def _publications(self, reports: Iterable[TaskReport]) -> tuple[Publication, ...]:
        return tuple(
            Publication(carried.step, carried.element)
            for report in reports
            for carried in report.carried
            if not self._reads(carried.step)
        )

    def _reads(self, step: str) -> bool:
        return any(e.name == step and e.routing is Routing.RESIDUAL for e in self._plan.edges)
