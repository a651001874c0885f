"""The bundle of one stage in one task: it takes the stage's input, keeps its state, fires timers, and ends the bundle.

`StageBundle` processes elements as they come. It is also the base class of the other bundles: `stateful_bundle.py`
keeps state and timers in a store, `grouping_bundle.py` collects values and emits panes. `stage_bundles.py` chooses the
class.

Event time: an element is late if its window ended before the input watermark that the last record holds. Elements and a
new watermark that come in the same epoch do not make each other late. A window fires when the watermark is past the
window's last timestamp; a user's timer fires when the watermark has reached its time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.bundle import ReadResidual, StageProcessor
from penstock.runner.harness.split_timer import Budget
from penstock.runner.harness.writer import Send
from penstock.runner.store.cells import EVENT, HOLD, PROCESSING, Cells, Store, Timers
from penstock.runner.tasks.epoch import MAX_US


class StateAccess(Protocol):
    """Opens the state of the stages of one task."""

    def open(self, name: str) -> Store:
        """Return the store of a stateful transform, for the key groups of this task."""


@dataclass(frozen=True, slots=True)
class StageContext:
    """The properties of a task that its stages need. Times are microseconds.

    - `first_key_group`, `last_key_group`: the task's, inclusive.
    - `send`: takes the blocks that the stage writes.
    - `now_us`: returns the processing time; called when timers fire.
    - `input_us`, `output_us`: the stage's watermarks in the last record.
    - `bounded`: a batch, in which all processing-time timers fire when the input has ended.
    - `event_due_us`, `processing_due_us`: the earliest timers in the last record, None if there are none.
    - `set_back_us`: by how much pending processing-time timers are moved to an earlier time when the state is opened.
    """

    partition: int
    partitions: int
    first_key_group: int
    last_key_group: int
    send: Send
    state: StateAccess
    now_us: Callable[[], int]
    input_us: int
    output_us: int
    bounded: bool
    event_due_us: int | None = None
    processing_due_us: int | None = None
    set_back_us: int = 0


@dataclass(slots=True)
class StageResult:
    """The result of a stage's bundle.

    `timers` are the earliest timers in event time and in processing time. It is None if the stage keeps no timers, or
    did not open its state: then the timers and the hold in the last record are still right.
    """

    watermark_us: int
    metrics: list[bytes] = field(default_factory=list)
    timers: tuple[int | None, int | None] | None = None
    hold_us: int | None = None
    dropped: int = 0
    records_read: int = 0
    is_behind: bool = False


class StageBundle:
    """A plain stage, and the base of the others. The caller gets `processor` back after `finish` or `discard`."""

    def __init__(self, processor: StageProcessor, context: StageContext) -> None:
        self.processor = processor
        self._context = context
        self._started = False
        self._reads_to_the_end = bool(processor.stage.reads)
        self.dropped = 0

    def take(self, block: bytes) -> None:
        """Run a block of input."""
        self._start()
        elements = self.processor.elements(block)
        if not self._reads_to_the_end:
            self.processor.process_all(elements)
            return
        # Only a batch feeds restrictions as blocks. In a stream they are residuals of the record: see `read`.
        for element in elements:
            self.processor.process_to_the_end(element)

    def take_element(self, element: WindowedValue) -> None:
        """Run one element of input."""
        self._start()
        self.processor.process(element)

    def read(self, block: bytes, budget: Budget) -> list[ReadResidual]:
        """Read a restriction until it ends, defers, or uses up the budget; return its residuals."""
        self._start()
        return self.processor.read(block, budget)

    def finish(self, input_watermark_us: int) -> StageResult:
        """Fire the timers and windows that are due at this input watermark, and end the bundle if one was started."""
        metrics = self.processor.finish() if self._started else []
        result = StageResult(input_watermark_us, metrics, dropped=self.dropped)
        if self._started and self.processor.stage.reads:
            result.records_read, result.is_behind = self.processor.output_size()[0], self.processor.is_behind
        return result

    def discard(self) -> None:
        """End the bundle after an error."""
        if self._started:
            self.processor.discard()

    def _start(self) -> None:
        # With the first input, not with the task: a stage without input then costs no `start_bundle`.
        if not self._started:
            self._started = True
            self.processor.start(self._context.partition, self._context.partitions, self._context.send)


class StoredBundle(StageBundle):
    """The base of stateful and grouping stages. The store is opened when it is first needed."""

    def __init__(self, processor: StageProcessor, context: StageContext) -> None:
        super().__init__(processor, context)
        self._opened = False
        self._windows: Any = processor.coder.window_coder.get_impl()

    def _open(self) -> None:
        # Opening reads state runs. So a stage with neither input nor a due timer must not open its store.
        if not self._opened:
            self._opened = True
            store = self._context.state.open(self.processor.stage.state)
            self._cells = Cells(store)
            self._timers = Timers(store, self._context.first_key_group, self._context.last_key_group)
            if self._context.set_back_us:
                self._set_back(self._context.set_back_us)

    def _set_back(self, back_us: int) -> None:
        """Move pending processing-time timers back by as much as the wall clock was: their remaining delay stays."""
        for timer in self._timers.due(PROCESSING, MAX_US):
            self._timers.set(replace(timer, fire_us=timer.fire_us - back_us))

    def _due(self, watermark_us: int) -> bool:
        known = self._context
        if self._opened:
            return True
        if known.event_due_us is not None and known.event_due_us <= watermark_us:
            return True
        if known.processing_due_us is None:
            return False
        # After the clock was set back, timers that are not due must be moved too, and for that the store is opened.
        return known.set_back_us > 0 or known.processing_due_us <= known.now_us()

    def _result(self, watermark_us: int, metrics: list[bytes]) -> StageResult:
        if not self._opened:
            return StageResult(watermark_us, metrics, dropped=self.dropped)
        timers = self._timers.earliest(EVENT), self._timers.earliest(PROCESSING)
        hold = self._timers.earliest(HOLD)
        held = watermark_us if hold is None else min(watermark_us, hold)
        return StageResult(held, metrics, timers, hold, self.dropped)
