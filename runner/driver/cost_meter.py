"""Measures the epochs that a driver runs: their timings for users, and their cost for the reading limit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from penstock.runner.driver.reading_limit import EpochCost, ReadingLimit, epoch_cost, publishing_seconds
from penstock.runner.tasks.epoch import TaskReport


class EpochCostMeter:
    """Measures one epoch after the other.

    The next epoch publishes what an epoch has committed, so the cost of an epoch is complete only when the next one has
    published. Then it goes to the `ReadingLimit`. `task_slots` is the number of tasks that run at the same time.
    """

    def __init__(self, limit: ReadingLimit, task_slots: int, monotonic: Callable[[], float]) -> None:
        self._limit = limit
        self._task_slots = task_slots
        self._monotonic = monotonic
        self._epoch, self._began, self._ended = 0, 0.0, 0.0
        self._cost: EpochCost | None = None
        """Cost of the last epoch, while some of it is not known yet."""
        self._commits_since: float | None = None
        """When the tasks of the last epoch ended, until its commit has ended."""

    def tasks_begin(self) -> None:
        """Note that the tasks of an epoch begin."""
        self._began = self._monotonic()

    def tasks_end(self, epoch: int) -> None:
        """Note that the tasks of an epoch have ended, with or without an error."""
        self._epoch, self._ended = epoch, self._monotonic()

    def timings(self, epoch: int) -> dict[str, float]:
        """Return how an epoch that was just committed spent its seconds; empty unless it ran here last."""
        if self._epoch != epoch:
            return {}
        return {"tasks": self._ended - self._began, "commit": self._monotonic() - self._ended}

    def tasks_succeeded(self, reports: Collection[TaskReport]) -> None:
        """Complete the cost of the epoch before, which these tasks have published; begin the cost of this one."""
        self._complete(publishing_seconds(reports))
        self._cost = epoch_cost(reports, self._ended - self._began, self._task_slots)
        self._commits_since = self._ended

    def driver_asks_for_work(self) -> None:
        """Add the time since the tasks of the last epoch ended to its cost: its commit has ended."""
        if self._cost is not None and self._commits_since is not None:
            seconds = self._monotonic() - self._commits_since
            self._cost = replace(self._cost, fixed_seconds=self._cost.fixed_seconds + seconds)
        # Only the first question ends a commit. The driver may ask several times, and pauses in between.
        self._commits_since = None

    def driver_published(self, seconds: float, *, tasks_publish: bool) -> None:
        """Add the time of publishing in the driver. If the tasks publish nothing, the cost is complete."""
        if self._cost is not None:
            self._cost = replace(self._cost, work_seconds=self._cost.work_seconds + seconds)
        if not tasks_publish:
            self._complete(0.0)

    def _complete(self, publishing: float) -> None:
        """Give the cost of the last epoch to the limit of the next ones."""
        if self._cost is not None:
            self._limit.observe(replace(self._cost, work_seconds=self._cost.work_seconds + publishing))
        self._cost = None
