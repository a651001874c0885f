"""The input of one task: frames of the levels above, in the order in which each producer sent them, and complete.

Each producer ends its frames for a task with a report: how many frames of each edge it has sent, and the watermarks of
its stages. The input is wrong if it has frames of two attempts of one producer, or another number of frames than the
producer reports. Then it does not come from one consistent run of the epoch, and the driver aborts the epoch.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator

from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.frames import Frame, FrameSequencer, Kind
from penstock.runner.tasks.epoch import ProducerAttempt, ProducerReport

_Channel = tuple[int, int, int]
"""The (level, partition, edge) of frames."""


class Inbox:
    """The input of one task, frame by frame. Pure."""

    def __init__(self, plan: Plan, level: int, partitions: int) -> None:
        self._plan = plan
        self._level = level
        self._partitions = partitions
        self._order = FrameSequencer()
        self._nonces: dict[tuple[int, int], str] = {}
        self._counted: dict[_Channel, int] = {}
        self._expected: dict[_Channel, int] = {}
        self._failed = False
        self._problem = ""
        self.watermarks: dict[tuple[int, int], int] = {}
        """Output watermarks by stage and partition, from the reports that have come so far."""

    def should_forward(self, frame: Frame) -> bool:
        """Whether to send a frame on to the level below: a lower level consumes it, or the driver."""
        if frame.kind is Kind.REPORT:
            return self._plan.last_level_fed_by(frame.level) > self._level
        return frame.kind is Kind.CONTROL or self._plan.edges[frame.edge].level > self._level

    def take(self, frame: Frame) -> Iterator[Frame]:
        """Record a frame; yield the frames that can be processed now. If a task above has failed, yield none."""
        if frame.kind is Kind.CONTROL:
            return
        self._check_nonce_and_count(frame)
        if frame.kind is Kind.REPORT:
            self._read_report(frame)
        # If a task above has failed, the epoch will be aborted. Its elements must not run through users' code, which
        # may have effects outside the pipeline.
        elif self._plan.edges[frame.edge].level == self._level and not self._failed:
            yield from self._order.take(frame)

    def problem(self) -> str:
        """Say why the input does not come from one consistent run of the epoch; '' if it does.

        Call it when all frames were taken.
        """
        if self._failed:
            return "a task above it failed"
        above = len(self._producers_above())
        # Every producer reports to every consumer, even if it has no data for it. So a missing report means a missing
        # task, and not a task without output.
        if self._level and above != self._partitions:
            return f"got reports of {above} tasks of the level above"
        if self._counted != {channel: count for channel, count in self._expected.items() if count}:
            return "the numbers of blocks that arrived differ from the numbers that were sent"
        return self._problem

    def producers(self) -> list[ProducerAttempt]:
        """Return the attempts of the level above from which the input came."""
        return [ProducerAttempt(*producer, self._nonces[producer]) for producer in self._producers_above()]

    def _check_nonce_and_count(self, frame: Frame) -> None:
        producer = (frame.level, frame.partition)
        known = self._nonces.setdefault(producer, frame.nonce)
        # Spark may repeat a task whose output was partly read. The output of the second attempt may differ, for example
        # in the order of its elements.
        if known != frame.nonce:
            self._problem = f"task {frame.partition} of level {frame.level} came in two attempts"
        if frame.kind is Kind.DATA:
            channel = (*producer, frame.edge)
            self._counted[channel] = self._counted.get(channel, 0) + 1

    def _read_report(self, frame: Frame) -> None:
        report: ProducerReport = pickle.loads(frame.payload)
        self._failed = self._failed or report.failed
        for edge, count in report.frame_counts.items():
            if self._plan.edges[edge].level >= self._level:
                self._expected[(frame.level, frame.partition, edge)] = count
        for stage, watermark in report.watermarks.items():
            self.watermarks[(stage, frame.partition)] = watermark

    def _producers_above(self) -> list[tuple[int, int]]:
        return [producer for producer in self._nonces if producer[0] == self._level - 1]
