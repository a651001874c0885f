"""Publishes the Publications of a record right after its commit, before the next epoch publishes them again.

An epoch publishes in its first tasks, and a Spark job takes some time to start them. This module only makes
publications visible sooner. The run in the epoch still counts: it repeats them, takes their output and reports their
errors. A publication may be repeated at any time and by several processes at once (`penstock.publish`), so the two runs
need not wait for each other.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.publish import PublishesEarly
from penstock.runner.driver.post_commit import post_commit_fns
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.record import CommitRecord

logger = logging.getLogger(__name__)


class EarlyPublisher:
    """Runs `publish_early` of the post-commit DoFns that have it, in a thread."""

    def __init__(self, plan: Plan) -> None:
        context = PlanContext(plan)
        self._steps = [step for step in post_commit_fns(plan, context) if isinstance(step.fn, PublishesEarly)]
        self._thread = ThreadPoolExecutor(1, "penstock-publish")
        self._newest = 0

    def committed(self, record: CommitRecord) -> None:
        """Publish what `record` names. This driver must have committed it itself."""
        if self._steps and record.state.publications:
            self._newest = record.number
            self._thread.submit(self._publish, record)

    def close(self) -> None:
        """Wait until the newest record is published. The next epoch or the next driver does so in any case."""
        self._thread.shutdown()

    def _publish(self, record: CommitRecord) -> None:
        if record.number < self._newest:
            return  # the thread is late: the epoch of a newer record has already published this one
        for step in self._steps:
            named: list[Any] = step.named_by(record.state)
            try:
                step.fn.publish_early(named)
            except Exception as error:
                # The next epoch repeats the publication. If the error persists, that epoch reports it.
                logger.debug("could not publish early: %s", type(error).__name__)
