"""A streaming GroupByKey: windows that fire more than once, fire late, or merge.

Not pure: it reads and writes the cells and timers of a state store. It imports no Spark and no Beam worker.

The store holds two cells for each key and window: the values since the last pane (all values, if panes accumulate),
and a small one with the state of the trigger, the index of the next pane and the window's watermark hold. Both are
deleted when the window expires, which is when the watermark has passed its end plus the allowed lateness.

The rules come from the Beam model:

- An element is dropped if its window has expired or its trigger has finished. For sessions, the element's own window
  counts, before it is merged.
- A pane is emitted when the trigger fires and there are new elements, or when it is the on-time pane of a window that
  has had elements. When a window expires with elements that have not fired, they are emitted then.
- A pane is on time if it is the first one after the watermark passed the window, and not below the output watermark.
  Panes before it are early (their nonspeculative index is -1), panes after it are late.
- The timestamp combiner computes a pane's timestamp from its elements, and holds the output watermark there until the
  pane is emitted. Elements below the output watermark cannot hold it. A pane of only such elements has the end of its
  window as its timestamp.
- When windows merge, their values stay in their cells: the merged window has a list of their *addresses*. Trigger
  states are merged. Pane indexes start again from 0, unless the result is one of the merged windows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from apache_beam.transforms.core import Windowing
from apache_beam.transforms.timeutil import TimestampCombinerImpl
from apache_beam.transforms.trigger import AccumulationMode
from apache_beam.transforms.window import TimestampCombiner
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming

from penstock.runner.store.cells import (
    EVENT,
    NO_HOLD_US,
    PROCESSING,
    Cells,
    TimerEntry,
    Timers,
)
from penstock.runner.store.keys import key_group
from penstock.runner.windows.active_windows import ActiveWindows, Addresses
from penstock.runner.windows.expiry import expiry_us
from penstock.runner.windows.grouping import CompleteGroup, joined_chunks
from penstock.runner.windows.merging import merge
from penstock.runner.windows.triggers import TriggerContext, TriggerState, TriggerTree

MAX_US = MAX_TIMESTAMP.micros
NOTHING_HELD = (MAX_US, -MAX_US)
"""Lowest and highest timestamp of a group whose elements are all below the output watermark."""
_VALUES, _PANE = b"values", b"pane"
_BY_WATERMARK, _BY_CLOCK = b"\x00watermark", b"\x00clock"


@dataclass(frozen=True, slots=True)
class Pane:
    """A pane to emit. Its `count` values can be iterated many times, until `Panes.release_emitted` is called."""

    key: bytes
    window: Any
    timestamp: Timestamp
    info: PaneInfo
    values: Iterable[bytes]
    count: int


@dataclass(slots=True)
class _Window:
    """The state of one window of one key, without its values.

    Args:
        panes: how many panes were emitted.
        nonspeculative: how many of them were not early.
        pending: elements came after the last pane.
        closed: the trigger has finished.
        count: how many values are stored.
        shape: the shape of the trigger tree that made the trigger's state.
    """

    trigger: TriggerState = field(default_factory=TriggerState)
    panes: int = 0
    nonspeculative: int = 0
    hold_us: int = NO_HOLD_US
    pending: bool = False
    closed: bool = False
    count: int = 0
    shape: int = 0

    # JSON, because the shape of the trigger's state depends on its tree. The cell is a few dozen bytes next to the
    # values.
    def pack(self) -> bytes:
        fields = [
            self.trigger.to_json(),
            self.panes,
            self.nonspeculative,
            self.hold_us,
            int(self.pending),
            int(self.closed),
            self.count,
            self.shape,
        ]
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, data: bytes) -> _Window:
        trigger, panes, nonspeculative, hold, pending, closed, count, shape = json.loads(data)
        state = TriggerState.from_json(trigger)
        return cls(state, panes, nonspeculative, hold, bool(pending), bool(closed), count, shape)


class Panes:
    """The windows of one range of key groups, for one epoch.

    `input_us` and `output_us` are the watermarks of the GroupByKey in the last record. The first decides whether an
    element is late, the second whether a pane is. `coder` encodes windows (nested); `emit` takes each pane.
    """

    def __init__(
        self,
        windowing: Windowing,
        tree: TriggerTree,
        coder: Any,
        cells: Cells,
        timers: Timers,
        emit: Callable[[Pane], None],
        *,
        input_us: int,
        output_us: int,
        now_us: Callable[[], int],
    ) -> None:
        self._windowfn = windowing.windowfn
        self._merging = windowing.windowfn.is_merging()
        self._lateness_us = windowing.allowed_lateness.micros
        self._accumulates = windowing.accumulation_mode == AccumulationMode.ACCUMULATING
        self._combine: TimestampCombinerImpl = TimestampCombiner.get_impl(
            windowing.timestamp_combiner, windowing.windowfn
        )
        self._at_window_end = windowing.timestamp_combiner == TimestampCombiner.OUTPUT_AT_EOW
        self._tree = tree
        self._coder = coder
        self._cells = cells
        self._active = ActiveWindows(cells)
        self._timers = timers
        self._emit = emit
        self._input_us = input_us
        self._output_us = output_us
        self._now_us = now_us
        self._spent: list[tuple[int, bytes, bytes]] = []
        """Cells with values that no later pane needs. `release_emitted` deletes them."""

    def add_elements(self, key: bytes, groups: Sequence[CompleteGroup]) -> int:
        """Add the elements of an epoch for a key, one group per window; return how many were dropped."""
        dropped = 0
        for window, members in self._groups_by_window(key, groups).items():
            window_key = _WindowKey(key_group(key), key, window)
            state = self._load(window_key)
            if state.closed:
                dropped += sum(group.count for group in members)
                continue
            known = self._coder.decode_nested(window)
            # Use the watermark of the last record: elements of this epoch must not be late against the watermark that
            # arrives with them, in whatever order they arrive.
            at = self._trigger_context(known, self._input_us)
            for group in members:
                self._add_values(window_key, known, state, group)
                self._tree.on_elements(state.trigger, at, group.count)
            state.pending = True
            if self._tree.should_fire(state.trigger, at):
                self._fire(window_key, known, state, at, last=False)
            self._save(window_key, known, state, at)
        self._active.store()
        return dropped

    def advance(self, watermark_us: int) -> None:
        """Advance the watermark and the processing time: fire the panes that are due, delete expired windows."""
        self._fire_due(watermark_us)
        self._active.store()

    def _fire_due(self, watermark_us: int) -> None:
        while True:
            # Event time first, so that a window which ends fires its on-time pane before the clock can fire a late one.
            # In a loop, because a window that fires may set a timer that is due.
            fired = False
            for timer in self._timers.take_due(EVENT, watermark_us):
                fired = True
                self._on_timer(timer, watermark_us)
            if fired:
                continue
            for timer in self._timers.take_due(PROCESSING, self._now_us()):
                fired = True
                self._on_timer(timer, watermark_us)
            if not fired:
                return

    def set_back(self, back_us: int) -> None:
        """Move pending processing times back, because the wall clock was set back by `back_us`."""
        for timer in self._timers.due(PROCESSING, MAX_US):
            window_key = _WindowKey(timer.key_group, timer.key, timer.window)
            state = self._load(window_key)
            self._tree.set_back(state.trigger, back_us)
            self._cells.replace(window_key.key_group, window_key.key, window_key.window, _PANE, state.pack())
            self._timers.set(replace(timer, fire_us=timer.fire_us - back_us))

    def release_emitted(self) -> None:
        """Delete the values that have been emitted in their last pane. From now on no pane is read."""
        for cell in self._spent:
            self._cells.clear(*cell, _VALUES)
        self._spent.clear()

    # One window.

    def _on_timer(self, timer: TimerEntry, watermark_us: int) -> None:
        window_key = _WindowKey(timer.key_group, timer.key, timer.window)
        known = self._coder.decode_nested(window_key.window)
        state = self._load(window_key)
        at = self._trigger_context(known, watermark_us)
        expired = watermark_us >= expiry_us(known, self._lateness_us)
        if not state.closed and (self._tree.should_fire(state.trigger, at) or (expired and state.pending)):
            self._fire(window_key, known, state, at, last=expired)
        if expired:
            self._forget(window_key)
        else:
            self._save(window_key, known, state, at)

    def _add_values(self, window_key: _WindowKey, window: Any, state: _Window, group: CompleteGroup) -> None:
        state.count += group.count
        # New values go to the first of the addresses. They need no separate cell, because a merged window reads all
        # its addresses.
        address = self._addresses(window_key)[0]
        for chunk in joined_chunks(group.chunks):
            self._cells.append(window_key.key_group, window_key.key, address, _VALUES, chunk)
        if self._at_window_end:
            # Do not set a hold below the output watermark. It would have no effect now, and after a restart it would
            # pull the watermark back.
            end_us = window.max_timestamp().micros
            state.hold_us = end_us if end_us >= self._output_us else state.hold_us
        elif group.first_us <= group.last_us:
            stamps = [
                self._combine.assign_output_time(window, Timestamp(micros=at))
                for at in (group.first_us, group.last_us)
            ]
            if state.hold_us != NO_HOLD_US:
                stamps.append(Timestamp(micros=state.hold_us))
            state.hold_us = self._combine.merge(window, stamps).micros

    def _fire(
        self, window_key: _WindowKey, window: Any, state: _Window, at: TriggerContext, *, last: bool
    ) -> None:
        # Ask the trigger again: a window that expires fires its last pane even if the trigger does not ask for it, and
        # then the trigger must not count that pane.
        if self._tree.should_fire(state.trigger, at):
            self._tree.on_fire(state.trigger, at)
        state.closed = self._tree.finished(state.trigger)
        timing = self._timing(state, at)
        if state.pending or timing == PaneInfoTiming.ON_TIME:
            early = timing == PaneInfoTiming.EARLY
            info = PaneInfo(
                state.panes == 0,
                last or state.closed,
                timing,
                state.panes,
                -1 if early else state.nonspeculative,
            )
            stamp = at.end_us if state.hold_us == NO_HOLD_US else min(state.hold_us, at.end_us)
            values = _StoredValues(
                self._cells, window_key, self._addresses(window_key) if state.count else ()
            )
            self._emit(Pane(window_key.key, window, Timestamp(micros=stamp), info, values, state.count))
            state.panes += 1
            state.nonspeculative += not early
            state.pending = False
        # Release the hold also if no pane was emitted: without elements there is no timestamp to hold.
        state.hold_us = NO_HOLD_US
        if state.closed or not self._accumulates:
            self._clear_values(window_key)
            state.count = 0
        if state.closed:
            self._remove_active(window_key)

    def _timing(self, state: _Window, at: TriggerContext) -> int:
        if state.nonspeculative or self._output_us > at.end_us:
            return PaneInfoTiming.LATE
        return PaneInfoTiming.ON_TIME if at.at_end else PaneInfoTiming.EARLY

    def _trigger_context(self, window: Any, watermark_us: int) -> TriggerContext:
        return TriggerContext(watermark_us, self._now_us(), window.max_timestamp().micros)

    def _load(self, window_key: _WindowKey) -> _Window:
        data = b"".join(self._cells.chunks(window_key.key_group, window_key.key, window_key.window, _PANE))
        state = _Window.unpack(data) if data else _Window(shape=self._tree.shape)
        if state.shape != self._tree.shape:
            self._start_trigger(state)
        return state

    def _start_trigger(self, state: _Window) -> None:
        """Start the trigger of a window from the beginning: the program has another one than the checkpoint.

        A number that one kind of trigger has stored means something else to another: a count, or a time.
        """
        state.trigger, state.shape = TriggerState(), self._tree.shape
        if state.pending:
            at = TriggerContext(self._input_us, self._now_us(), MAX_US)
            self._tree.on_elements(state.trigger, at, state.count)

    def _save(self, window_key: _WindowKey, window: Any, state: _Window, at: TriggerContext) -> None:
        """Store a window, and set timers for when its trigger must be evaluated again. `at` is the last evaluation."""
        identity = window_key.key_group, window_key.key, window_key.window
        self._cells.replace(*identity, _PANE, state.pack())
        # Two timers per window: in event time its end, then its expiry; in processing time what the trigger waits for.
        # `end_us + 1`, because a window has ended when the watermark is above its last timestamp.
        ended = state.closed or at.at_end
        event_us = expiry_us(window, self._lateness_us) if ended else min(at.end_us + 1, MAX_US)
        self._timers.set(TimerEntry(*identity, _BY_WATERMARK, b"", EVENT, event_us, state.hold_us))
        processing_us = None if state.closed else self._tree.wake_us(state.trigger, at.now_us)
        if processing_us is None:
            self._timers.clear(*identity, _BY_CLOCK, b"")
        else:
            self._timers.set(TimerEntry(*identity, _BY_CLOCK, b"", PROCESSING, processing_us, NO_HOLD_US))

    def _forget(self, window_key: _WindowKey) -> None:
        self._clear_values(window_key)
        self._remove_active(window_key)
        self._drop(window_key)

    def _drop(self, window_key: _WindowKey) -> None:
        """Delete the state of a window, except its values."""
        self._cells.clear(window_key.key_group, window_key.key, window_key.window, _PANE)
        for family in (_BY_WATERMARK, _BY_CLOCK):
            self._timers.clear(window_key.key_group, window_key.key, window_key.window, family, b"")

    def _clear_values(self, window_key: _WindowKey) -> None:
        # Do not delete them now: the consumers of a pane read its values from these cells until the bundle has ended.
        self._spent.extend(
            (window_key.key_group, window_key.key, address) for address in self._addresses(window_key)
        )

    # Windows that merge.

    def _groups_by_window(
        self, key: bytes, groups: Sequence[CompleteGroup]
    ) -> dict[bytes, list[CompleteGroup]]:
        """The groups by the window that they belong to, after all windows of the key are merged."""
        if not self._merging:
            return {group.window: [group] for group in groups}
        active = self._active.of(key)
        # Active windows of earlier epochs and the windows of the new elements: all of them may merge with each other.
        known = {
            window: self._coder.decode_nested(window) for window in [*active, *(g.window for g in groups)]
        }
        results = merge(self._windowfn, list(known.values()))
        sources: dict[bytes, list[bytes]] = {}
        into: dict[bytes, bytes] = {}
        for encoded, window in known.items():
            result = into[encoded] = self._coder.encode_nested(results[window])
            sources.setdefault(result, []).append(encoded)
        taken = {address for addresses in active.values() for address in addresses}
        for result, merged in sources.items():
            self._merge(key, result, [window for window in merged if window in active], active, taken)
        self._active.changed(key)
        targets: dict[bytes, list[CompleteGroup]] = {}
        for group in groups:
            targets.setdefault(into[group.window], []).append(group)
        return targets

    def _merge(
        self, key: bytes, result: bytes, merged: list[bytes], active: Addresses, taken: set[bytes]
    ) -> None:
        """Merge the active windows `merged` into `result`; nothing to do if `result` is a new window, or unchanged.

        `taken`: the addresses of all active windows.
        """
        window_key = _WindowKey(key_group(key), key, result)
        if merged == [result]:
            return
        if not merged:
            if not self._load(window_key).closed:
                # A new window is active from its first element on, because the next merge must see it.
                address = _unused_address(result, taken)
                active[result] = [address]
                taken.add(address)
            return
        window = self._coder.decode_nested(result)
        keys = [_WindowKey(window_key.key_group, key, encoded) for encoded in merged]
        states = [self._load(window_key) for window_key in keys]
        state = self._load(window_key) if result in merged else _Window(shape=self._tree.shape)
        at = self._trigger_context(window, self._input_us)
        state.trigger = self._tree.merge_states([old.trigger for old in states], at)
        holds = [Timestamp(micros=old.hold_us) for old in states if old.hold_us != NO_HOLD_US]
        state.hold_us = self._combine.merge(window, holds).micros if holds else NO_HOLD_US
        # Pane indexes start again from 0: the first pane of the merged window does not continue the panes of its parts.
        state.pending = any(old.pending for old in states)
        state.count = sum(old.count for old in states)
        # Invariant: each address is in the list of exactly one active window, so each value has one owner, and the
        # values of the parts need not be copied.
        active[result] = [address for encoded in merged for address in active.pop(encoded)]
        for merged_key in keys:
            self._drop(merged_key)
        self._save(window_key, window, state, at)

    def _addresses(self, window_key: _WindowKey) -> list[bytes]:
        return (
            self._active.of(window_key.key).get(window_key.window, [])
            if self._merging
            else [window_key.window]
        )

    def _remove_active(self, window_key: _WindowKey) -> None:
        if self._merging and self._active.of(window_key.key).pop(window_key.window, None) is not None:
            self._active.changed(window_key.key)


@dataclass(frozen=True, slots=True)
class _WindowKey:
    """A window of a key."""

    key_group: int
    key: bytes
    window: bytes


class _StoredValues:
    """The values of a pane. Each iteration reads them from the state store, chunk by chunk."""

    def __init__(self, cells: Cells, window_key: _WindowKey, addresses: Sequence[bytes]) -> None:
        self._cells = cells
        self._here = window_key
        self._addresses = addresses

    def __iter__(self) -> Iterator[bytes]:
        for address in self._addresses:
            yield from self._cells.chunks(self._here.key_group, self._here.key, address, _VALUES)


def _unused_address(window: bytes, taken: Collection[bytes]) -> bytes:
    """An address for the values of a new window: its own encoding, unless another window uses it as an address."""
    while window in taken:
        window += b"\x00"
    return window
