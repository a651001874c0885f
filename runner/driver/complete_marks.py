"""Tells targets until when they are complete, after commits (`penstock.publish.MarksComplete`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from penstock.attempt import offering_staging
from penstock.publish import MARK_SECONDS, MarksComplete, MarksTablesComplete, PacesMarks
from penstock.runner.driver.post_commit import post_commit_fns
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.complete import complete_until_us, others_complete_until_us
from penstock.runner.protocol.record import CommitRecord

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Step:
    """A post-commit step, and its last mark: when it was begun, of which time, and its end."""

    name: str
    fn: MarksComplete
    every_seconds: float
    begun_at: float = float("-inf")
    until_us: int = 0
    ended: Future[None] | None = None


class CompleteMarks:
    """Calls `mark_complete` of the post-commit DoFns that have it, in a thread. `staging` is what sinks are offered.

    A mark that fails is not repeated, because the next one says more.
    """

    def __init__(
        self, plan: Plan, job: str, staging: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        steps = post_commit_fns(plan, PlanContext(plan))
        self._steps = [
            _Step(step.step, step.fn, _every_seconds(step.fn))
            for step in steps
            if isinstance(step.fn, MarksComplete)
        ]
        self._job, self._staging, self._clock = job, staging, clock
        # One thread, so the marks of a step come in the order of their records.
        self._thread = ThreadPoolExecutor(1, "penstock-complete")
        self._newest: CommitRecord | None = None

    def committed(self, record: CommitRecord) -> None:
        """Mark the targets as of `record`, now or with a later one. This driver must have committed it itself."""
        self._newest = record
        now = self._clock()
        due = [
            step
            for step in self._steps
            # A mark of many tables may take longer than the time to the next one.
            if now - step.begun_at >= step.every_seconds and (step.ended is None or step.ended.done())
        ]
        self._mark(record, self._steps if record.state.done else due)

    def close(self) -> None:
        """Mark the targets as of the last record, and wait for it."""
        if self._newest is not None:
            self._mark(self._newest, self._steps)
        self._thread.shutdown()

    def _mark(self, record: CommitRecord, steps: list[_Step]) -> None:
        if not steps:
            return
        times, others = complete_until_us(record.state), others_complete_until_us(record.state)
        for step in steps:
            parked = [each.table.name for each in record.state.parked if each.transform == step.name]
            # A parked table does not keep the others from their time.
            by_table = bool(parked) and isinstance(step.fn, MarksTablesComplete)
            until_us = (others if by_table else times).get(step.name)
            if until_us is not None and until_us > step.until_us:
                step.begun_at, step.until_us = self._clock(), until_us
                step.ended = self._thread.submit(self._mark_one, step, record.number, until_us, parked)

    def _mark_one(self, step: _Step, number: int, until_us: int, parked: list[str]) -> None:
        try:
            with offering_staging(self._staging):
                if parked and isinstance(step.fn, MarksTablesComplete):
                    step.fn.mark_tables_complete(self._job, number, until_us, parked)
                else:
                    step.fn.mark_complete(self._job, number, until_us)
        except Exception as error:
            # The data is in the target, only the news of it is missing.
            logger.warning("%s could not say until when its target is complete: %s", step.name, error)


def _every_seconds(fn: MarksComplete) -> float:
    return fn.mark_seconds if isinstance(fn, PacesMarks) else MARK_SECONDS
