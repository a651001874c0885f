"""Runs the levels of a quiet epoch: those below the readers need workers only if the readers have read something.

Most epochs of a quiet pipeline read nothing. The tasks below level 0 then only take watermarks and pass reports on.
Half of the CPU time of such an epoch was what Spark does for them, so they run in the driver. The packets of level 0
come to the driver for this. `QUIET_BYTES` limits them: an epoch that reads something ends soon, and is not quiet any
more. Pure, but for what `collect` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from penstock.runner.harness.bundle import PlanContext, StageProcessor
from penstock.runner.harness.finalizers import Finalizers
from penstock.runner.planning.plan import Plan, Stage
from penstock.runner.protocol.frames import Frame, Kind
from penstock.runner.tasks.epoch import EpochInput
from penstock.runner.tasks.outbox import Packet
from penstock.runner.tasks.scope import TaskScope
from penstock.runner.tasks.task import Task
from penstock.runner.tasks.worker_plan import WorkerPlan

Collect = Callable[[range, Sequence[Packet]], list[Packet]]
"""Runs neighbouring levels with the packets of the level above; returns the packets of the last one."""


def frames_by_target(packets: Iterable[Packet], partitions: int) -> list[list[bytes]]:
    """Return the frames for each partition, in the order in which they come."""
    frames: list[list[bytes]] = [[] for _ in range(partitions)]
    for target, frame in packets:
        frames[target].append(frame)
    return frames


class QuietLevels:
    """Runs quiet epochs of one plan."""

    def __init__(self, plan: Plan) -> None:
        # The log records of a driver are shown where they come from.
        self._plan = replace(plan, logging=replace(plan.logging, to_driver=False))
        self._no_stages = _NoStages(plan)

    def run(self, epoch: EpochInput, collect: Collect) -> list[Packet]:
        """Return the packets of the last level. `collect` runs level 0, and the others if one of them has work."""
        packets = collect(range(1), [])
        # A task of this attempt of the epoch may be repeated only before its packets are taken, so the levels below see
        # one attempt of each, wherever they run.
        below = self._without_work(epoch, packets)
        return collect(range(1, self._plan.depth), packets) if below is None else below

    def _without_work(self, epoch: EpochInput, packets: list[Packet]) -> list[Packet] | None:
        """Run the levels below level 0; None if a stage of theirs has work. Then nothing has happened."""
        if any(Frame.unpack(frame).kind is Kind.DATA for _, frame in packets):
            return None
        try:
            for level in range(1, self._plan.depth):
                sent: list[Packet] = []
                for partition, frames in enumerate(frames_by_target(packets, epoch.partitions)):
                    scope = TaskScope(self._plan, level, partition, epoch, partition)
                    Task(scope, self._no_stages, sent.append).run(frames)
                packets = sent
        except _StageHasWork:
            return None
        return packets


class _StageHasWork(BaseException):
    """A timer of a stage is due. Not an `Exception`: a task would report that as the failure of the pipeline."""


class _NoStages(WorkerPlan):
    """The parts of a plan in a driver, where no stage may run: stages run code of users."""

    def __init__(self, plan: Plan) -> None:
        # Not the base class's: it prepares a worker process for the program of the driver.
        self.context = PlanContext(plan)
        self.finalizers = Finalizers()

    def processor(self, stage: Stage) -> StageProcessor:
        raise _StageHasWork
