"""One task: all stages of one level, for one partition, in one epoch. No Spark in here.

    frames of the level above  →  stages, in order  →  frames for the levels below, a report, a control record

The task never raises for what a stage does: a user's exception is a fact for the driver, not a reason for
Spark to try again on its own. It travels in the control record; the levels below do nothing then.
"""

from __future__ import annotations

import logging
import pickle
import time
import traceback
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from penstock.attempt import running_attempt
from penstock.runner.harness.bundle import Budget
from penstock.runner.harness.elements import ElementCoder
from penstock.runner.harness.side_inputs import Held
from penstock.runner.planning.plan import Edge, Origin, Plan, Routing, Stage
from penstock.runner.protocol.frames import Frame, Kind
from penstock.runner.protocol.record import EarliestTimers, WatermarkKey
from penstock.runner.store.keys import KEY_GROUPS, groups_of
from penstock.runner.tasks.epoch import (
    BEGINNING_US,
    MAX_US,
    CarriedElement,
    EpochInput,
    Failure,
    ProducerReport,
    ResidualReport,
    TaskReport,
)
from penstock.runner.tasks.inbox import Inbox
from penstock.runner.tasks.side_inputs import Views
from penstock.runner.tasks.stage_run import Setting, StageRun
from penstock.runner.tasks.stages import run_of
from penstock.runner.tasks.task_state import TaskState
from penstock.runner.tasks.worker_plan import Prepared, prepared
from penstock.runner.tasks.worker_warnings import kept

logger = logging.getLogger(__name__)

Packet = tuple[int, bytes]
"""(target partition, packed frame)."""


def run_level(
    plan: Plan, level: int, partition: int, epoch: EpochInput, frames: Iterable[bytes]
) -> Iterator[Packet]:
    """Run a level's stages for one partition; yield what goes to the next level, or to the driver.

    `frames` are those that the level above has sent to this partition (none at level 0). Of the last level
    only control records come out.
    """
    mine = prepared(plan)
    for processor in mine.finalizers.run(epoch.attempt.epoch, epoch.committed_nonces):
        mine.give_back(processor)
    task = _Task(plan, mine, level, partition, epoch)
    try:
        yield from task.run(frames)
    finally:
        task.close()


class _Task:
    def __init__(self, plan: Plan, prepared: Prepared, level: int, partition: int, epoch: EpochInput) -> None:
        self.plan = plan
        self.level = level
        self.partition = partition
        self.epoch = epoch
        self._prepared = prepared
        self.nonce = uuid.uuid4().hex[:16]
        self._begun = time.monotonic()
        self.report = TaskReport(nonce=self.nonce)
        self._stages = plan.at(level)
        self._input = epoch.inputs[partition].for_steps(plan.steps_at(level))
        self._runs: dict[int, StageRun] = {}
        self._pending: deque[tuple[int, int, bytes]] = deque()
        self._sent: dict[tuple[int, int], int] = {}
        self._inbox = Inbox(plan, level, epoch.partitions)
        self._attempt = replace(epoch.attempt, nonce=self.nonce)
        groups = groups_of(partition, epoch.partitions)
        self._groups = (groups.start, groups.stop - 1) if groups else (KEY_GROUPS, KEY_GROUPS - 1)
        self._state = TaskState(epoch, self.nonce, *self._groups)
        self._where = ""
        self._position = ""
        self._outputs: dict[int, int] = {}
        self._views = Views(plan, self._prepared.context, epoch, self._state, self._groups)
        self._held: dict[int, Held] = {}
        self._all_in = False
        self._sound = False

    def run(self, frames: Iterable[bytes]) -> Iterator[Packet]:
        """Take all frames in, run the stages, and report."""
        for data in frames:
            frame = Frame.unpack(data)
            if self._inbox.passes_on(frame):
                yield self.partition, data
            for ready in self._inbox.take(frame):
                if self.report.failure is None:
                    yield from self._guarded(self._take, ready)
        self.report.problem = self._inbox.problem()
        if not self.report.problem and self.report.failure is None:
            yield from self._release()
        if not self.report.problem and self.report.failure is None:
            yield from self._guarded(self._work)
        yield from self._close_off()
        self._sound = self.report.failure is None and not self.report.problem

    def close(self) -> None:
        """Keep what can be used again; drop what an error, or an end before the end, may have left half done."""
        for run in self._runs.values():
            processor = run.processor
            if not self._sound:
                run.discard()
            elif self.plan.streaming and processor.to_finalize:
                self._prepared.finalizers.hold(self.epoch.attempt.epoch, self.nonce, processor)
            else:
                processor.finalize()
                self._prepared.give_back(processor)

    # Work.

    def _guarded(self, work: Any, *args: Any) -> Iterator[Packet]:
        """Run a piece of work, then send what it has made; an exception becomes a failure."""
        try:
            with running_attempt(self._attempt), kept(self.report.warnings):
                work(*args)
        except Exception as error:
            self.report.failure = _failure(error, self._where + self._position)
            self._pending.clear()
            return
        yield from self._sendable()

    def _take(self, frame: Frame) -> None:
        edge = self.plan.edges[frame.edge]
        if edge.side:
            self._views.of(edge).add(frame.payload)
            return
        self._feed_and_pass(self.plan.stages[edge.consumer], frame.payload)

    def _feed(self, stage: Stage, block: bytes) -> None:
        """Run a block through a stage, or hold it back while side inputs of the stage may still come."""
        if not stage.sides:
            self._run(stage).take(block)
        elif not self._all_in:
            self._held.setdefault(stage.index, Held()).append(block)
        else:
            self._views.feed(stage, self._run(stage), block)

    def _release(self) -> Iterator[Packet]:
        """Run what was held back: all side inputs are complete, as far as this epoch goes."""
        self._all_in = True
        for stage in self._stages:
            if self.report.failure is None and stage.sides:
                yield from self._guarded(self._wake, stage)
            held = self._held.pop(stage.index, None)
            for block in held.release() if held else ():
                if self.report.failure is None:
                    yield from self._guarded(self._feed_and_pass, stage, block)

    def _wake(self, stage: Stage) -> None:
        """Run what has waited since earlier epochs and need not wait any more."""
        edges = [self.plan.edges[index] for index in stage.sides]
        self._views.complete(stage, {edge.index: self._edge_watermark(edge, {}) for edge in edges})
        if self._views.has_waiting(stage):
            self._views.wake(stage, self._run(stage))
            self._pass_locally()

    def _feed_and_pass(self, stage: Stage, block: bytes) -> None:
        self._feed(stage, block)
        self._pass_locally()

    def _work(self) -> None:
        self._publish()
        self._play()
        self._impulse()
        self._read()
        outputs: dict[int, int] = {}
        for stage in self._stages:
            watermark = self._input_watermark(stage, outputs)
            outputs[stage.index] = self._finish(stage, watermark)
            self._pass_locally()
        for edge in self.plan.carried_at(self.level):
            self.report.watermarks[WatermarkKey.carried(edge.name)] = self._edge_watermark(edge, outputs)
        self._outputs = outputs

    def _publish(self) -> None:
        for publication in self._input.publications:
            (stage,) = [
                s for s in self._stages if s.origin is Origin.PUBLISH and s.step == publication.transform
            ]
            self._run(stage).take(publication.element)
            self._pass_locally()

    def _play(self) -> None:
        for played in self._input.test_stream:
            (stage,) = [s for s in self._stages if s.origin is Origin.SCRIPT and s.step == played.step]
            self._run(stage).take(played.block)
            self._pass_locally()

    def _impulse(self) -> None:
        for stage in self._stages:
            if stage.origin is Origin.IMPULSE and stage.step in self._input.impulses:
                self._run(stage).take(_IMPULSE)
                self._pass_locally()

    def _read(self) -> None:
        readers = {stage.step: stage for stage in self._stages if stage.origin is Origin.RESIDUAL}
        residuals, limits = self._input.residuals, self.epoch.limits
        end = self._begun + limits.seconds
        for index, residual in enumerate(residuals):
            share = max(0.0, end - time.monotonic()) / (len(residuals) - index)
            self._position = f", reading element {residual.element_id}"
            budget = Budget(time.monotonic() + share, limits.max_records, limits.max_bytes)
            for cut in self._run(readers[residual.transform]).read(residual.element, budget):
                mark = residual.watermark_us
                if cut.watermark_us is not None:
                    mark = max(mark, cut.watermark_us)
                self.report.residuals.append(
                    ResidualReport(residual.transform, residual.element_id, cut.element, mark, cut.delay_us)
                )
            self._pass_locally()
            self._position = ""

    def _run(self, stage: Stage) -> StageRun:
        self._where = stage.label
        run = self._runs.get(stage.index)
        if run is None:
            processor = self._prepared.processor(stage)
            processor.state.sides = self._views.by_name(stage)
            run = self._runs[stage.index] = run_of(processor, self._setting(stage))
        return run

    def _setting(self, stage: Stage) -> Setting:
        known = self._known_timers(stage)
        return Setting(
            partition=self.partition,
            partitions=self.epoch.partitions,
            first=self._groups[0],
            last=self._groups[1],
            send=lambda edge, target, block: self._pending.append((edge, target, block)),
            state=self._state,
            now_us=self.epoch.now_us,
            input_us=self.epoch.watermark_us(WatermarkKey.input(stage.state)),
            output_us=self.epoch.watermark_us(WatermarkKey.output(stage.state)),
            bounded=not self.plan.streaming,
            event_due_us=known.event_us,
            processing_due_us=known.processing_us,
            set_back_us=self.epoch.set_back_us,
        )

    def _known_timers(self, stage: Stage) -> EarliestTimers:
        """The earliest timers that the last record holds for the key groups of the task."""
        known = self.epoch.state.get(stage.state)
        mine = [
            timers
            for timers in (known.timers if known else ())
            if timers.first_key_group <= self._groups[1] and timers.last_key_group >= self._groups[0]
        ]
        return EarliestTimers(
            stage.state,
            *self._groups,
            event_us=_earliest(timers.event_us for timers in mine),
            processing_us=_earliest(timers.processing_us for timers in mine),
            hold_us=_earliest(timers.hold_us for timers in mine),
        )

    def _finish(self, stage: Stage, watermark: int) -> int:
        """End a stage's bundle; return its output watermark."""
        self._where = stage.label
        watermark = self._views.held(stage, watermark)
        if stage.state:
            self.report.watermarks[WatermarkKey.input(stage.state)] = watermark
        hold = self._known_timers(stage).hold_us
        if stage.index not in self._runs and not self._due(stage, watermark):
            return self._output_watermark(stage, watermark, hold)
        outcome = self._run(stage).finish(watermark)
        self.report.metrics.extend(outcome.metrics)
        self.report.dropped += outcome.dropped
        if outcome.timers is not None:
            self.report.timers[stage.state] = EarliestTimers(
                stage.state, *self._groups, *outcome.timers, outcome.hold_us
            )
            hold = None
        return self._output_watermark(stage, outcome.watermark_us, hold)

    def _due(self, stage: Stage, watermark: int) -> bool:
        known = self._known_timers(stage)
        if known.event_us is not None and known.event_us <= watermark:
            return True
        if known.processing_us is None:
            return False
        return self.epoch.set_back_us > 0 or known.processing_us <= self.epoch.now_us()

    def _output_watermark(self, stage: Stage, watermark: int, hold: int | None) -> int:
        if hold is not None:
            watermark = min(watermark, hold)
        if stage.grouped:
            self.report.watermarks[WatermarkKey.output(stage.state)] = watermark
        if stage.origin is Origin.RESIDUAL:
            key = WatermarkKey.output(stage.step)
            marks = [left.watermark_us for left in self.report.residuals if left.step == stage.step]
            watermark = min([watermark, *marks, self.epoch.waiting_residuals_us.get(stage.step, watermark)])
            watermark = max(watermark, self.epoch.watermark_us(key))
            self.report.watermarks[key] = watermark
        return watermark

    # Watermarks.

    def _input_watermark(self, stage: Stage, outputs: dict[int, int]) -> int:
        if stage.origin is Origin.IMPULSE:
            return MAX_US
        if stage.origin is not Origin.EDGE:
            return self.epoch.watermark_us(WatermarkKey.carried(stage.step))
        (edge,) = (self.plan.edges[e] for e in stage.inputs)
        known = self.epoch.watermark_us(WatermarkKey.input(stage.state)) if stage.state else BEGINNING_US
        return max(known, self._edge_watermark(edge, outputs))

    def _edge_watermark(self, edge: Edge, outputs: dict[int, int]) -> int:
        """The lowest watermark of the producers; of those that keep the partition only our own counts."""
        marks = [self._producer_watermark(edge, producer, outputs) for producer in edge.producers]
        return min(marks, default=MAX_US)

    def _producer_watermark(self, edge: Edge, producer: int, outputs: dict[int, int]) -> int:
        if producer in outputs:
            return outputs[producer]
        if edge.routing.stays:
            return self._inbox.watermarks[(producer, self.partition)]
        return min(self._inbox.watermarks[(producer, p)] for p in range(self.epoch.partitions))

    # Output.

    def _pass_locally(self) -> None:
        """Feed what stays in this partition to its stage in this task; keep what the record carries."""
        waiting, self._pending = self._pending, deque()
        leaving: deque[tuple[int, int, bytes]] = deque()
        while waiting:
            number, target, block = waiting.popleft()
            edge = self.plan.edges[number]
            if edge.routing.carried:
                self.report.carried.append(CarriedElement(edge.name, block))
            elif edge.level == self.level and edge.routing is Routing.LOCAL:
                self._feed(self.plan.stages[edge.consumer], block)
                waiting.extend(self._pending)
                self._pending.clear()
            else:
                leaving.append((number, target, block))
        self._pending = leaving

    def _sendable(self) -> Iterator[Packet]:
        while self._pending:
            edge, target, block = self._pending.popleft()
            number = self._sent.get((edge, target), 0)
            self._sent[(edge, target)] = number + 1
            yield target, self._frame(Kind.DATA, edge, number, block)

    def _close_off(self) -> Iterator[Packet]:
        """Seal state, tell each consumer what to expect, and the driver everything."""
        self.report.inputs = self._inbox.producers()
        if self.report.failure is None and not self.report.problem:
            try:
                self._views.keep(self.report)
                self.report.runs = self._state.seal()
                self.report.has_finalizers = any(run.processor.to_finalize for run in self._runs.values())
            except Exception as error:
                self.report.failure = _failure(error, "writing state")
        if self.level + 1 < self.plan.depth:
            failed = self.report.failure is not None or bool(self.report.problem)
            marks = {} if failed else self._outputs
            for target in range(self.epoch.partitions):
                counts = {edge: n for (edge, to), n in self._sent.items() if to == target}
                payload = pickle.dumps(ProducerReport(failed, counts, marks), pickle.HIGHEST_PROTOCOL)
                yield target, self._frame(Kind.REPORT, 0, 0, payload)
        payload = pickle.dumps(self.report, pickle.HIGHEST_PROTOCOL)
        yield self.partition, self._frame(Kind.CONTROL, 0, 0, payload)

    def _frame(self, kind: Kind, edge: int, number: int, payload: bytes) -> bytes:
        return Frame(kind, self.level, self.partition, self.nonce, edge, number, payload).pack()


def _earliest(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _failure(error: Exception, where: str) -> Failure:
    summary = "".join(traceback.format_exception_only(error)).strip()
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception as unpicklable:
        logger.debug("the exception does not pickle (%s); its text goes instead", type(unpicklable).__name__)
        pickled = None
    trace = "".join(traceback.format_exception(error))
    return Failure(summary, trace, where, pickled)


def _impulse_block() -> bytes:
    from apache_beam import coders
    from apache_beam.transforms.window import GlobalWindows

    coder = ElementCoder(coders.BytesCoder(), coders.coders.GlobalWindowCoder())
    encoded: bytes = coder.get_impl().encode_nested(GlobalWindows.windowed_value(b""))
    return encoded


_IMPULSE = _impulse_block()
