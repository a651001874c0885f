"""One task: all stages of one level, for one partition, in one epoch. No Spark in here.

    frames of the level above  →  stages, in order  →  frames for the levels below, a report, a control record

`Inbox` checks the input, `StageBundles` runs the stages, `Watermarks` computes the watermarks of the stages, and
`Outbox` routes their output. `Task` calls them in turn.

The exception of a stage is never raised into Spark, which would run the task again. It travels to the driver in the
control record, and the levels below do nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.attempt import offering_staging, running_attempt
from penstock.helpers import helped_by
from penstock.runner.harness.elements import encoded_impulse
from penstock.runner.harness.idle_wait import IdleWait, NoOtherReaders, OtherReaders
from penstock.runner.harness.split_timer import Budget
from penstock.runner.planning.plan import Origin, Plan, Stage
from penstock.runner.protocol.frames import Frame
from penstock.runner.protocol.record import EarliestTimers, Residual
from penstock.runner.tasks.epoch import EpochInput, ResidualReport, TaskReport
from penstock.runner.tasks.failure import failure_of
from penstock.runner.tasks.handover import iterate
from penstock.runner.tasks.help import Help, NoHelp
from penstock.runner.tasks.inbox import Inbox
from penstock.runner.tasks.outbox import Outbox, Packet
from penstock.runner.tasks.scope import TaskScope
from penstock.runner.tasks.side_inputs import SideInputs
from penstock.runner.tasks.stage_bundles import StageBundles
from penstock.runner.tasks.task_state import TaskState
from penstock.runner.tasks.watermarks import Watermarks
from penstock.runner.tasks.worker_logs import collected_logs
from penstock.runner.tasks.worker_plan import WorkerPlan, worker_plan_of
from penstock.runner.tasks.worker_warnings import collected_warnings
from penstock.timeline import trace

__all__ = ["Packet", "run_level"]


def run_level(
    plan: Plan,
    level: int,
    partition: int,
    epoch: EpochInput,
    frames: Iterable[bytes],
    *,
    input_index: int | None = None,
    process: str = "",
    others: OtherReaders = NoOtherReaders(),
    help: Help = NoHelp(),
) -> Iterator[Packet]:
    """Run a level's stages for one partition; yield packets for the next level or, from the last level, for the driver.

    `frames` were sent to this partition by the level above (none at level 0). The last level yields
    control records only. Packets are yielded while the stages still run; see `handover`. `input_index` and `process`:
    see `TaskScope`; None is the input of the partition. `others` are the other tasks of the epoch that read.
    `help` is between a task that reads and those that are idle.
    """
    worker_plan = worker_plan_of(plan)
    # First finalize bundles of the last epoch in this process: this task's input says which of them were committed.
    for processor in worker_plan.finalizers.run(epoch.attempt.epoch, epoch.committed_nonces):
        worker_plan.give_back(processor)
    scope = TaskScope(
        plan, level, partition, epoch, partition if input_index is None else input_index, process
    )
    return iterate(lambda emit: Task(scope, worker_plan, emit, others, help).run(frames))


class Task:
    """One attempt of one task. `emit` takes its packets."""

    def __init__(
        self,
        scope: TaskScope,
        worker_plan: WorkerPlan,
        emit: Callable[[Packet], None],
        others: OtherReaders = NoOtherReaders(),
        help: Help = NoHelp(),
    ) -> None:
        self._scope, self._help = scope, help
        self._others = others
        self._plan = scope.plan
        self._stages = scope.stages
        self._started = {(stage.origin, stage.step): stage for stage in self._stages if stage.step}
        self._report = TaskReport(
            nonce=scope.nonce, level=scope.level, process=scope.process, input_index=scope.input_index
        )
        self._inbox = Inbox(scope.plan, scope.level, scope.partitions)
        self._state = TaskState(scope.epoch, scope.nonce, *scope.key_groups)
        self._side_inputs = SideInputs(scope, worker_plan.context, self._state)
        self._outbox = Outbox(scope, emit, self._feed)
        self._bundles = StageBundles(scope, worker_plan, self._state, self._side_inputs, self._outbox.send)
        self._watermarks = Watermarks(scope, self._inbox.watermarks)

    def run(self, frames: Iterable[bytes]) -> None:
        """Take all frames in, run the stages, and report."""
        succeeded = False
        self._trace("began")
        try:
            # Spark fetches blocks while this loop runs, so a stage works while its producers are still at work.
            for data in frames:
                self._receive(data)
            self._report.problem = self._inbox.problem()
            # Invariant: a task sends its reports, also after a failure. Each of the next steps does nothing then, and
            # `_close` still runs, because the driver waits for one control record of each task.
            self._work(self._complete_side_inputs)
            self._report.publishing_seconds = self._run_guarded(self._publish)
            # The end of a stage still uses helpers. So a task that gives help does it before it ends its stages.
            with self._help.taken() as helpers, helped_by(helpers):
                self._work(self._start_inputs)
                self._report.reading_seconds = self._run_guarded(self._read_residuals)
                self._run_guarded(self._help.give)
                self._work(self._end_stages)
            self._close()
            self._trace("ended")
            succeeded = not self._failed
        finally:
            self._bundles.close(succeeded=succeeded)

    def _trace(self, what: str) -> None:
        trace(f"level {self._scope.level} {what}", epoch=self._scope.epoch.attempt.epoch)

    # Work.

    @property
    def _failed(self) -> bool:
        return self._report.failure is not None or bool(self._report.problem)

    def _work(self, work: Callable[..., None], *args: Any) -> None:
        """Do a piece of work whose time the driver compares with the number of records (`driver/reading_limit.py`)."""
        self._report.working_seconds += self._run_guarded(work, *args)

    def _run_guarded(self, work: Callable[..., None], *args: Any) -> float:
        """Do a piece of work, unless the task has failed; an exception becomes the failure of the task.

        Returns the seconds that it took.
        """
        if self._failed:
            return 0.0
        began = time.monotonic()
        try:
            # These contexts are entered for each piece of work, and not once for the task. Between two pieces Spark's
            # own code runs in this thread, and its warnings and log records are not the pipeline's.
            with (
                running_attempt(self._scope.attempt),
                offering_staging(self._scope.epoch.staging),
                collected_warnings(self._report.warnings),
                collected_logs(self._plan.logging, self._report.logs),
            ):
                work(*args)
        except Exception as error:
            self._report.failure = failure_of(error, self._bundles.where)
        return time.monotonic() - began

    def _receive(self, data: bytes) -> None:
        """Take in one frame. A task that has failed still forwards frames: the driver waits for the reports in them."""
        frame = Frame.unpack(data)
        if self._inbox.should_forward(frame):
            self._outbox.forward(data)
        # One by one, so that after an error in a frame the later frames are still forwarded to the levels below.
        for ready in self._inbox.take(frame):
            self._work(self._take, ready)

    def _take(self, frame: Frame) -> None:
        edge = self._plan.edges[frame.edge]
        if edge.side:
            self._side_inputs.of(edge).add(frame.payload)
        else:
            self._feed(self._plan.stages[edge.consumer], frame.payload)

    def _feed(self, stage: Stage, block: bytes) -> None:
        self._bundles.feed(stage, block)

    def _complete_side_inputs(self) -> None:
        """Run the input that waited for side inputs: elements of earlier epochs first, then the blocks of this one."""
        self._bundles.complete_side_inputs()
        for stage in self._stages:
            # Follow the order of the plan: a stage may emit elements for a later stage that has side inputs too.
            if stage.sides:
                edges = [self._plan.edges[index] for index in stage.sides]
                self._side_inputs.complete({edge.index: self._watermarks.edge_us(edge) for edge in edges})
                self._bundles.resume_blocked(stage)
                for block in self._bundles.spooled(stage):
                    self._feed(stage, block)

    def _publish(self) -> None:
        """Run the Publications. They come before all other inputs, because their epoch is already committed."""
        for publication in self._scope.input.publications:
            self._feed(self._started[Origin.PUBLISH, publication.transform], publication.element)

    def _start_inputs(self) -> None:
        """Run the other inputs that start this epoch, except those that are read."""
        given = self._scope.input
        for block in given.test_stream:
            self._feed(self._started[Origin.TEST_STREAM, block.step], block.block)
        for step in given.impulses:
            self._feed(self._started[Origin.IMPULSE, step], encoded_impulse())

    def _read_residuals(self) -> None:
        """Read the residuals one after the other, until the task has read as many records as it may."""
        residuals = self._scope.input.residuals
        # From here, and not from the start of the task. Otherwise a sink that publishes for a long time would leave no
        # time for reading or for the first record, and each second epoch would be almost empty.
        begun = time.monotonic()
        for index, residual in enumerate(residuals):
            left = self._scope.epoch.limits.max_records - self._bundles.records_read()
            if left <= 0:
                # In front of those that were read, so that they are the first ones of the next epoch.
                self._report.residuals[:0] = map(_unread, residuals[index:])
                return
            self._read(residual, len(residuals) - index, begun, left)

    def _read(self, residual: Residual, remaining: int, begun: float, left: int) -> None:
        """Read one residual, at most `left` records, for its share of the time of an epoch.

        `remaining` counts it and those after it. The task has `begun` to read at that time.
        """
        limits = self._scope.epoch.limits
        now = time.monotonic()
        # A share of the time that remains: a residual that ends early leaves its time to those after it, and one that
        # was slow takes from them, not from the length of the epoch.
        share = max(0.0, begun + limits.seconds - now) / remaining
        idle = max(0.0, begun + limits.idle_seconds - now) / remaining
        quiet_until = begun + limits.quiet_seconds
        wait = IdleWait(now + min(share, idle), quiet_until if limits.quiet_seconds else None, self._others)
        budget = Budget(now + share, wait, left, limits.max_bytes, limits.may_end_early, limits.catches_up)
        stage = self._started[Origin.RESIDUAL, residual.transform]
        for rest in self._bundles.read(stage, residual.element_id, residual.element, budget):
            # A reader without a watermark estimator reports none. One that reports an earlier watermark than before is
            # held to the old one, because consumers have already acted on it.
            watermark_us = residual.watermark_us
            if rest.watermark_us is not None:
                watermark_us = max(watermark_us, rest.watermark_us)
            self._report.residuals.append(
                ResidualReport(
                    residual.transform, residual.element_id, rest.element, watermark_us, rest.delay_us
                )
            )

    def _end_stages(self) -> None:
        """End the stages in order: a stage ends after all stages that feed it."""
        for stage in self._stages:
            self._end(stage)
        self._watermarks.end_level()

    def _end(self, stage: Stage) -> None:
        watermark = self._side_inputs.held_us(stage, self._watermarks.input_us(stage))
        self._watermarks.begin(stage, watermark)
        result = self._bundles.end(stage, watermark)
        # The hold of a stage that did not run is in the record. To open its state for it would make each epoch read
        # the state of all stages.
        hold = self._scope.earliest_timers(stage.state).hold_us
        if result is not None:
            watermark = result.watermark_us
            self._report.metrics.extend(result.metrics)
            self._report.records_read += result.records_read
            self._report.is_behind |= result.is_behind
            self._report.dropped += result.dropped
            if result.timers is not None:
                # The stage has opened its state, so its timers and its hold replace the record's.
                event, processing = result.timers
                timers = EarliestTimers(
                    stage.state, *self._scope.key_groups, event, processing, result.hold_us
                )
                self._report.timers[stage.state] = timers
                hold = None
        self._watermarks.end(stage, watermark, hold, self._report.residuals)

    def _close(self) -> None:
        """Write the state, and send the reports."""
        report = self._report
        report.inputs = self._inbox.producers()
        report.carried = self._outbox.carried
        report.watermarks.update(self._watermarks.reported)
        if not self._failed:
            # State is written last, so that a task that failed writes none. If an error comes here, no record names
            # the runs that are already written, and a sweep deletes them later.
            began = time.monotonic()
            try:
                self._side_inputs.store(report)
                report.runs = self._state.seal()
                report.has_finalizers = self._bundles.has_finalizers()
            except Exception as error:
                report.failure = failure_of(error, "writing state")
            report.working_seconds += time.monotonic() - began
        self._outbox.close(report, self._watermarks.outputs)


def _unread(residual: Residual) -> ResidualReport:
    """Return a residual that the task has not read, as it was."""
    return ResidualReport(
        residual.transform, residual.element_id, residual.element, residual.watermark_us, delay_us=0
    )
