"""Routes the output of a task's stages: to another level, to a stage of the same task, or to the commit record."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

from penstock.runner.planning.plan import Routing, Stage
from penstock.runner.protocol.frames import Frame, Kind
from penstock.runner.tasks.epoch import CarriedElement, ProducerReport, TaskReport
from penstock.runner.tasks.scope import TaskScope

Packet = tuple[int, bytes]
"""(target partition, packed frame)."""


class Outbox:
    """Routes the blocks that the stages of one task write. It buffers no blocks, except carried elements.

    `emit` sends a packet. `feed` runs a block through a stage of the same task, at once. An edge that stays in its
    partition (a Flatten) may carry as much data as any other edge, so its blocks must not collect in memory.
    """

    def __init__(
        self, scope: TaskScope, emit: Callable[[Packet], None], feed: Callable[[Stage, bytes], None]
    ) -> None:
        self._scope = scope
        self._plan = scope.plan
        self._emit = emit
        self._feed = feed
        self._sent: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """Number of frames sent, by target partition and then by edge."""
        self.carried: list[CarriedElement] = []
        """Elements for the commit record: they reached a carried step."""

    def send(self, edge_index: int, target: int, block: bytes) -> None:
        """Route a block of encoded elements of one edge."""
        edge = self._plan.edges[edge_index]
        if edge.routing.carried:
            self.carried.append(CarriedElement(edge.name, block))
        elif edge.level == self._scope.level and edge.routing is Routing.LOCAL:
            # Pass an encoded block, although both stages are in one task: the consumer decodes the elements, so the
            # stages share no mutable object, and its input is counted as for any other stage.
            self._feed(self._plan.stages[edge.consumer], block)
        else:
            # Numbered by target and edge, so that a consumer can put the frames of each producer back in order: Spark
            # delivers blocks as they are fetched.
            number = self._sent[target][edge_index]
            self._sent[target][edge_index] += 1
            self._emit((target, self._frame(Kind.DATA, edge_index, number, block)))

    def forward(self, frame: bytes) -> None:
        """Forward a frame of a level above to the level below, in the same partition."""
        self._emit((self._scope.partition, frame))

    def close(self, report: TaskReport, watermarks: Mapping[int, int]) -> None:
        """Send the final reports: to each consumer how many frames it gets, to the driver the whole `report`.

        `watermarks` are the output watermarks of the stages. A task that failed sends none to its consumers.
        """
        if self._scope.level + 1 < self._plan.depth:
            failed = report.failure is not None or bool(report.problem)
            for target in range(self._scope.partitions):
                told = ProducerReport(failed, dict(self._sent[target]), {} if failed else watermarks)
                payload = pickle.dumps(told, pickle.HIGHEST_PROTOCOL)
                self._emit((target, self._frame(Kind.REPORT, 0, 0, payload)))
        payload = pickle.dumps(report, pickle.HIGHEST_PROTOCOL)
        self._emit((self._scope.partition, self._frame(Kind.CONTROL, 0, 0, payload)))

    def _frame(self, kind: Kind, edge: int, number: int, payload: bytes) -> bytes:
        scope = self._scope
        return Frame(kind, scope.level, scope.partition, scope.nonce, edge, number, payload).pack()
