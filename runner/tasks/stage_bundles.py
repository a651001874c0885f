"""Opens the stages of one task when they get their first input, feeds them, and ends them in order.

A stage with side inputs starts when all of this epoch's elements of its side inputs have arrived. Earlier blocks wait
in a `BlockSpool`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.runner.harness.bundle import ReadResidual, StageProcessor, suspended_stage
from penstock.runner.harness.side_inputs import BlockSpool
from penstock.runner.harness.split_timer import Budget
from penstock.runner.harness.writer import Send
from penstock.runner.planning.plan import Stage
from penstock.runner.protocol.record import WatermarkKey
from penstock.runner.tasks.grouping_bundle import CompleteBundle, PanesBundle, TriggeredBundle
from penstock.runner.tasks.scope import TaskScope
from penstock.runner.tasks.side_inputs import SideInputs
from penstock.runner.tasks.stage_bundle import StageBundle, StageContext, StageResult
from penstock.runner.tasks.stateful_bundle import StatefulBundle
from penstock.runner.tasks.task_state import TaskState
from penstock.runner.tasks.worker_plan import WorkerPlan


class StageBundles:
    """The bundles of the stages of one task. `send` takes what they write."""

    def __init__(
        self,
        scope: TaskScope,
        worker_plan: WorkerPlan,
        state: TaskState,
        side_inputs: SideInputs,
        send: Send,
    ) -> None:
        self._scope = scope
        self._worker_plan = worker_plan
        self._state = state
        self._side_inputs = side_inputs
        self._send = send
        self._bundles: dict[int, StageBundle] = {}
        self._spools: dict[int, BlockSpool] = {}
        self._side_inputs_complete = False
        self.where = ""
        """The stage (and the element that it reads) that runs now or that raised the last exception, for messages."""

    # Input.

    def feed(self, stage: Stage, block: bytes) -> None:
        """Run a block of input through a stage, or keep it until the side inputs are complete.

        Another stage may be running: the one that has just written this block.
        """
        if stage.sides and not self._side_inputs_complete:
            self._spools.setdefault(stage.index, BlockSpool()).append(block)
            return
        with self._running(stage) as bundle:
            if stage.sides:
                self._side_inputs.feed(stage, bundle, block)
            else:
                bundle.take(block)

    def read(self, stage: Stage, element_id: str, element: bytes, budget: Budget) -> list[ReadResidual]:
        """Read an element of a splittable DoFn until the budget is used up; return the rest of it."""
        with self._running(stage, f", reading element {element_id}") as bundle:
            return bundle.read(element, budget)

    def records_read(self) -> int:
        """Return how many records the stages that read have written so far."""
        return sum(
            bundle.processor.output_size()[0]
            for bundle in self._bundles.values()
            if bundle.processor.stage.reads
        )

    def complete_side_inputs(self) -> None:
        """Let stages with side inputs run: all of this epoch's elements of side inputs have arrived."""
        self._side_inputs_complete = True

    def resume_blocked(self, stage: Stage) -> None:
        """Run elements that earlier epochs blocked and whose side inputs are ready now."""
        if self._side_inputs.has_blocked(stage):
            with self._running(stage) as bundle:
                self._side_inputs.resume(stage, bundle)

    def spooled(self, stage: Stage) -> Iterator[bytes]:
        """Yield the blocks that have waited for the side inputs of a stage, then delete them."""
        spool = self._spools.pop(stage.index, None)
        return spool.release() if spool else iter(())

    # The end of a bundle.

    def end(self, stage: Stage, input_us: int) -> StageResult | None:
        """End a stage's bundle at an input watermark; None if it got no input and no timer of it is due."""
        if stage.index not in self._bundles and not self._timer_due(stage, input_us):
            return None
        with self._running(stage) as bundle:
            return bundle.finish(input_us)

    def _timer_due(self, stage: Stage, input_us: int) -> bool:
        timers = self._scope.earliest_timers(stage.state)
        if timers.event_us is not None and timers.event_us <= input_us:
            return True
        if timers.processing_us is None:
            return False
        # If the wall clock was set back, run the stage so that it can move its timers.
        return self._scope.epoch.set_back_us > 0 or timers.processing_us <= self._scope.epoch.now_us()

    def has_finalizers(self) -> bool:
        """Whether a DoFn of the task has registered bundle finalizers."""
        # Call this before `close`, which gives the processors back.
        return any(bundle.processor.to_finalize for bundle in self._bundles.values())

    def close(self, *, succeeded: bool) -> None:
        """Return the processors for the next task, or discard them: an error may have left them half done."""
        for bundle in self._bundles.values():
            if succeeded:
                self._return(bundle.processor)
            else:
                bundle.discard()

    def _return(self, processor: StageProcessor) -> None:
        if self._scope.plan.streaming and processor.to_finalize:
            epoch = self._scope.epoch.attempt.epoch
            self._worker_plan.finalizers.hold(epoch, self._scope.nonce, processor)
        else:
            # A batch has no commit to wait for. In a stream, a processor without finalizers need not wait for one.
            processor.finalize()
            self._worker_plan.give_back(processor)

    # Runs.

    @contextmanager
    def _running(self, stage: Stage, element: str = "") -> Iterator[StageBundle]:
        """Run a stage, perhaps in the middle of another one.

        `where` is put back only if the stage succeeds: after an exception it names the innermost stage.
        """
        before, self.where = self.where, stage.label + element
        with suspended_stage():
            yield self._bundle(stage)
        self.where = before

    def _bundle(self, stage: Stage) -> StageBundle:
        bundle = self._bundles.get(stage.index)
        if bundle is None:
            processor = self._worker_plan.processor(stage)
            # Set for each task: an idle processor still has the side inputs of the last task that used it.
            processor.state.side_inputs = self._side_inputs.by_name(stage)
            bundle = self._bundles[stage.index] = make_stage_bundle(processor, self._context(stage))
        return bundle

    def _context(self, stage: Stage) -> StageContext:
        scope, epoch = self._scope, self._scope.epoch
        first, last = scope.key_groups
        timers = scope.earliest_timers(stage.state)
        return StageContext(
            partition=scope.partition,
            partitions=scope.partitions,
            first_key_group=first,
            last_key_group=last,
            send=self._send,
            state=self._state,
            now_us=epoch.now_us,
            input_us=epoch.watermark_us(WatermarkKey.input(stage.state)),
            output_us=epoch.watermark_us(WatermarkKey.output(stage.state)),
            bounded=not scope.plan.streaming,
            event_due_us=timers.event_us,
            processing_due_us=timers.processing_us,
            set_back_us=epoch.set_back_us,
        )


def make_stage_bundle(processor: StageProcessor, context: StageContext) -> StageBundle:
    """Make the kind of bundle that a stage needs."""
    stage = processor.stage
    kind: type[StageBundle] = StageBundle
    if stage.group:
        in_batch = TriggeredBundle if stage.group.triggered else CompleteBundle
        kind = in_batch if context.bounded else PanesBundle
    elif stage.state:
        kind = StatefulBundle
    return kind(processor, context)
