"""The input of one task: frames of the levels above, in the order of their producers, checked for completeness.

Each producer ends its frames for a task with a report: how many frames of each edge it has sent, and the watermarks of
its stages. The input is wrong if frames of two attempts of one producer come, or another number than it reports: then
no single run of the epoch has made it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator

from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.frames import Frame, InOrder, Kind
from penstock.runner.tasks.epoch import ProducerAttempt, ProducerReport

_Lane = tuple[int, int, int]
"""The (level, partition, edge) of frames."""


class Inbox:
    """The input of one task, frame by frame. Pure."""

    def __init__(self, plan: Plan, level: int, partitions: int) -> None:
        self._plan = plan
        self._level = level
        self._partitions = partitions
        self._order = InOrder()
        self._nonces: dict[tuple[int, int], str] = {}
        self._counted: dict[_Lane, int] = {}
        self._expected: dict[_Lane, int] = {}
        self._failed = False
        self._problem = ""
        self.watermarks: dict[tuple[int, int], int] = {}
        """Output watermarks by stage and partition, from the reports that have come so far."""

    def passes_on(self, frame: Frame) -> bool:
        """Whether to send a frame on to the level below: a lower level consumes it, or the driver."""
        if frame.kind is Kind.REPORT:
            return self._plan.last_level_fed_by(frame.level) > self._level
        return frame.kind is Kind.CONTROL or self._plan.edges[frame.edge].level > self._level

    def take(self, frame: Frame) -> Iterator[Frame]:
        """Record a frame; yield the frames that can be processed now. After a failure above there are none."""
        if frame.kind is Kind.CONTROL:
            return
        self._note(frame)
        if frame.kind is Kind.REPORT:
            self._read_report(frame)
        # After a failure above, the epoch is lost: elements of it would only do needless work, and could have effects
        # outside.
        elif self._plan.edges[frame.edge].level == self._level and not self._failed:
            yield from self._order.take(frame)

    def problem(self) -> str:
        """Return why the whole input is not that of one run of the epoch; '' if it is."""
        if self._failed:
            return "a task above it failed"
        above = len(self._above())
        # Every producer reports to every consumer, also if it has no data for it. So a missing report means a missing
        # task, and not a task without output.
        if self._level and above != self._partitions:
            return f"got reports of {above} tasks of the level above"
        if self._counted != {lane: count for lane, count in self._expected.items() if count}:
            return "the blocks that came are not those that were sent"
        return self._problem

    def producers(self) -> list[ProducerAttempt]:
        """Return the attempts of the level above from which the input came."""
        return [ProducerAttempt(*producer, self._nonces[producer]) for producer in self._above()]

    def _note(self, frame: Frame) -> None:
        producer = (frame.level, frame.partition)
        known = self._nonces.setdefault(producer, frame.nonce)
        # Spark may repeat a task whose output was partly read. The output of the second attempt may differ, for example
        # in the order of its elements.
        if known != frame.nonce:
            self._problem = f"task {frame.partition} of level {frame.level} came in two attempts"
        if frame.kind is Kind.DATA:
            lane = (*producer, frame.edge)
            self._counted[lane] = self._counted.get(lane, 0) + 1

    def _read_report(self, frame: Frame) -> None:
        report: ProducerReport = pickle.loads(frame.payload)
        self._failed = self._failed or report.failed
        for edge, count in report.frame_counts.items():
            if self._plan.edges[edge].level >= self._level:
                self._expected[(frame.level, frame.partition, edge)] = count
        for stage, watermark in report.watermarks.items():
            self.watermarks[(stage, frame.partition)] = watermark

    def _above(self) -> list[tuple[int, int]]:
        return [producer for producer in self._nonces if producer[0] == self._level - 1]
