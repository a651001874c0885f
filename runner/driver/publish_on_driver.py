"""Runs the post-commit steps that must run in the driver (`penstock.publish.PublishesOnDriver`)."""

from __future__ import annotations

from dataclasses import replace

from penstock.attempt import Attempt, offering_staging, running_attempt
from penstock.errors import UsageError
from penstock.publish import ParksTables, PublishesOnDriver
from penstock.runner.driver.post_commit import PostCommitFn, post_commit_fns
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.complete import others_complete_until_us
from penstock.runner.protocol.record import EpochState, ParkedPublications


class DriverPublisher:
    """Calls `publish_on_driver` of the post-commit DoFns that have it. `staging` is what sinks are offered."""

    def __init__(self, plan: Plan, context: PlanContext, staging: str | None) -> None:
        self._steps = [
            step for step in post_commit_fns(plan, context) if isinstance(step.fn, PublishesOnDriver)
        ]
        self._staging = staging

    def publish(self, state: EpochState, attempt: Attempt) -> tuple[ParkedPublications, ...]:
        """Publish what the state of the last record names; return what is parked after it.

        An error of a step is raised as it is.
        """
        if not (state.publications or state.parked):
            return ()
        self._check_parked(state)
        parked: list[ParkedPublications] = []
        with running_attempt(attempt), offering_staging(self._staging):
            for step in self._steps:
                if isinstance(step.fn, ParksTables):
                    parked += self._publish_or_park(step, step.fn, state)
                elif named := step.named_by(state):
                    step.fn.publish_on_driver(named)
        return tuple(parked)

    def _check_parked(self, state: EpochState) -> None:
        """Raise UsageError if a parked table belongs to a step that parks no tables: its changes would be dropped."""
        parking = {step.step for step in self._steps if isinstance(step.fn, ParksTables)}
        tables = [each.table.source for each in state.parked if each.transform not in parking]
        if tables:
            raise UsageError(
                f"tables are parked ({', '.join(tables)}), and the sink cannot write their changes as it is: "
                "start it with on_refused_table='park', resume the tables (penstock tables), and change it then; or "
                "skip them"
            )

    def _publish_or_park(
        self, step: PostCommitFn, fn: ParksTables, state: EpochState
    ) -> list[ParkedPublications]:
        named, before = step.named_by(state), step.parked_in(state)
        asked = any(each.resuming or each.refilling for each in before)
        after = fn.publish_or_park(named, before) if named or asked else before
        # The publications that are parked first have no change below this time, because it is not their turn before.
        complete_us = others_complete_until_us(state).get(step.step) or 0
        known = {(each.name, each.since_us): each.complete_us for each in before}
        return [
            ParkedPublications(
                step.step,
                replace(each, complete_us=known.get((each.name, each.since_us), complete_us)),
            )
            for each in after
        ]
