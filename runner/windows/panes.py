"""Windows that fire more than once, late, or merge: a streaming grouping by the book. Pure but for its store.

For each key and window there are the values since the last pane (or all, where panes accumulate), and a small
cell that says what the trigger has seen, which pane comes next and how far the window holds the watermark. Both
are forgotten when the window expires: when the watermark has passed its end and the allowed lateness.

The rules are those of the Beam model:

- An element whose window has expired is dropped, and so is one whose trigger has finished. Sessions: it is the
  element's own window that expires, before it is merged.
- A pane is emitted when the trigger fires and there is something new, or when it is the on-time pane of a window
  that has had elements. What has not fired when its window expires is emitted then: it is not lost.
- A pane is on time when it is the first since the watermark passed the window, and nothing behind the output
  watermark; those before are early (nonspeculative index -1), those after are late.
- A pane's timestamp is what the timestamp combiner makes of its elements, and the output watermark waits there until
  the pane is emitted; elements behind the output watermark cannot hold it, and a pane of only such elements has the
  end of its window.
- Merging windows keep their values where they lie (a window knows the *addresses* of its values), merge their
  trigger states, and begin their pane indexes anew unless one of them stays as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    pack,
    unpack,
)
from penstock.runner.store.keys import key_group
from penstock.runner.windows.expiry import expiry_us
from penstock.runner.windows.grouping import Complete, joined_chunks
from penstock.runner.windows.merging import merge
from penstock.runner.windows.triggers import Moment, TriggerState, TriggerTree

MAX_US = MAX_TIMESTAMP.micros
NOTHING_HELD = (MAX_US, -MAX_US)
"""Lowest and highest timestamp of a group whose elements all are behind the output watermark."""
_VALUES, _PANE, _ACTIVE = b"values", b"pane", b"active"
_BY_WATERMARK, _BY_CLOCK = b"\x00watermark", b"\x00clock"


@dataclass(frozen=True, slots=True)
class Pane:
    """A pane to emit: its `count` values may be iterated again and again until `Panes.tidy` is called."""

    key: bytes
    window: Any
    timestamp: Timestamp
    info: PaneInfo
    values: Iterable[bytes]
    count: int


@dataclass(slots=True)
class _Window:
    """What is known of one window of one key beside its values.

    `panes` have been emitted, `punctual` of them not early; `pending` says that elements came since the last one;
    `closed` that the trigger has finished; `count` values are kept.
    """

    trigger: TriggerState = field(default_factory=TriggerState)
    panes: int = 0
    punctual: int = 0
    hold_us: int = NO_HOLD_US
    pending: bool = False
    closed: bool = False
    count: int = 0

    def pack(self) -> bytes:
        fields = [
            self.trigger.to_json(),
            self.panes,
            self.punctual,
            self.hold_us,
            int(self.pending),
            int(self.closed),
            self.count,
        ]
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, data: bytes) -> _Window:
        trigger, panes, punctual, hold, pending, closed, count = json.loads(data)
        state = TriggerState.from_json(trigger)
        return cls(state, panes, punctual, hold, bool(pending), bool(closed), count)


class Panes:
    """The windows of one range of key groups, for one epoch.

    `input_us` and `output_us` are the grouping's watermarks before the epoch: by the first elements are late, by
    the second panes are. `coder` is that of windows (nested); `emit` takes each pane when it fires.
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
        self._at_the_end = windowing.timestamp_combiner == TimestampCombiner.OUTPUT_AT_EOW
        self._tree = tree
        self._coder = coder
        self._cells = cells
        self._timers = timers
        self._emit = emit
        self._input_us = input_us
        self._output_us = output_us
        self._now_us = now_us
        self._spent: list[tuple[int, bytes, bytes]] = []
        """Cells whose values have been emitted for the last time."""

    def arrived(self, key: bytes, groups: Sequence[Complete]) -> int:
        """Take in what an epoch brings for a key, a group for each window; return how many elements were dropped."""
        dropped = 0
        for window, members in self._targets(key, groups).items():
            here = _Place(key_group(key), key, window)
            state = self._load(here)
            if state.closed:
                dropped += sum(group.count for group in members)
                continue
            known = self._coder.decode_nested(window)
            at = self._moment(known, self._input_us)
            for group in members:
                self._take(here, known, state, group)
                self._tree.on_elements(state.trigger, at, group.count)
            state.pending = True
            if self._tree.should_fire(state.trigger, at):
                self._fire(here, known, state, at, last=False)
            self._save(here, known, state, at)
        return dropped

    def advance(self, watermark_us: int) -> None:
        """Let the watermark pass and the clock tick: fire what is due, forget what has expired."""
        while True:
            due = self._timers.take_due(EVENT, watermark_us) or self._timers.take_due(
                PROCESSING, self._now_us()
            )
            if not due:
                return
            for timer in due:
                self._ring(timer, watermark_us)

    def set_back(self, step_us: int) -> None:
        """Move what the clock brings to an earlier time, as the wall clock was set back by `step_us`."""
        for timer in self._timers.due(PROCESSING, MAX_US):
            here = _Place(timer.key_group, timer.key, timer.window)
            state = self._load(here)
            self._tree.set_back(state.trigger, step_us)
            self._cells.replace(here.key_group, here.key, here.window, _PANE, state.pack())
            self._timers.set(replace(timer, fire_us=timer.fire_us - step_us))

    def tidy(self) -> None:
        """Forget the values that have been emitted for the last time: from here on nobody reads a pane any more."""
        for cell in self._spent:
            self._cells.clear(*cell, _VALUES)
        self._spent.clear()

    # One window.

    def _ring(self, timer: TimerEntry, watermark_us: int) -> None:
        here = _Place(timer.key_group, timer.key, timer.window)
        known = self._coder.decode_nested(here.window)
        state = self._load(here)
        at = self._moment(known, watermark_us)
        expired = watermark_us >= expiry_us(known, self._lateness_us)
        if not state.closed and (self._tree.should_fire(state.trigger, at) or (expired and state.pending)):
            self._fire(here, known, state, at, last=expired)
        if expired:
            self._forget(here)
        else:
            self._save(here, known, state, at)

    def _take(self, here: _Place, window: Any, state: _Window, group: Complete) -> None:
        state.count += group.count
        address = self._addresses(here)[0]
        for chunk in joined_chunks(group.chunks):
            self._cells.append(here.key_group, here.key, address, _VALUES, chunk)
        if self._at_the_end:
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

    def _fire(self, here: _Place, window: Any, state: _Window, at: Moment, *, last: bool) -> None:
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
                -1 if early else state.punctual,
            )
            stamp = at.end_us if state.hold_us == NO_HOLD_US else min(state.hold_us, at.end_us)
            values = _Stored(self._cells, here, self._addresses(here) if state.count else ())
            self._emit(Pane(here.key, window, Timestamp(micros=stamp), info, values, state.count))
            state.panes += 1
            state.punctual += not early
            state.pending = False
        state.hold_us = NO_HOLD_US
        if state.closed or not self._accumulates:
            self._clear_values(here)
            state.count = 0
        if state.closed:
            self._deactivate(here)

    def _timing(self, state: _Window, at: Moment) -> int:
        if state.punctual or self._output_us > at.end_us:
            return PaneInfoTiming.LATE
        return PaneInfoTiming.ON_TIME if at.at_end else PaneInfoTiming.EARLY

    def _moment(self, window: Any, watermark_us: int) -> Moment:
        return Moment(watermark_us, self._now_us(), window.max_timestamp().micros)

    def _load(self, here: _Place) -> _Window:
        data = b"".join(self._cells.chunks(here.key_group, here.key, here.window, _PANE))
        return _Window.unpack(data) if data else _Window()

    def _save(self, here: _Place, window: Any, state: _Window, at: Moment) -> None:
        """Keep a window whose trigger was asked `at` a moment, and let it be asked for what is due after that."""
        identity = here.key_group, here.key, here.window
        self._cells.replace(*identity, _PANE, state.pack())
        over = state.closed or at.at_end
        ring = expiry_us(window, self._lateness_us) if over else min(at.end_us + 1, MAX_US)
        self._timers.set(TimerEntry(*identity, _BY_WATERMARK, b"", EVENT, ring, state.hold_us))
        wake = None if state.closed else self._tree.wake_us(state.trigger, at.now_us)
        if wake is None:
            self._timers.clear(*identity, _BY_CLOCK, b"")
        else:
            self._timers.set(TimerEntry(*identity, _BY_CLOCK, b"", PROCESSING, wake, NO_HOLD_US))

    def _forget(self, here: _Place) -> None:
        self._clear_values(here)
        self._deactivate(here)
        self._drop(here)

    def _drop(self, here: _Place) -> None:
        """Forget a window, but for its values."""
        self._cells.clear(here.key_group, here.key, here.window, _PANE)
        for family in (_BY_WATERMARK, _BY_CLOCK):
            self._timers.clear(here.key_group, here.key, here.window, family, b"")

    def _clear_values(self, here: _Place) -> None:
        self._spent.extend((here.key_group, here.key, address) for address in self._addresses(here))

    # Windows that merge.

    def _targets(self, key: bytes, groups: Sequence[Complete]) -> dict[bytes, list[Complete]]:
        """The groups by the window that they end up in, once all windows of the key are merged."""
        if not self._merging:
            return {group.window: [group] for group in groups}
        active = self._active(key)
        known = {
            window: self._coder.decode_nested(window) for window in [*active, *(g.window for g in groups)]
        }
        results = merge(self._windowfn, list(known.values()))
        sources: dict[bytes, list[bytes]] = {}
        into: dict[bytes, bytes] = {}
        for encoded, window in known.items():
            result = into[encoded] = self._coder.encode_nested(results[window])
            sources.setdefault(result, []).append(encoded)
        for result, merged in sources.items():
            self._merge(key, result, [window for window in merged if window in active], active)
        self._activate(key, active)
        targets: dict[bytes, list[Complete]] = {}
        for group in groups:
            targets.setdefault(into[group.window], []).append(group)
        return targets

    def _merge(
        self, key: bytes, result: bytes, merged: list[bytes], active: dict[bytes, list[bytes]]
    ) -> None:
        """Merge the active windows `merged`, if it is more than a new window alone, into `result`."""
        here = _Place(key_group(key), key, result)
        if merged == [result]:
            return
        if not merged:
            if not self._load(here).closed:
                active[result] = [_unused(result, active)]
            return
        window = self._coder.decode_nested(result)
        places = [_Place(here.key_group, key, encoded) for encoded in merged]
        states = [self._load(place) for place in places]
        state = self._load(here) if result in merged else _Window()
        at = self._moment(window, self._input_us)
        state.trigger = self._tree.merged([old.trigger for old in states], at)
        holds = [Timestamp(micros=old.hold_us) for old in states if old.hold_us != NO_HOLD_US]
        state.hold_us = self._combine.merge(window, holds).micros if holds else NO_HOLD_US
        state.pending = any(old.pending for old in states)
        state.count = sum(old.count for old in states)
        active[result] = [address for encoded in merged for address in active.pop(encoded)]
        for place in places:
            self._drop(place)
        self._save(here, window, state, at)

    def _active(self, key: bytes) -> dict[bytes, list[bytes]]:
        """The windows of a key that may still merge, each with the addresses of its values."""
        data = b"".join(self._cells.chunks(key_group(key), key, b"", _ACTIVE))
        return {window: addresses for window, *addresses in map(unpack, unpack(data))}

    def _activate(self, key: bytes, active: dict[bytes, list[bytes]]) -> None:
        if not active:
            self._cells.clear(key_group(key), key, b"", _ACTIVE)
            return
        data = pack(*(pack(window, *addresses) for window, addresses in active.items()))
        self._cells.replace(key_group(key), key, b"", _ACTIVE, data)

    def _addresses(self, here: _Place) -> list[bytes]:
        return self._active(here.key).get(here.window, []) if self._merging else [here.window]

    def _deactivate(self, here: _Place) -> None:
        if self._merging:
            active = self._active(here.key)
            if active.pop(here.window, None) is not None:
                self._activate(here.key, active)


@dataclass(frozen=True, slots=True)
class _Place:
    """A window of a key."""

    key_group: int
    key: bytes
    window: bytes


class _Stored:
    """The values of a pane, read from the state store at each iteration, chunk by chunk."""

    def __init__(self, cells: Cells, here: _Place, addresses: Sequence[bytes]) -> None:
        self._cells = cells
        self._here = here
        self._addresses = addresses

    def __iter__(self) -> Iterator[bytes]:
        for address in self._addresses:
            yield from self._cells.chunks(self._here.key_group, self._here.key, address, _VALUES)


def _unused(window: bytes, active: dict[bytes, list[bytes]]) -> bytes:
    """An address for the values of a new window: its own name, unless that still is another one's."""
    taken = {address for addresses in active.values() for address in addresses}
    while window in taken:
        window += b"\x00"
    return window
