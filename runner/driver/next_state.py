"""Makes the state of the next record from the reports of an epoch's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.attempt import Attempt
from penstock.runner.driver.compatibility import pending_impulses
from penstock.runner.driver.merge_reports import metrics_after, runs_after, timers_after, watermarks_after
from penstock.runner.driver.read_on import ended_after
from penstock.runner.driver.residuals import Residuals
from penstock.runner.driver.schedule import Schedule
from penstock.runner.planning.plan import Plan, Routing
from penstock.runner.protocol.errors import ParkedAtEndError
from penstock.runner.protocol.record import (
    EpochState,
    ParkedPublications,
    Publication,
    Residual,
    WatermarkKey,
)
from penstock.runner.tasks.epoch import BEGINNING_US, CarriedElement, TaskReport


class NextStates:
    """Makes the state after each epoch of a plan. `schemas` describe the state that its steps store."""

    def __init__(
        self,
        plan: Plan,
        schedule: Schedule,
        residuals: Residuals,
        schemas: Mapping[str, Mapping[str, str]],
        now_us: Callable[[], int],
    ) -> None:
        self._plan = plan
        self._schedule = schedule
        self._residuals = residuals
        self._schemas = schemas
        self._now_us = now_us
        self._readers = {edge.name for edge in plan.edges if edge.routing is Routing.RESIDUAL}

    def make(
        self,
        state: EpochState,
        attempt: Attempt,
        reports: Sequence[TaskReport],
        waiting: Sequence[Residual],
        *,
        input_complete: bool,
        parked: tuple[ParkedPublications, ...] = (),
    ) -> EpochState:
        """Return the state after the epoch that started from `state`; `waiting` are the residuals it did not read.

        `input_complete` says that no new element could reach a carried step in this epoch. If so, and if no work
        remains, the pipeline is done. `parked` are the tables that are parked after this epoch.

        Raises:
            ParkedAtEndError: the pipeline would be done, and tables are parked.
        """
        carried = [element for report in reports for element in report.carried]
        new = self._new_residuals(state, attempt, [each for each in carried if each.step in self._readers])
        # In a drain, new elements of unbounded sources are not read. There are some if an Impulse fires in the epoch in
        # which the drain begins.
        if state.draining:
            new = self._residuals.truncate(new)
        residuals = (*waiting, *self._reported_residuals(reports), *new)
        publications = tuple(
            Publication(each.step, each.element) for each in carried if each.step not in self._readers
        )
        timers = timers_after(state.timers, reports)
        left_over = residuals or publications or any(each.pending for each in timers)
        done = input_complete and not left_over
        # Without a driver that goes on, nobody would publish their changes.
        if done and parked:
            raise ParkedAtEndError.of([each.table for each in parked])
        return EpochState(
            residuals=residuals,
            publications=publications,
            state_runs=runs_after(state.state_runs, reports),
            timers=timers,
            watermarks=watermarks_after(state.watermarks, reports),
            # The watermarks that this epoch has started from: if the record still has them, another epoch
            # would see nothing new (`Schedule.watermarks_settled`).
            observed_watermarks=self._schedule.carried_watermarks(state),
            fired_impulses={**state.fired_impulses, **self._now_fired(state)},
            # The schemas of the running program, not of the record. `check_compatibility` has compared them.
            schemas=self._schemas,
            metrics=metrics_after(state.metrics, reports),
            draining=state.draining,
            test_events_applied=state.test_events_applied,
            test_clock_us=state.test_clock_us,
            done=done,
            ended=ended_after(state, residuals, self._residuals.readers_that_read_on),
            parked=parked,
        )

    def _now_fired(self, state: EpochState) -> dict[str, tuple[str, ...]]:
        fed = self._plan.fed_by_impulse()
        return {name: tuple(sorted(fed[name])) for name in pending_impulses(state, self._plan)}

    def _reported_residuals(self, reports: Iterable[TaskReport]) -> list[Residual]:
        """The residuals that tasks report. A delay counts from now; a residual without a delay is due at once."""
        # The driver's clock decides when a residual is due. With the clocks of the workers, several clocks would
        # decide.
        now_us = self._now_us()
        return [
            Residual(
                transform=left.step,
                element_id=left.element_id,
                element=left.element,
                watermark_us=left.watermark_us,
                not_before_us=now_us + left.delay_us if left.delay_us else 0,
            )
            for report in reports
            for left in report.residuals
        ]

    def _new_residuals(
        self, state: EpochState, attempt: Attempt, elements: Iterable[CarriedElement]
    ) -> list[Residual]:
        """New elements of splittable DoFns. Each gets an id here, so that two equal elements stay two."""
        return [
            Residual(
                transform=each.step,
                element_id=f"{attempt.epoch}.{index}",
                element=each.element,
                watermark_us=state.watermarks.get(WatermarkKey.carried(each.step), BEGINNING_US),
                not_before_us=0,
            )
            for index, each in enumerate(elements)
        ]
