"""One stage in one task: takes the stage's input, keeps its state, fires what is due, says how far it got.

Three kinds. A plain stage runs elements as they come. A stateful stage also drops what is too late, keeps
state and timers in a store, and forgets a window once it has expired. A grouping stage collects, and runs
a group when the watermark has passed the end of its window.

Event time. `lateness` is judged by the input watermark *before* the epoch: what arrives together with a new
watermark is not late to it. A window's content fires when the watermark is past the window's last
timestamp, a user's timer when the watermark has reached it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from apache_beam.coders import coder_impl
from apache_beam.transforms.timeutil import TimestampCombinerImpl
from apache_beam.transforms.window import GlobalWindows, TimestampCombiner
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming, WindowedValue

from penstock.publish import passed_by
from penstock.runner.bundle import Budget, Cut, StageProcessor
from penstock.runner.cells import EVENT, HOLD, NO_HOLD_US, PROCESSING, Cells, Store, TimerEntry, Timers
from penstock.runner.grouping import Complete, Grouping, joined_chunks, read_group
from penstock.runner.keys import key_group
from penstock.runner.operations import Send
from penstock.runner.userstate import GC_FAMILY

MAX_US = MAX_TIMESTAMP.micros
_VALUES = b"values"
_WINDOW_END = b"\x00end"
_BOUNDS = struct.Struct(">qq")
"""At the head of a stored chunk: lowest and highest timestamp in it, in µs."""
_ONLY_PANE = PaneInfo(True, True, PaneInfoTiming.ON_TIME, 0, 0)


class StateAccess(Protocol):
    """Where a stage's state comes from and where its changes go."""

    def open(self, name: str) -> Store:
        """The store of a stateful transform for the key groups of this task."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a stage needs to know of its task. Times in µs; `lateness_us`: input watermark before the epoch.

    `first` and `last` are the key groups of the task (inclusive); `now_us` is asked when timers fire.
    `event_due_us` and `processing_due_us` are the earliest pending timers of the task's key groups, None if
    there are none; `bounded` means that processing time is over when the input is (batch).
    """

    partition: int
    partitions: int
    first: int
    last: int
    send: Send
    state: StateAccess
    now_us: Callable[[], int]
    lateness_us: int
    bounded: bool
    event_due_us: int | None = None
    processing_due_us: int | None = None


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
        self._processor = processor
        self._setting = setting
        self._started = False
        self._to_the_end = bool(processor.stage.reads)
        self.dropped = 0

    def take(self, block: bytes) -> None:
        """Run a block of input."""
        self._start()
        run = self._processor.process_to_the_end if self._to_the_end else self._processor.process
        for element in self._processor.elements(block):
            run(element)

    def read(self, block: bytes, budget: Budget) -> list[Cut]:
        """Run a restriction until it ends, defers, or uses up the budget; return what is left."""
        self._start()
        return self._processor.read(block, budget)

    def finish(self, input_watermark_us: int) -> Outcome:
        """Fire what is due at this input watermark, and end the bundle if one was started."""
        metrics = self._processor.finish() if self._started else []
        return Outcome(input_watermark_us, metrics, dropped=self.dropped)

    def discard(self) -> None:
        """Give up after an error."""
        if self._started:
            self._processor.discard()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._processor.start(self._setting.partition, self._setting.partitions, self._setting.send)


class _WithTimers(StageRun):
    """What stateful and grouping stages share: a store that is opened only when it is needed."""

    def __init__(self, processor: StageProcessor, setting: Setting) -> None:
        super().__init__(processor, setting)
        self._opened = False
        self._windows: Any = processor.coder.window_coder.get_impl()

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            store = self._setting.state.open(self._processor.stage.state)
            self._cells = Cells(store)
            self._timers = Timers(store, self._setting.first, self._setting.last)

    def _due(self, watermark_us: int) -> bool:
        s = self._setting
        if self._opened:
            return True
        if s.event_due_us is not None and s.event_due_us <= watermark_us:
            return True
        return s.processing_due_us is not None and s.processing_due_us <= s.now_us()

    def _outcome(self, watermark_us: int, metrics: list[bytes]) -> Outcome:
        if not self._opened:
            return Outcome(watermark_us, metrics, dropped=self.dropped)
        timers = self._timers.earliest(EVENT), self._timers.earliest(PROCESSING)
        hold = self._timers.earliest(HOLD)
        held = watermark_us if hold is None else min(watermark_us, hold)
        return Outcome(held, metrics, timers, hold, self.dropped)


class StatefulRun(_WithTimers):
    """A stage that begins with a stateful DoFn."""

    def __init__(self, processor: StageProcessor, setting: Setting) -> None:
        super().__init__(processor, setting)
        self._keys: Any = processor.coder.wrapped_value_coder.key_coder().get_impl()
        windowing = processor.windowing
        self._lateness_us = windowing.allowed_lateness.micros
        self._expires = not windowing.is_default() and not _is_global(windowing)

    def take(self, block: bytes) -> None:
        """Run a block of input, but for what belongs to expired windows."""
        self._start()
        for element in self._processor.elements(block):
            if not self._expires:
                self._processor.process(element)
                continue
            alive = tuple(w for w in element.windows if not self._expired(w))
            self.dropped += len(element.windows) - len(alive)
            if alive:
                kept = WindowedValue(element.value, element.timestamp, alive, element.pane_info)
                self._processor.process(kept)

    def finish(self, input_watermark_us: int) -> Outcome:
        """Fire due timers, forget expired windows, and write state back."""
        if self._due(input_watermark_us):
            self._start()
            with passed_by(input_watermark_us):
                self._fire_all(input_watermark_us)
        metrics = self._processor.finish() if self._started else []
        if self._started:
            self._expect_expiry()
            self._forget_expired(input_watermark_us)
        return self._outcome(input_watermark_us, metrics)

    def _start(self) -> None:
        if not self._started:
            self._open()
            self._processor.state.attach(self._cells, self._timers, self._keys, self._windows)
        super()._start()

    def _expired(self, window: Any) -> bool:
        return bool(window.max_timestamp().micros + self._lateness_us < self._setting.lateness_us)

    def _fire_all(self, watermark_us: int) -> None:
        bounded, ring = self._setting.bounded, True
        while True:
            limit = MAX_US if bounded else self._setting.now_us()
            due = self._timers.take_due(EVENT, watermark_us)
            expiries = [timer for timer in due if timer.family == GC_FAMILY]
            due = [timer for timer in due if timer.family != GC_FAMILY]
            if not due and (ring or bounded):
                due, ring = self._timers.take_due(PROCESSING, limit), False
            for timer in due:
                self._fire(timer)
            for timer in expiries:
                self._timers.set(timer)
            if not due:
                return

    def _fire(self, timer: TimerEntry) -> None:
        key = self._keys.decode_from_stream(coder_impl.create_InputStream(timer.key), True)
        window = self._windows.decode_from_stream(coder_impl.create_InputStream(timer.window), False)
        held = timer.hold_us if timer.hold_us != NO_HOLD_US else timer.fire_us
        # What a processing-time timer puts out belongs to the event time that it holds, not to the clock's.
        at = held if timer.domain == PROCESSING else timer.fire_us
        self._processor.fire(timer.family.decode(), key, window, timer.tag.decode(), at, held)

    def _expect_expiry(self) -> None:
        """Set a timer that forgets each window that was written to, once it has expired."""
        if not self._expires:
            return
        for group, key, encoded in self._processor.state.touched:
            window = self._windows.decode_from_stream(coder_impl.create_InputStream(encoded), False)
            expiry = window.max_timestamp().micros + self._lateness_us + 1
            timer = TimerEntry(group, key, encoded, GC_FAMILY, b"", EVENT, expiry, NO_HOLD_US)
            self._timers.set(timer)

    def _forget_expired(self, watermark_us: int) -> None:
        for timer in self._timers.take_due(EVENT, watermark_us) if self._expires else ():
            if timer.family == GC_FAMILY:
                self._cells.forget(timer.key_group, timer.key, timer.window)
                self._timers.forget(timer.key_group, timer.key, timer.window)


class GroupingRun(_WithTimers):
    """A stage that begins with the reading half of a GroupByKey: one pane a window, when it is complete."""

    def __init__(self, processor: StageProcessor, setting: Setting) -> None:
        super().__init__(processor, setting)
        pair = processor.coder.wrapped_value_coder
        self._keys: Any = pair.key_coder().get_impl()
        self._values: Any = pair.value_coder().get_impl()
        self._combine_at: TimestampCombinerImpl = _timestamps(processor.windowing)
        self._at_the_end = processor.windowing.timestamp_combiner == TimestampCombiner.OUTPUT_AT_EOW
        self._known: dict[bytes, tuple[Any, Timestamp]] = {}
        self._grouping = Grouping()

    def take(self, block: bytes) -> None:
        """Collect a block of groups, but for those whose window is over."""
        stream = coder_impl.create_InputStream(block)
        late: dict[bytes, bool] = {}
        while stream.size() > 0:
            key, window, first_us, last_us, count, values = read_group(stream)
            if window not in late:
                late[window] = self._window(window)[1].micros < self._setting.lateness_us
            if late[window]:
                self.dropped += count
            else:
                self._grouping.add(key, window, first_us, last_us, values)

    def finish(self, input_watermark_us: int) -> Outcome:
        """Run each group whose window is over, keep the others."""
        if self._setting.bounded:
            self._run_complete()
        elif self._grouping or self._due(input_watermark_us):
            self._open()
            self._store()
            self._fire(input_watermark_us)
        metrics = self._processor.finish() if self._started else []
        return self._outcome(input_watermark_us, metrics)

    def discard(self) -> None:
        """Give up after an error; spilled groups are deleted."""
        self._grouping.close()
        super().discard()

    def _run_complete(self) -> None:
        for group in self._grouping.groups():
            self._emit(group)

    def _store(self) -> None:
        for group in self._grouping.groups():
            self._append(group)

    def _append(self, new: Complete) -> None:
        identity = key_group(new.key), new.key, new.window
        end = self._window(new.window)[1].micros
        known = self._timers.get(*identity, _WINDOW_END, b"")
        hold = self._hold(new, known)
        if known is None or known.hold_us != hold:
            fire = min(end + 1, MAX_US)
            self._timers.set(TimerEntry(*identity, _WINDOW_END, b"", EVENT, fire, hold))
        bounds = _BOUNDS.pack(new.first_us, new.last_us)
        for chunk in joined_chunks(new.chunks):
            self._cells.append(*identity, _VALUES, bounds + chunk)

    def _hold(self, new: Complete, known: TimerEntry | None) -> int:
        """The watermark hold of a window's pane: its output timestamp so far, if that is before its end."""
        if self._at_the_end:
            return NO_HOLD_US
        at = self._output_us(new)
        return at if known is None or known.hold_us == NO_HOLD_US else min(at, known.hold_us)

    def _fire(self, watermark_us: int) -> None:
        for timer in self._timers.take_due(EVENT, watermark_us):
            identity = timer.key_group, timer.key, timer.window, _VALUES
            bounds = [_BOUNDS.unpack_from(chunk) for chunk in self._cells.chunks(*identity)]
            first, last = min(first for first, _ in bounds), max(last for _, last in bounds)
            self._emit(Complete(timer.key, timer.window, first, last, _Stored(self._cells, identity)))
            self._cells.clear(*identity)

    def _emit(self, group: Complete) -> None:
        self._start()
        known, end = self._window(group.window)
        at = end if self._at_the_end else Timestamp(micros=self._output_us(group))
        pair = (self._keys.decode_nested(group.key), _Values(self._values, group.chunks))
        self._processor.process(WindowedValue(pair, at, (known,), _ONLY_PANE))

    def _output_us(self, group: Complete) -> int:
        combine = self._combine_at
        known, _ = self._window(group.window)
        times = (group.first_us, group.last_us)
        stamps = [combine.assign_output_time(known, Timestamp(micros=at)) for at in times]
        return int(combine.merge(known, stamps).micros)

    def _window(self, encoded: bytes) -> tuple[Any, Timestamp]:
        """A window and its last timestamp."""
        known = self._known.get(encoded)
        if known is None:
            if len(self._known) > 1000:
                self._known.clear()
            window = self._windows.decode_nested(encoded)
            known = self._known[encoded] = (window, window.max_timestamp())
        return known


class _Stored:
    """The values of a window that is over, read from the state store at each iteration, chunk by chunk."""

    def __init__(self, cells: Cells, identity: tuple[int, bytes, bytes, bytes]) -> None:
        self._cells = cells
        self._identity = identity

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._cells.chunks(*self._identity):
            yield chunk[_BOUNDS.size :]


class _Values:
    """The values of a group: read and decoded anew at each iteration, so that a big group is never held."""

    def __init__(self, coder: Any, chunks: Iterable[bytes]) -> None:
        self._coder = coder
        self._chunks = chunks

    def __iter__(self) -> Iterator[Any]:
        for chunk in self._chunks:
            stream = coder_impl.create_InputStream(chunk)
            while stream.size() > 0:
                yield self._coder.decode_from_stream(stream, True)

    def __reduce__(self) -> tuple[Callable[[Iterable[Any]], list[Any]], tuple[list[Any]]]:
        return list, (list(self),)


coder_impl.FastPrimitivesCoderImpl.register_iterable_like_type(_Values)


def run_of(processor: StageProcessor, setting: Setting) -> StageRun:
    """The kind of run that a stage needs."""
    if processor.stage.grouped:
        return GroupingRun(processor, setting)
    if processor.stage.state:
        return StatefulRun(processor, setting)
    return StageRun(processor, setting)


def _is_global(windowing: Any) -> bool:
    return isinstance(windowing.windowfn, GlobalWindows)


def _timestamps(windowing: Any) -> TimestampCombinerImpl:
    combiner: Any = windowing.timestamp_combiner
    if combiner == TimestampCombiner.OUTPUT_AT_EARLIEST_TRANSFORMED:
        raise NotImplementedError("the timestamp combiner OUTPUT_AT_EARLIEST_TRANSFORMED is not supported")
    return TimestampCombiner.get_impl(combiner, windowing.windowfn)
