"""Serves Beam's user state and timers from the cells and timers of a state store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from apache_beam.coders import coder_impl
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

from penstock.runner.harness.side_inputs import SideInput
from penstock.runner.store.cells import EVENT, NO_HOLD_US, PROCESSING, Cells, TimerEntry, Timers, at_sort_key
from penstock.runner.store.keys import key_group

_BAG_BYTES = 4 << 20
"""A bag that is larger than this is read in parts."""

CHUNK_BYTES = 256 << 10
"""Size at which a chunk of a bag ends. A store that merges scratch files holds one chunk of each of them."""

GC_FAMILY = b"\x00gc"
"""Family of the timers that delete expired windows. It begins with a null byte, so no DoFn can have this family."""


class _Done:
    """The result of a state request. Beam expects a future and calls `get`; here every request is done at once."""

    def get(self, timeout: float | None = None) -> None:
        """Return at once."""


_DONE = _Done()


class StateHandler:
    """The state service that Beam's runtime states call. `attach` connects it to the cells of a bundle.

    It replaces Beam's client for the gRPC state API. Beam identifies state by transform, state id, window and
    key. A stage has only one stateful transform and its own store, so the transform is not part of a cell's name.
    """

    def __init__(self) -> None:
        self._cells: Cells | None = None
        self._timers: Timers | None = None
        self._coders: dict[str, _TimerCapture] = {}
        self._key_coder: Any = None
        self._window_coder: Any = None
        self.watches = False
        self.touched: set[tuple[int, bytes, bytes]] = set()
        """Key groups, keys and windows whose state or timers have changed. Recorded only if `watches`: for windows that
        never expire the set is not needed, and it may have a million entries.
        """
        self.on_set: Callable[[TimerEntry], None] | None = None
        """Called with each timer that is set."""
        self.side_inputs: Mapping[tuple[str, str], SideInput] = {}
        """By transform and tag; set for each bundle."""

    def attach(
        self, cells: Cells, timers: Timers, key_coder: Any, window_coder: Any, *, watches: bool
    ) -> None:
        """Serve from these cells and timers until the next `attach`; with `watches` remember what has changed."""
        self._cells, self._timers = cells, timers
        self._key_coder, self._window_coder = key_coder, window_coder
        self.watches, self.touched = watches, set()
        self.on_set = None

    def blocking_get(self, state_key: Any, coder: Any) -> Iterable[Any]:
        """The elements of a bag, or of a side input."""
        kind = state_key.WhichOneof("type")
        if kind == "bag_user_state":
            return self._bag(state_key, coder)
        if kind == "ordered_list_user_state":
            return [each for _, chunks in self._ordered(state_key) for each in _decoded(chunks, coder)]
        named = getattr(state_key, kind)
        side = self.side_inputs[named.transform_id, named.side_input_id]
        if kind == "iterable_side_input":
            return side.values(named.window, b"", coder)
        if kind == "multimap_side_input":
            return side.values(named.window, named.key, coder)
        if kind == "multimap_keys_side_input":
            return side.keys(named.window, coder)
        raise NotImplementedError(f"state of the kind {kind} is not served")

    def _bag(self, state_key: Any, coder: Any) -> Iterable[Any]:
        assert self._cells is not None
        chunks = self._cells.chunks(*_identity(state_key))
        read, size = [], 0
        for chunk in chunks:
            read.append(chunk)
            size += len(chunk)
            # A large bag is read while it is iterated. This is safe: Beam writes changes of a key's state only after it
            # has processed the elements and timers of that key.
            if size > _BAG_BYTES:
                return itertools.chain(_decoded(read, coder), _decoded(chunks, coder))
        # Return a list: a DoFn may keep the result after the state has changed.
        return list(_decoded(read, coder))

    def extend(self, state_key: Any, coder: Any, elements: Iterable[Any]) -> _Done:
        """Append elements to a bag, or put (sort key, value) pairs into an ordered list."""
        if state_key.WhichOneof("type") == "ordered_list_user_state":
            for pair in elements:
                self._append(_identity(state_key, pair[0]), coder, [pair])
        else:
            self._append(_identity(state_key), coder, elements)
        return _DONE

    def _append(self, identity: tuple[int, bytes, bytes, bytes], coder: Any, elements: Iterable[Any]) -> None:
        assert self._cells is not None
        stream = coder_impl.create_OutputStream()
        for element in elements:
            if stream.size() >= CHUNK_BYTES:
                self._cells.append(*identity, stream.get())
                stream = coder_impl.create_OutputStream()
            coder.encode_to_stream(element, stream, True)
        self._cells.append(*identity, stream.get())
        if self.watches:
            self.touched.add(identity[:3])

    def clear(self, state_key: Any) -> _Done:
        """Empty a bag, or a range of an ordered list."""
        assert self._cells is not None
        if state_key.WhichOneof("type") == "ordered_list_user_state":
            for name, _ in self._ordered(state_key):
                self._cells.clear(*_identity(state_key)[:3], name)
        else:
            self._cells.clear(*_identity(state_key))
        return _DONE

    def timer_coder(self, family: str) -> _TimerCapture:
        """Return the object that Beam uses as the coder of a timer family. It stores timers and encodes nothing."""
        return self._coders.setdefault(family, _TimerCapture(self, family))

    def set_timer(self, family: str, timer: Any) -> None:
        """Set or clear a timer as Beam's `OutputTimer` passes it. Times outside Beam's range become its nearest end."""
        assert self._timers is not None
        key = self._key_coder.encode_nested(timer.user_key)
        window = self._window_coder.encode(timer.windows[0])
        tag = timer.dynamic_timer_tag.encode()
        group = key_group(key)
        if timer.clear_bit:
            self._timers.clear(group, key, window, family.encode(), tag)
            return
        # Beam (2.77) holds an event-time timer at its fire time, and a processing-time timer at the timestamp of the
        # element that sets it.
        hold = _within_time(timer.hold_timestamp) if timer.hold_timestamp is not None else NO_HOLD_US
        fire = _within_time(timer.fire_timestamp)
        entry = TimerEntry(group, key, window, family.encode(), tag, self._coders[family].domain, fire, hold)
        self._timers.set(entry)
        if self.on_set is not None:
            self.on_set(entry)
        if self.watches:
            self.touched.add((group, key, window))

    def _ordered(self, state_key: Any) -> list[tuple[bytes, list[bytes]]]:
        assert self._cells is not None
        asked = state_key.ordered_list_user_state.range
        return self._cells.between(*_identity(state_key), asked.start, asked.end)


class _TimerCapture:
    """Replaces a timer coder: when Beam's `OutputTimer` encodes a timer, this class stores it."""

    def __init__(self, handler: StateHandler, family: str) -> None:
        self._handler = handler
        self._family = family
        self.domain = EVENT

    def encode_to_stream(self, timer: Any, stream: Any, nested: bool) -> None:
        """Store the timer; nothing is written to the stream."""
        self._handler.set_timer(self._family, timer)


def _within_time(at: Timestamp) -> int:
    """Return a time in µs, limited to Beam's range. Arithmetic on `Timestamp`s can leave that range at both ends."""
    return int(min(max(at, MIN_TIMESTAMP), MAX_TIMESTAMP).micros)


def domain_of(is_event_time: bool) -> bytes:
    """The store's name of a time domain."""
    return EVENT if is_event_time else PROCESSING


def _decoded(chunks: Iterable[bytes], coder: Any) -> Iterator[Any]:
    for chunk in chunks:
        stream = coder_impl.create_InputStream(chunk)
        while stream.size() > 0:
            yield coder.decode_from_stream(stream, True)


def _identity(state_key: Any, sort_key: int | None = None) -> tuple[int, bytes, bytes, bytes]:
    named = getattr(state_key, state_key.WhichOneof("type"))
    name = named.user_state_id.encode()
    if sort_key is not None:
        name = at_sort_key(name, sort_key)
    return key_group(named.key), named.key, named.window, name
