"""Runs the post-commit steps that must run in the driver (`penstock.publish.PublishesOnDriver`)."""

from __future__ import annotations

from penstock.attempt import Attempt, offering_staging, running_attempt
from penstock.publish import PublishesOnDriver
from penstock.runner.driver.post_commit import post_commit_fns
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.record import EpochState


class DriverPublisher:
    """Calls `publish_on_driver` of the post-commit DoFns that have it. `staging` is what sinks are offered."""

    def __init__(self, plan: Plan, context: PlanContext, staging: str | None) -> None:
        self._steps = [
            step for step in post_commit_fns(plan, context) if isinstance(step.fn, PublishesOnDriver)
        ]
        self._staging = staging

    def publish(self, state: EpochState, attempt: Attempt) -> None:
        """Publish what the state of the last record names. An error of a step is raised as it is."""
        if not state.publications:
            return
        with running_attempt(attempt), offering_staging(self._staging):
            for step in self._steps:
                if named := step.named_by(state):
                    step.fn.publish_on_driver(named)
