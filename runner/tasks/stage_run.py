"""One stage in one task: takes the stage's input, keeps its state, fires what is due, says how far it got.

This is the plain kind, which runs elements as they come, and what the others share. A stateful stage
(`statefulrun.py`) keeps state and timers in a store; a grouping stage (`groupingrun.py`) collects, and emits
panes. `stages.py` says which stage is of which kind.

Event time. Lateness is judged by the input watermark *before* the epoch: what arrives together with a new
watermark is not late to it. A window's content fires when the watermark is past the window's last
timestamp, a user's timer when the watermark has reached it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.bundle import Budget, Cut, StageProcessor
from penstock.runner.harness.operations import Send
from penstock.runner.store.cells import EVENT, HOLD, PROCESSING, Cells, Store, Timers
from penstock.runner.tasks.epoch import MAX_US


class StateAccess(Protocol):
    """Where a stage's state comes from and where its changes go."""

    def open(self, name: str) -> Store:
        """The store of a stateful transform for the key groups of this task."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a stage needs to know of its task. Times in µs.

    `input_us` and `output_us` are the stage's watermarks before the epoch.
    `first` and `last` are the key groups of the task (inclusive); `now_us` is asked when timers fire.
    `event_due_us` and `processing_due_us` are the earliest pending timers of the task's key groups, None if
    there are none; `bounded` means that processing time is over when the input is (batch).
    `set_back_us` is by how much pending processing-time timers move back before anything else happens.
    """

    partition: int
    partitions: int
    first: int
    last: int
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
class Outcome:
    """What a stage's task has to say: its output watermark, metrics, and which timers it leaves.

    `timers` is None when the stage keeps none or did not look at them.
    """

    watermark_us: int
    metrics: list[bytes] = field(default_factory=list)
    timers: tuple[int | None, int | None] | None = None
    hold_us: int | None = None
    dropped: int = 0


class StageRun:
    """A plain stage; the base of the others. `processor` is given back by `finish` or `discard`."""

    def __init__(self, processor: StageProcessor, setting: Setting) -> None:
        self.processor = processor
        self._setting = setting
        self._started = False
        self._to_the_end = bool(processor.stage.reads)
        self.dropped = 0

    def take(self, block: bytes) -> None:
        """Run a block of input."""
        self._start()
        run = self.processor.process_to_the_end if self._to_the_end else self.processor.process
        for element in self.processor.elements(block):
            run(element)

    def take_element(self, element: WindowedValue) -> None:
        """Run one element of input."""
        self._start()
        self.processor.process(element)

    def read(self, block: bytes, budget: Budget) -> list[Cut]:
        """Run a restriction until it ends, defers, or uses up the budget; return what is left."""
        self._start()
        return self.processor.read(block, budget)

    def finish(self, input_watermark_us: int) -> Outcome:
        """Fire what is due at this input watermark, and end the bundle if one was started."""
        metrics = self.processor.finish() if self._started else []
        return Outcome(input_watermark_us, metrics, dropped=self.dropped)

    def discard(self) -> None:
        """Give up after an error."""
        if self._started:
            self.processor.discard()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self.processor.start(self._setting.partition, self._setting.partitions, self._setting.send)


class StoredRun(StageRun):
    """What stateful and grouping stages share: a store that is opened only when it is needed."""

    def __init__(self, processor: StageProcessor, setting: Setting) -> None:
        super().__init__(processor, setting)
        self._opened = False
        self._windows: Any = processor.coder.window_coder.get_impl()

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            store = self._setting.state.open(self.processor.stage.state)
            self._cells = Cells(store)
            self._timers = Timers(store, self._setting.first, self._setting.last)
            if self._setting.set_back_us:
                self._set_back(self._setting.set_back_us)

    def _set_back(self, step_us: int) -> None:
        """Move pending processing-time timers back, as the wall clock was: they keep the delay they had left."""
        for timer in self._timers.due(PROCESSING, MAX_US):
            self._timers.set(replace(timer, fire_us=timer.fire_us - step_us))

    def _due(self, watermark_us: int) -> bool:
        s = self._setting
        if self._opened:
            return True
        if s.event_due_us is not None and s.event_due_us <= watermark_us:
            return True
        if s.processing_due_us is None:
            return False
        return s.set_back_us > 0 or s.processing_due_us <= s.now_us()

    def _outcome(self, watermark_us: int, metrics: list[bytes]) -> Outcome:
        if not self._opened:
            return Outcome(watermark_us, metrics, dropped=self.dropped)
        timers = self._timers.earliest(EVENT), self._timers.earliest(PROCESSING)
        hold = self._timers.earliest(HOLD)
        held = watermark_us if hold is None else min(watermark_us, hold)
        return Outcome(held, metrics, timers, hold, self.dropped)
