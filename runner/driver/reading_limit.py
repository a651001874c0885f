"""How many records a task may read in an epoch, so that the work on them does not make epochs long. Pure.

A step behind an exchange runs after the reading of an epoch. If it is slow, half a second of reading may mean minutes
of work, and nothing is committed or visible before it ends. So the driver measures each epoch and limits what the next
one reads. The work of an epoch then takes about `MAX_WORK` times `--epoch_seconds`.

    work = hidden + records × cost      measured in the tasks, and when sinks publish what the epoch has committed
    fixed                               the rest: Spark's jobs, reports, the commit

Shorter epochs pay the fixed cost more often. So an epoch may always work `FIXED_SHARE` times as long as its fixed
cost, and shortening costs about 5 % of the throughput at most. Work may also contain a cost that does not depend on the
number of records, such as a connection that each bundle opens. `hidden` is an estimate of that. Without it the limit
would become smaller and smaller, since fewer records never make such an epoch short.

A limit is no part of a record. A driver that takes over begins without one, and needs one epoch to find it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from penstock.runner.tasks.epoch import TaskReport

MAX_WORK = 4
"""Work of an epoch, as a multiple of the time that it may read."""

FIXED_SHARE = 20
"""An epoch may work this many times as long as its fixed cost, also if that is above `MAX_WORK`."""

_NEWEST = 0.5
"""Weight of the newest epoch in the cost of a record. Larger: faster to follow, and more affected by one odd epoch."""

_RISE = 0.1
"""Weight of the newest epoch in a fixed cost that is higher than known. A lower one counts at once: one slow start or
one slow commit says nothing about the next epochs."""

_APART = 4
"""Two epochs show how much of the work depends on the number of records, if one has read this many times more."""

_FORGET = 0.97
"""How much of `hidden` remains after each epoch. So after a few hundred epochs the limit is tried again."""


@dataclass(frozen=True, slots=True)
class EpochCost:
    """The records that the tasks of an epoch have read, and how long the epoch took in addition to reading.

    `records` has one number for each task. `work_seconds` is the time in which tasks worked on records, and sinks
    published them; `fixed_seconds` is the rest.
    """

    records: tuple[int, ...]
    work_seconds: float
    fixed_seconds: float


def epoch_cost(reports: Collection[TaskReport], seconds: float, task_slots: int) -> EpochCost:
    """Return the cost of an epoch that took `seconds`, without the publication of what it commits.

    `task_slots` is the number of tasks that run at the same time.
    """
    levels = {report.level for report in reports}
    work = sum(
        _level_seconds([each.working_seconds for each in reports if each.level == level], task_slots)
        for level in levels
    )
    # Of one task, because one publishes while another one reads.
    before_work = max((report.publishing_seconds + report.reading_seconds for report in reports), default=0.0)
    fixed = seconds - work - before_work
    return EpochCost(tuple(report.records_read for report in reports), work, max(0.0, fixed))


def publishing_seconds(reports: Iterable[TaskReport]) -> float:
    """Return how long the tasks have published what the epoch before has committed."""
    return max((report.publishing_seconds for report in reports), default=0.0)


def _level_seconds(seconds: list[float], task_slots: int) -> float:
    # With more tasks than task slots, they run in several rounds.
    return max(*seconds, sum(seconds) / task_slots, 0.0)


class ReadingLimit:
    """Chooses how many records a task of the next epoch may read, from the costs of the epochs before."""

    def __init__(self, epoch_seconds: float, max_records: int) -> None:
        """`max_records` is the limit without a slow step, and never exceeded."""
        self._work_seconds = MAX_WORK * epoch_seconds
        self._max_records = max_records
        self.max_records = max_records
        self._fixed: float | None = None
        self._hidden = 0.0
        self._work, self._records = 0.0, 0.0
        """Faded sums, whose ratio is the cost of a record."""
        self._large: tuple[int, float] | None = None
        """Records and work of an epoch that read many."""

    def observe(self, epoch: EpochCost) -> None:
        """Take in the cost of an epoch. One that has read nothing says nothing."""
        records = sum(epoch.records)
        if not records:
            return
        self._learn_fixed(epoch.fixed_seconds)
        self._learn_hidden(records, epoch.work_seconds)
        assert self._fixed is not None
        target = max(self._work_seconds, FIXED_SHARE * (self._fixed + self._hidden))
        # An epoch counts as much as it shows: one with few records and little work must not make the pipeline forget
        # how slow its step is with many.
        largest = max(epoch.records)
        weight = _NEWEST * min(1.0, max(largest / self.max_records, epoch.work_seconds / target))
        work = max(0.0, epoch.work_seconds - self._hidden)
        self._work += weight * (work - self._work)
        self._records += weight * (records - self._records)
        wanted = (target - self._hidden) * self._records / self._work if self._work else math.inf
        # Tasks read different numbers of records, so this is the limit of the one that reads most.
        self.max_records = max(1, int(min(self._max_records, wanted * largest / records)))

    def _learn_fixed(self, seconds: float) -> None:
        known = seconds if self._fixed is None else self._fixed
        self._fixed = min(seconds, known + _RISE * (seconds - known))

    def _learn_hidden(self, records: int, work: float) -> None:
        """Compare the epoch with a much larger one: which part of the work is the same in both?"""
        self._hidden *= _FORGET
        if self._large is None or records >= self._large[0]:
            self._large = records, work
        elif _APART * records <= self._large[0]:
            many, long = self._large
            same = (work * many - long * records) / (many - records)
            # More than half of the work is clearly more than noise. If fewer records took even longer, then the step
            # became slower, and the two epochs cannot be compared.
            if work / 2 < same and work <= 1.2 * long:
                self._hidden = max(self._hidden, min(same, work))
            self._large = records, work
