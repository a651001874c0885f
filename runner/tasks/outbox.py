"""Where the output of a task's stages goes: to another level, to a stage of the same task, or to the commit record."""

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
    """Routes the blocks that the stages of one task write. It does not keep them, so it needs no memory.

    `emit` sends a packet off. `feed` runs a block through a stage of the same task, at once: an edge that stays in
    its partition (a Flatten) may be as long as any other, so its blocks must not pile up either.
    """

    def __init__(
        self, scope: TaskScope, emit: Callable[[Packet], None], feed: Callable[[Stage, bytes], None]
    ) -> None:
        self._scope = scope
        self._plan = scope.plan
        self._emit = emit
        self._feed = feed
        self._sent: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """How many frames were sent: by target partition, then by edge."""
        self.carried: list[CarriedElement] = []

    def send(self, edge_index: int, target: int, block: bytes) -> None:
        """Route a block of encoded elements of one edge."""
        edge = self._plan.edges[edge_index]
        if edge.routing.carried:
            self.carried.append(CarriedElement(edge.name, block))
        elif edge.level == self._scope.level and edge.routing is Routing.LOCAL:
            # Through a block, although both stages are in one task: the element is decoded again, so the stages share
            # no object, and the consumer counts its input like any other.
            self._feed(self._plan.stages[edge.consumer], block)
        else:
            # Numbered by target and edge, so that a consumer can put the frames of each producer back in order: Spark
            # delivers blocks as they are fetched.
            number = self._sent[target][edge_index]
            self._sent[target][edge_index] += 1
            self._emit((target, self._frame(Kind.DATA, edge_index, number, block)))

    def pass_on(self, frame: bytes) -> None:
        """Send a frame of a level above on to the level below, in the same partition."""
        self._emit((self._scope.partition, frame))

    def close(self, report: TaskReport, watermarks: Mapping[int, int]) -> None:
        """Tell each consumer how many frames it gets, and the driver everything.

        `watermarks` are the output watermarks of the stages; a task that failed sends none.
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
