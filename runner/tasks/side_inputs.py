"""The side inputs of one task, and the elements of a stream that are blocked until their side inputs are ready.

In batch a side input is complete before the first element is processed. In a stream it is a sequence of panes (see
`planning/views.py`). A window of the main input is mapped to one window of each side input. It is *ready* when each of
these has had a pane, or is known to be empty because the watermark of the side input has passed it. An element is
blocked in each of its windows that is not ready.

All partitions get the same panes, so one partition stores them for all: the owner of the first key group. A window is
deleted when the main input can have no more elements for it and no splittable DoFn still reads in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apache_beam.internal import pickler
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.bundle import PlanContext, StageProcessor
from penstock.runner.harness.side_inputs import SideInput, SideInputPanes, WholeSideInput
from penstock.runner.planning.plan import Edge, SideInputSpec, Stage
from penstock.runner.protocol.record import EarliestTimers, WatermarkKey
from penstock.runner.store.cells import Cells, Timers
from penstock.runner.store.keys import key_group
from penstock.runner.tasks.blocked_elements import BlockedElements, BlockedQueue
from penstock.runner.tasks.epoch import StepState, TaskReport
from penstock.runner.tasks.scope import TaskScope
from penstock.runner.tasks.stage_bundle import StageBundle
from penstock.runner.tasks.task_state import TaskState

_PANE = b"pane"


class SideInputs:
    """Side inputs of the stages of one task, by edge."""

    def __init__(self, scope: TaskScope, context: PlanContext, state: TaskState) -> None:
        self._scope = scope
        self._plan = scope.plan
        self._context = context
        self._state = state
        self._sides: dict[int, SideInput] = {}
        self._mappings: dict[int, Any] = {}
        self._watermarks_us: dict[int, int] = {}
        self._ready: dict[tuple[int, Any], bool] = {}
        self._blocked: dict[str, BlockedElements] = {}
        self._held_us: dict[str, int] = {}

    def of(self, edge: Edge) -> SideInput:
        """Return the side input of an edge."""
        known = self._sides.get(edge.index)
        if known is None:
            known = self._sides[edge.index] = self._panes(edge) if self._plan.streaming else self._whole(edge)
        return known

    def by_name(self, stage: Stage) -> Mapping[tuple[str, str], SideInput]:
        """Return the side inputs of a stage by transform and tag."""
        edges = (self._plan.edges[index] for index in stage.sides)
        return {(edge.side.transform, edge.side.tag): self.of(edge) for edge in edges if edge.side}

    # Elements.

    def complete(self, watermarks_us: Mapping[int, int]) -> None:
        """Set the watermarks of side inputs, by edge: all their panes of this epoch have come."""
        self._watermarks_us.update(watermarks_us)

    def feed(self, stage: Stage, bundle: StageBundle, block: bytes) -> None:
        """Run a block through a stage, except for elements that are blocked."""
        if not self._plan.streaming:
            bundle.take(block)
            return
        for element in bundle.processor.elements(block):
            # Decide window by window: an element in several windows is processed in those that are ready, and blocked
            # in the others.
            unready = tuple(window for window in element.windows if not self._is_ready(stage, window))
            for window in unready:
                self._block(stage, bundle.processor, _in_windows(element, (window,)))
            if not unready:
                bundle.take_element(element)
            elif ready := tuple(window for window in element.windows if window not in unready):
                bundle.take_element(_in_windows(element, ready))

    def has_blocked(self, stage: Stage) -> bool:
        """Whether the last record has blocked elements of a stage in the key groups of the task."""
        return self._plan.streaming and self._recorded_hold_us(stage) is not None

    def resume(self, stage: Stage, bundle: StageBundle) -> None:
        """Run blocked elements whose windows are ready now."""
        blocked = self._open(stage)
        windows: Any = bundle.processor.coder.window_coder
        for queue in blocked.queues():
            if self._is_ready(stage, windows.decode(queue.window)):
                # Removal and output are in one epoch, so an epoch that fails leaves the queue as it was.
                for data in blocked.remove(queue):
                    for element in bundle.processor.elements(data):
                        bundle.take_element(element)

    def held_us(self, stage: Stage, watermark_us: int) -> int:
        """Return the input watermark of a stage, held by its blocked elements."""
        if not (self._plan.streaming and stage.sides):
            return watermark_us
        opened = self._blocked.get(stage.waiting)
        hold = opened.hold_us() if opened else self._recorded_hold_us(stage)
        self._held_us[stage.waiting] = watermark_us if hold is None else min(watermark_us, hold)
        return self._held_us[stage.waiting]

    # At the end of the task.

    def store(self, report: TaskReport) -> None:
        """Write new panes to the state store, and report them and the blocked elements."""
        groups = self._scope.key_groups
        for name, blocked in self._blocked.items():
            report.timers[name] = EarliestTimers(
                name, *groups, event_us=blocked.earliest_us(), hold_us=blocked.hold_us()
            )
        for name, held in self._held_us.items():
            report.watermarks[WatermarkKey.input(name)] = held
        for index, side in self._sides.items():
            # Expired windows are deleted only together with new panes. Without new panes the stored state does not
            # grow, and the stage need not open it.
            if isinstance(side, SideInputPanes) and side.new and groups[0] == 0:
                self._store_panes(self._plan.edges[index], side)
                name = _side_of(self._plan.edges[index]).state
                report.timers[name] = EarliestTimers(name, *groups)

    def _store_panes(self, edge: Edge, panes: SideInputPanes) -> None:
        cells = Cells(self._state.open(_side_of(edge).state))
        for window, pane in panes.new.items():
            cells.replace(0, b"", window, _PANE, pane)
        stage = self._plan.stages[edge.consumer]
        lateness = self._context.windowing(stage.collection).allowed_lateness.micros
        passed = self._scope.epoch.watermark_us(WatermarkKey.input(stage.waiting)) - lateness
        passed = min(passed, self._scope.epoch.earliest_window_end_us.get(stage.step, passed))
        for encoded, window in panes.windows():
            if window.max_timestamp().micros < passed:
                cells.clear(0, b"", encoded, _PANE)

    # Panes.

    def _whole(self, edge: Edge) -> SideInput:
        return WholeSideInput(self._context.coder(edge.collection), keyed=_side_of(edge).keyed)

    def _panes(self, edge: Edge) -> SideInputPanes:
        """The panes of the last record, decoded once per process for as long as the record names the same runs."""
        name = _side_of(edge).state
        runs = self._scope.epoch.state.get(name, StepState()).runs
        # One entry per edge: the runs change only when panes arrive. Tasks of one process run one after the other and
        # share it.
        cached = self._context.side_input_cache.get(edge.index)
        if cached is None or cached[0] != runs:
            known = self._new_panes(edge)
            for _, _, pane in Cells(self._state.open_read_only(name)).cells_named(0, _PANE):
                known.add(pane)
            cached = self._context.side_input_cache[edge.index] = (runs, known)
        return self._new_panes(edge).resumed(cached[1])

    def _new_panes(self, edge: Edge) -> SideInputPanes:
        side = _side_of(edge)
        coder, elements = self._context.coder(edge.collection), self._context.coder(side.elements)
        return SideInputPanes(coder, elements, keyed=side.keyed)

    # Readiness.

    def _is_ready(self, stage: Stage, window: Any) -> bool:
        known = self._ready.get((stage.index, window))
        if known is None:
            edges = (self._plan.edges[index] for index in stage.sides)
            # Cached for the whole task. It cannot change: this is called only after all panes of the epoch have come.
            known = self._ready[stage.index, window] = all(self._has_pane(edge, window) for edge in edges)
        return known

    def _has_pane(self, edge: Edge, window: Any) -> bool:
        side = self.of(edge)
        assert isinstance(side, SideInputPanes)
        mapped = self._mapping(edge)(window)
        return side.has(mapped) or self._watermarks_us[edge.index] > mapped.max_timestamp().micros

    def _mapping(self, edge: Edge) -> Any:
        if edge.index not in self._mappings:
            # Beam's pickler, because the mapping function was pickled by Beam with the pipeline and may be a class of
            # the user's program.
            self._mappings[edge.index] = pickler.loads(_side_of(edge).mapping)
        return self._mappings[edge.index]

    # Blocked elements.

    def _block(self, stage: Stage, processor: StageProcessor, element: WindowedValue) -> None:
        # An element of a stateful stage is stored under its key's group, so that it moves with the key's state when
        # the parallelism changes. Any other element may be stored in any group of the task.
        group = self._scope.key_groups[0]
        if stage.state:
            keys: Any = processor.coder.wrapped_value_coder.key_coder()
            group = key_group(keys.get_impl().encode_nested(element.value[0]))
        windows: Any = processor.coder.window_coder
        queue = BlockedQueue(group, windows.encode(element.windows[0]))
        encoded = processor.coder.get_impl().encode_nested(element)
        self._open(stage).add(queue, element.timestamp_micros, encoded)

    def _open(self, stage: Stage) -> BlockedElements:
        if stage.waiting not in self._blocked:
            store = self._state.open(stage.waiting)
            timers = Timers(store, *self._scope.key_groups)
            self._blocked[stage.waiting] = BlockedElements(Cells(store), timers)
        return self._blocked[stage.waiting]

    def _recorded_hold_us(self, stage: Stage) -> int | None:
        return self._scope.earliest_timers(stage.waiting).hold_us


def _side_of(edge: Edge) -> SideInputSpec:
    assert edge.side is not None, "only edges of side inputs come here"
    return edge.side


def _in_windows(element: WindowedValue, windows: tuple[Any, ...]) -> WindowedValue:
    return WindowedValue(element.value, element.timestamp, windows, element.pane_info)
