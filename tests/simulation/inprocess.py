"""An engine without Spark: the same plan, tasks, frames and pins, in this process, one task after another."""

from __future__ import annotations

from collections.abc import Callable

from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.frames import Frame
from penstock.runner.spark.engine import check_reports
from penstock.runner.tasks.epoch import EpochInput, TaskReport
from penstock.runner.tasks.finalize import finalize_bundles
from penstock.runner.tasks.task import run_level


class InProcessEngine:
    """Runs epochs level by level; `tamper` may change the data that a level has sent before the driver accepts it."""

    def __init__(
        self, plan: Plan, tamper: Callable[[int, list[bytes]], list[bytes]] = lambda level, frames: frames
    ) -> None:
        self._plan = plan
        self._tamper = tamper

    def run(self, epoch: EpochInput, description: str, group: str) -> list[TaskReport]:
        inboxes: list[list[bytes]] = [[] for _ in range(epoch.partitions)]
        for level in range(self._plan.depth):
            sent: list[list[bytes]] = [[] for _ in range(epoch.partitions)]
            for partition in range(epoch.partitions):
                for target, frame in run_level(self._plan, level, partition, epoch, iter(inboxes[partition])):
                    sent[target].append(frame)
            inboxes = [self._tamper(level, frames) for frames in sent]
        frames = [Frame.unpack(data) for inbox in inboxes for data in inbox]
        return check_reports(frames, [epoch.partitions] * self._plan.depth)

    def finalize(self, epoch: int, nonces: frozenset[str], partitions: int, group: str) -> frozenset[str]:
        return finalize_bundles(self._plan, epoch, nonces)
