"""The watermarks of one task: the input of each stage from its producers, its output from what it still holds. Pure.

A watermark never passes an element that a stage has not yet seen, and never goes back: each is at least the one of
the last record. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.runner.planning.plan import Edge, Origin, Stage
from penstock.runner.protocol.record import WatermarkKey
from penstock.runner.tasks.epoch import MAX_US, ResidualReport
from penstock.runner.tasks.scope import TaskScope


class Watermarks:
    """Watermarks of the stages of one task.

    `producers` are the output watermarks of stages of the levels above, by (stage, partition).
    """

    def __init__(self, scope: TaskScope, producers: Mapping[tuple[int, int], int]) -> None:
        self._scope = scope
        self._producers = producers
        self.outputs: dict[int, int] = {}
        """The output watermark of each stage of the task that has ended."""
        self.reported: dict[WatermarkKey, int] = {}
        """The watermarks that the next record must store."""

    def input_us(self, stage: Stage) -> int:
        """The input watermark of a stage whose producers have ended."""
        if stage.origin is Origin.IMPULSE:
            return MAX_US
        if stage.origin is not Origin.EDGE:
            return self._scope.epoch.watermark_us(WatermarkKey.carried(stage.step))
        (edge,) = (self._scope.plan.edges[index] for index in stage.inputs)
        if not stage.state:
            return self.edge_us(edge)
        # A stateful stage has decided by the watermark of the last record which elements are late, so its input
        # watermark must not be lower than that.
        known = self._scope.epoch.watermark_us(WatermarkKey.input(stage.state))
        return max(known, self.edge_us(edge))

    def edge_us(self, edge: Edge) -> int:
        """Return the lowest watermark of the producers of an edge.

        If the edge stays in its partition, only the producers in this partition count.
        """
        return min((self._producer_us(edge, producer) for producer in edge.producers), default=MAX_US)

    def _producer_us(self, edge: Edge, producer: int) -> int:
        if producer in self.outputs:
            return self.outputs[producer]
        # A local edge stays in its partition, so only the producer there can still send.
        if edge.routing.is_local:
            return self._producers[producer, self._scope.partition]
        # Any partition of the producer may still have an element for this one.
        return min(self._producers[producer, p] for p in range(self._scope.partitions))

    def begin(self, stage: Stage, input_us: int) -> None:
        """Report the input watermark that a stateful stage has when it ends its bundle."""
        if stage.state:
            self.reported[WatermarkKey.input(stage.state)] = input_us

    def end(
        self, stage: Stage, output_us: int, hold_us: int | None, residuals: Iterable[ResidualReport]
    ) -> None:
        """Set the output watermark of a stage.

        `hold_us`, the earliest hold in the stage's state, holds it back. If the stage reads, its residuals hold it back
        too: the residuals of this task, and the ones that are not due in this epoch.
        """
        if hold_us is not None:
            output_us = min(output_us, hold_us)
        # The record stores it for GroupByKeys only: they decide by their last output watermark whether a late group can
        # hold the watermark (`PanesBundle.take`).
        if stage.group:
            self.reported[WatermarkKey.output(stage.state)] = output_us
        if stage.origin is Origin.RESIDUAL:
            output_us = self._reader_us(stage, output_us, residuals)
        self.outputs[stage.index] = output_us

    def _reader_us(self, stage: Stage, output_us: int, residuals: Iterable[ResidualReport]) -> int:
        key, epoch = WatermarkKey.output(stage.step), self._scope.epoch
        held_by = [residual.watermark_us for residual in residuals if residual.step == stage.step]
        held = min([output_us, *held_by, epoch.waiting_residuals_us.get(stage.step, output_us)])
        self.reported[key] = max(held, epoch.watermark_us(key))
        return self.reported[key]

    def end_level(self) -> None:
        """Report the watermarks of the carried edges that end at this level: all their producers have ended."""
        for edge in self._scope.plan.carried_at(self._scope.level):
            self.reported[WatermarkKey.carried(edge.name)] = self.edge_us(edge)
