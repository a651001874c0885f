"""An engine without Spark: the same plan, tasks, frames and pins, in this process, one task after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.frames import Frame
from penstock.runner.spark.engine import check_reports
from penstock.runner.tasks.epoch import EpochInput, TaskReport
from penstock.runner.tasks.finalize import finalize_bundles
from penstock.runner.tasks.outbox import Packet
from penstock.runner.tasks.quiet_levels import QuietLevels, frames_by_target
from penstock.runner.tasks.task import run_level


class InProcessEngine:
    """Runs epochs level by level; `tamper` may change the data that a level has sent before the driver accepts it."""

    def __init__(
        self, plan: Plan, tamper: Callable[[int, list[bytes]], list[bytes]] = lambda level, frames: frames
    ) -> None:
        self._plan = plan
        self._tamper = tamper

    def run(self, epoch: EpochInput, description: str, group: str) -> list[TaskReport]:
        def collect(levels: range, packets: Sequence[Packet]) -> list[Packet]:
            return self._collect(levels, packets, epoch)

        if epoch.limits.is_quiet and self._plan.depth > 1:
            packets = QuietLevels(self._plan).run(epoch, collect)
        else:
            packets = collect(range(self._plan.depth), [])
        return check_reports(
            (Frame.unpack(data) for _, data in packets), [epoch.partitions] * self._plan.depth
        )

    def _collect(self, levels: range, packets: Sequence[Packet], epoch: EpochInput) -> list[Packet]:
        inboxes = frames_by_target(packets, epoch.partitions)
        for level in levels:
            sent = [
                packet
                for partition, inbox in enumerate(inboxes)
                for packet in run_level(self._plan, level, partition, epoch, iter(inbox))
            ]
            inboxes = [self._tamper(level, frames) for frames in frames_by_target(sent, epoch.partitions)]
        return [(target, frame) for target, inbox in enumerate(inboxes) for frame in inbox]

    def finalize(self, epoch: int, nonces: frozenset[str], partitions: int, group: str) -> frozenset[str]:
        return finalize_bundles(self._plan, epoch, nonces)
