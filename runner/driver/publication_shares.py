"""Which task publishes what: a task that reads publishes less. Pure.

A task publishes before it reads. So an epoch lasts as long as the task that has most to do, and while one task reads a
backlog, the others can send what the epoch before has committed. The driver measures both and deals each publication
to the task that would be the first to be ready for it:

    input 0:  ──────── reads ────────
    input 1:  ─ sends ── sends ── sends ─

A deal changes only where it saves much time: the sender of a target keeps its connection, and a transactional producer
of Kafka its identity, in the process that has used it last.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.runner.tasks.epoch import TaskReport

_NEWEST = 0.5
"""Weight of the newest epoch in both times."""

_MUCH = 1.25
"""A new deal replaces the last one if the epoch would last this many times longer with the last one."""

_UNKNOWN_SECONDS = 1e-3
"""Time of a publication before one was measured: the same for all, so that they are dealt in turn."""


@dataclass(frozen=True, slots=True)
class _Deal:
    """The input of each publication, for the inputs that read."""

    inputs: tuple[int, ...]
    readers: frozenset[int]


class PublicationShares:
    """Deals the publications of each epoch to its inputs, by what the epochs before have measured."""

    def __init__(self, partitions: int) -> None:
        """`partitions` is the number of inputs."""
        self._partitions = partitions
        self._reading_seconds = 0.0
        self._publication_seconds = _UNKNOWN_SECONDS
        self._last = _Deal((), frozenset())

    def deal(self, publications: int, readers: Collection[int]) -> tuple[int, ...]:
        """Return by publication the index of the input that gets it; `readers` are the inputs that read."""
        best = _Deal(self._in_turn(publications, readers), frozenset(readers))
        last = self._last
        fits = len(last.inputs) == publications and last.readers == best.readers
        if not fits or self._seconds(last) > _MUCH * self._seconds(best):
            self._last = best
        return self._last.inputs

    def observe(self, reports: Collection[TaskReport], publications: int) -> None:
        """Take in the reports of an epoch that had this many publications."""
        reading = max((report.reading_seconds for report in reports), default=0.0)
        self._reading_seconds += _NEWEST * (reading - self._reading_seconds)
        if publications:
            each = sum(report.publishing_seconds for report in reports) / publications
            self._publication_seconds += _NEWEST * (each - self._publication_seconds)

    def _in_turn(self, publications: int, readers: Collection[int]) -> tuple[int, ...]:
        seconds = self._reading_of_inputs(readers)
        inputs = []
        for _ in range(publications):
            # The last one of equals, because residuals are dealt from the first.
            index = min(range(self._partitions), key=lambda i: (seconds[i], i in readers, -i))
            seconds[index] += self._publication_seconds
            inputs.append(index)
        return tuple(inputs)

    def _seconds(self, deal: _Deal) -> float:
        """Return how long an epoch with this deal reads and publishes."""
        seconds = self._reading_of_inputs(deal.readers)
        for index in deal.inputs:
            seconds[index] += self._publication_seconds
        return max(seconds)

    def _reading_of_inputs(self, readers: Collection[int]) -> list[float]:
        return [self._reading_seconds if index in readers else 0.0 for index in range(self._partitions)]
