"""Tells targets until when they are complete, after commits (`penstock.publish.MarksComplete`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.publish import MarksComplete
from penstock.runner.driver.post_commit import post_commit_fns
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.complete import complete_until_us
from penstock.runner.protocol.record import CommitRecord

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 5.0
"""A stream commits about once a second, and a request to an object store for each commit would cost money."""


class CompleteMarks:
    """Calls `mark_complete` of the post-commit DoFns that have it, in a thread.

    A mark that fails is not repeated, because the next one says more.
    """

    def __init__(self, plan: Plan, job: str, clock: Callable[[], float] = time.monotonic) -> None:
        steps = post_commit_fns(plan, PlanContext(plan))
        self._fns = {step.step: step.fn for step in steps if isinstance(step.fn, MarksComplete)}
        self._job, self._clock = job, clock
        self._thread = ThreadPoolExecutor(1, "penstock-complete")
        self._marked_at = float("-inf")
        self._times: dict[str, int] = {}
        self._waiting: CommitRecord | None = None

    def committed(self, record: CommitRecord) -> None:
        """Mark the targets as of `record`, now or with a later one. This driver must have committed it itself."""
        self._waiting = record
        if record.state.done or self._clock() - self._marked_at >= _EVERY_SECONDS:
            self._marked_at = self._clock()
            self._mark()

    def close(self) -> None:
        """Mark the targets as of the last record, and wait for it."""
        self._mark()
        self._thread.shutdown()

    def _mark(self) -> None:
        record, self._waiting = self._waiting, None
        if record is None:
            return
        for step, until_us in complete_until_us(record.state).items():
            if step in self._fns and until_us is not None and until_us > self._times.get(step, 0):
                self._times[step] = until_us
                self._thread.submit(self._mark_one, step, record.number, until_us)

    def _mark_one(self, step: str, number: int, until_us: int) -> None:
        try:
            self._fns[step].mark_complete(self._job, number, until_us)
        except Exception as error:
            # The data is in the target, only the news of it is missing.
            logger.warning("%s could not say until when its target is complete: %s", step, error)
