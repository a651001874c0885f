"""Beam's user state and timers on the cells and timers of a state store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apache_beam.coders import coder_impl

from penstock.runner.cells import EVENT, NO_HOLD_US, PROCESSING, Cells, TimerEntry, Timers
from penstock.runner.keys import key_group

GC_FAMILY = b"\x00gc"
"""Timer family that no DoFn can have: it forgets an expired window."""


class _Done:
    """An answer that is already there; Beam waits for it with `get`."""

    def get(self, timeout: float | None = None) -> None:
        """Return at once."""


_DONE = _Done()


class StateHandler:
    """What Beam's runtime states call; `attach` it to the cells of the bundle that runs.

    Beam names state by transform, state id, window and key; a stage has one stateful transform, whose store
    this is, so the transform is not part of the name.
    """

    def __init__(self) -> None:
        self._cells: Cells | None = None
        self._timers: Timers | None = None
        self._coders: dict[str, _TimerCapture] = {}
        self._key_coder: Any = None
        self._window_coder: Any = None
        self.touched: set[tuple[int, bytes, bytes]] = set()

    def attach(self, cells: Cells, timers: Timers, key_coder: Any, window_coder: Any) -> None:
        """Serve from these cells and timers until the next `attach`."""
        self._cells, self._timers = cells, timers
        self._key_coder, self._window_coder = key_coder, window_coder
        self.touched = set()

    def blocking_get(self, state_key: Any, coder: Any) -> Iterable[Any]:
        """The elements of a bag."""
        return list(self._decoded(state_key, coder))

    def extend(self, state_key: Any, coder: Any, elements: Iterable[Any]) -> _Done:
        """Append elements to a bag."""
        stream = coder_impl.create_OutputStream()
        for element in elements:
            coder.encode_to_stream(element, stream, True)
        group, key, window, name = _identity(state_key)
        assert self._cells is not None
        self._cells.append(group, key, window, name, stream.get())
        self.touched.add((group, key, window))
        return _DONE

    def clear(self, state_key: Any) -> _Done:
        """Empty a bag."""
        assert self._cells is not None
        self._cells.clear(*_identity(state_key))
        return _DONE

    def timer_coder(self, family: str) -> _TimerCapture:
        """What stands in for the coder of a timer family: it stores timers instead of encoding them."""
        return self._coders.setdefault(family, _TimerCapture(self, family))

    def set_timer(self, family: str, timer: Any) -> None:
        """Set or clear a timer as Beam's `OutputTimer` gives it."""
        assert self._timers is not None
        key = self._key_coder.encode_nested(timer.user_key)
        window = self._window_coder.encode(timer.windows[0])
        tag = timer.dynamic_timer_tag.encode()
        group = key_group(key)
        if timer.clear_bit:
            self._timers.clear(group, key, window, family.encode(), tag)
            return
        hold = timer.hold_timestamp.micros if timer.hold_timestamp is not None else NO_HOLD_US
        domain = self._coders[family].domain
        entry = TimerEntry(
            group, key, window, family.encode(), tag, domain, timer.fire_timestamp.micros, hold
        )
        self._timers.set(entry)
        self.touched.add((group, key, window))

    def _decoded(self, state_key: Any, coder: Any) -> Iterator[Any]:
        assert self._cells is not None
        for chunk in list(self._cells.chunks(*_identity(state_key))):
            stream = coder_impl.create_InputStream(chunk)
            while stream.size() > 0:
                yield coder.decode_from_stream(stream, True)


class _TimerCapture:
    """Takes the place of a timer coder: `OutputTimer` "encodes" a timer, and it is in the store."""

    def __init__(self, handler: StateHandler, family: str) -> None:
        self._handler = handler
        self._family = family
        self.domain = EVENT

    def encode_to_stream(self, timer: Any, stream: Any, nested: bool) -> None:
        """Store the timer; nothing is written to the stream."""
        self._handler.set_timer(self._family, timer)


def domain_of(is_event_time: bool) -> bytes:
    """The store's name of a time domain."""
    return EVENT if is_event_time else PROCESSING


def _identity(state_key: Any) -> tuple[int, bytes, bytes, bytes]:
    named = state_key.bag_user_state
    return key_group(named.key), named.key, named.window, named.user_state_id.encode()
