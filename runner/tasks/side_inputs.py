"""The side inputs of one task: in batch whole, in a stream pane by pane, with the elements that wait for them.

In a stream a window of the main input is *ready* when each of its side inputs has had a pane for the window that
it is mapped to, or the watermark of the side input has passed that window, which then is empty. An element waits
in those of its windows that are not ready; once it waits, it holds the watermark of its stage.

The panes of all partitions are the same, so one partition, the owner of the first key group, keeps them in the
state store for all; a window is forgotten when the main input can have no element for it any more, and when no
splittable DoFn has anything left to read in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apache_beam.internal import pickler
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.bundle import PlanContext, StageProcessor
from penstock.runner.harness.side_inputs import Panes, SideInput
from penstock.runner.planning.plan import Edge, Plan, Stage
from penstock.runner.protocol.record import EarliestTimers, WatermarkKey
from penstock.runner.store.cells import EVENT, Cells, Timers
from penstock.runner.store.keys import key_group
from penstock.runner.tasks.blocked_elements import Queue, Waiting
from penstock.runner.tasks.epoch import EpochInput, StepState, TaskReport
from penstock.runner.tasks.stage_run import StageRun
from penstock.runner.tasks.task_state import TaskState

_PANE = b"pane"


class Views:
    """Side inputs and waiting elements of the stages of one task."""

    def __init__(
        self, plan: Plan, context: PlanContext, epoch: EpochInput, state: TaskState, groups: tuple[int, int]
    ) -> None:
        self._plan = plan
        self._context = context
        self._epoch = epoch
        self._state = state
        self._groups = groups
        self._sides: dict[int, SideInput] = {}
        self._mappings: dict[int, Any] = {}
        self._watermarks: dict[int, int] = {}
        self._ready: dict[tuple[int, Any], bool] = {}
        self._waiting: dict[str, tuple[Waiting, Timers]] = {}
        self._marks: dict[str, int] = {}

    def of(self, edge: Edge) -> SideInput:
        """The side input that an edge brings."""
        known = self._sides.get(edge.index)
        if known is None:
            known = self._sides[edge.index] = self._panes(edge) if self._plan.streaming else self._whole(edge)
        return known

    def by_name(self, stage: Stage) -> Mapping[tuple[str, str], SideInput]:
        """The side inputs of a stage by transform and tag."""
        edges = (self._plan.edges[index] for index in stage.sides)
        return {(edge.side.transform, edge.side.tag): self.of(edge) for edge in edges if edge.side}

    # Elements.

    def complete(self, stage: Stage, watermarks: Mapping[int, int]) -> None:
        """Take note of the watermarks of a stage's side inputs, by edge: all their panes of the epoch are in."""
        self._watermarks.update(watermarks)

    def feed(self, stage: Stage, run: StageRun, block: bytes) -> None:
        """Run a block through a stage, but for what has to wait."""
        if not self._plan.streaming:
            run.take(block)
            return
        for element in run.processor.elements(block):
            late = tuple(window for window in element.windows if not self._is_ready(stage, window))
            for window in late:
                self._wait(stage, run.processor, _within(element, (window,)))
            if not late:
                run.take_element(element)
            elif ready := tuple(window for window in element.windows if window not in late):
                run.take_element(_within(element, ready))

    def has_waiting(self, stage: Stage) -> bool:
        """Whether the record says that something waits for a stage in the key groups of the task."""
        return self._plan.streaming and self._hold_of_record(stage) is not None

    def wake(self, stage: Stage, run: StageRun) -> None:
        """Run what has waited for windows that are ready now."""
        waiting, _ = self._open(stage)
        windows: Any = run.processor.coder.window_coder
        for queue in waiting.queues():
            if self._is_ready(stage, windows.decode(queue.window)):
                for data in waiting.take(queue):
                    for element in run.processor.elements(data):
                        run.take_element(element)

    def held(self, stage: Stage, watermark_us: int) -> int:
        """The input watermark of a stage, held by what waits for it."""
        if not (self._plan.streaming and stage.sides):
            return watermark_us
        opened = self._waiting.get(stage.waiting)
        hold = opened[0].hold_us() if opened else self._hold_of_record(stage)
        self._marks[stage.waiting] = watermark_us if hold is None else min(watermark_us, hold)
        return self._marks[stage.waiting]

    # At the end of the task.

    def keep(self, report: TaskReport) -> None:
        """Put new panes and waiting elements into the state store, and say so."""
        for name, (waiting, timers) in self._waiting.items():
            report.timers[name] = EarliestTimers(
                name, *self._groups, event_us=timers.earliest(EVENT), hold_us=waiting.hold_us()
            )
        for name, mark in self._marks.items():
            report.watermarks[WatermarkKey.input(name)] = mark
        for index, side in self._sides.items():
            if isinstance(side, Panes) and side.new and self._groups[0] == 0:
                self._keep(self._plan.edges[index], side, report)

    def _keep(self, edge: Edge, panes: Panes, report: TaskReport) -> None:
        assert edge.side is not None
        cells = Cells(self._state.open(edge.side.state))
        for window, pane in panes.new.items():
            cells.replace(0, b"", window, _PANE, pane)
        stage = self._plan.stages[edge.consumer]
        lateness = self._context.windowing(stage.collection).allowed_lateness.micros
        passed = self._epoch.watermark_us(WatermarkKey.input(stage.waiting)) - lateness
        passed = min(passed, self._epoch.earliest_window_end_us.get(stage.step, passed))
        for encoded, window in panes.windows():
            if window.max_timestamp().micros < passed:
                cells.clear(0, b"", encoded, _PANE)
        report.timers[edge.side.state] = EarliestTimers(edge.side.state, *self._groups)

    # Inside.

    def _whole(self, edge: Edge) -> SideInput:
        assert edge.side is not None
        return SideInput(self._context.coder(edge.collection), keyed=edge.side.keyed)

    def _panes(self, edge: Edge) -> Panes:
        assert edge.side is not None
        side = edge.side
        runs = self._epoch.state.get(side.state, StepState()).runs
        kept = self._context.kept.get(edge.index)
        if kept is None or kept[0] != runs:
            known = self._new_panes(edge)
            for _, _, pane in Cells(self._state.look(side.state)).named(0, _PANE):
                known.add(pane)
            kept = self._context.kept[edge.index] = (runs, known)
        return self._new_panes(edge).resumed(kept[1])

    def _new_panes(self, edge: Edge) -> Panes:
        assert edge.side is not None
        coder, elements = self._context.coder(edge.collection), self._context.coder(edge.side.elements)
        return Panes(coder, elements, keyed=edge.side.keyed)

    def _is_ready(self, stage: Stage, window: Any) -> bool:
        known = self._ready.get((stage.index, window))
        if known is None:
            edges = (self._plan.edges[index] for index in stage.sides)
            known = self._ready[stage.index, window] = all(self._has(edge, window) for edge in edges)
        return known

    def _has(self, edge: Edge, window: Any) -> bool:
        side = self.of(edge)
        assert isinstance(side, Panes)
        mapped = self._mapping(edge)(window)
        return side.shows(mapped) or self._watermarks[edge.index] > mapped.max_timestamp().micros

    def _mapping(self, edge: Edge) -> Any:
        if edge.index not in self._mappings:
            assert edge.side is not None
            self._mappings[edge.index] = pickler.loads(edge.side.mapping)
        return self._mappings[edge.index]

    def _wait(self, stage: Stage, processor: StageProcessor, element: WindowedValue) -> None:
        group = self._groups[0]
        if stage.state:
            keys: Any = processor.coder.wrapped_value_coder.key_coder()
            group = key_group(keys.get_impl().encode_nested(element.value[0]))
        windows: Any = processor.coder.window_coder
        queue = Queue(group, windows.encode(element.windows[0]))
        encoded = processor.coder.get_impl().encode_nested(element)
        self._open(stage)[0].add(queue, element.timestamp_micros, encoded)

    def _open(self, stage: Stage) -> tuple[Waiting, Timers]:
        if stage.waiting not in self._waiting:
            store = self._state.open(stage.waiting)
            timers = Timers(store, *self._groups)
            self._waiting[stage.waiting] = Waiting(Cells(store), timers), timers
        return self._waiting[stage.waiting]

    def _hold_of_record(self, stage: Stage) -> int | None:
        known = self._epoch.state.get(stage.waiting, StepState())
        holds = [
            timers.hold_us
            for timers in known.timers
            if timers.hold_us is not None
            and timers.first_key_group <= self._groups[1]
            and timers.last_key_group >= self._groups[0]
        ]
        return min(holds, default=None)


def _within(element: WindowedValue, windows: tuple[Any, ...]) -> WindowedValue:
    return WindowedValue(element.value, element.timestamp, windows, element.pane_info)
