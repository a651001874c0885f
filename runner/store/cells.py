"""The layout of user state, timers and group buffers in a state store: keys and values. Pure except for the store.

All entries of one (key, window) are adjacent, so that one scan finds and deletes an expired window:

    c <key> <window> <state id>            head of a cell: its only chunk, or how many chunks follow
    c <key> <window> <state id> <n>        chunk n of a cell that was appended to
    t <key> <window> <family> <tag>        a timer: domain, fire time, hold
    e|p|h <time> <key> <window> <…>        index of timers by event time, processing time and hold

An ordered list has one cell per sort key. Its state id ends with the sort key, in eight bytes that
sort in the same order.

A cell is a list of chunks, because appending is the most frequent change: a bag that grows by one chunk per epoch
writes that chunk, not the whole bag. Lengths have four bytes. Times are µs in eight bytes, shifted by 2^63 so that
negative times sort first as unsigned numbers.
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

_LENGTH = struct.Struct(">I")
_TIME = struct.Struct(">Q")
_TIMER = struct.Struct(">cqq")
_SHIFT = 1 << 63
_CHUNKED = b"\x01"
_SINGLE = b"\x00"

FEW_TIMERS = 10_000
"""Number of due timers up to which they are sorted in memory."""

EVENT, PROCESSING, HOLD = b"e", b"p", b"h"
NO_HOLD_US = (1 << 63) - 1
"""The hold of a timer that does not hold the watermark."""


class Store(Protocol):
    """The part of a state store that cells and timers need. Keys of one key group are adjacent and sorted."""

    def get(self, key_group: int, key: bytes) -> bytes | None: ...
    def put(self, key_group: int, key: bytes, value: bytes) -> None: ...
    def delete(self, key_group: int, key: bytes) -> None: ...
    def scan(
        self, first: int, last: int, prefix: bytes, stop: bytes | None = None
    ) -> Iterator[tuple[int, bytes, bytes]]: ...
    def first_keys(self, first: int, last: int, prefix: bytes) -> Iterator[tuple[int, bytes]]: ...


def pack(*parts: bytes) -> bytes:
    """Return the parts with length prefixes, so that they can be separated again."""
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def unpack(data: bytes) -> list[bytes]:
    """The inverse of `pack`."""
    parts, at = [], 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        parts.append(data[at : at + length])
        at += length
    return parts


class Cells:
    """Bags of bytes by (key group, key, window, state id)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def chunks(self, key_group: int, key: bytes, window: bytes, name: bytes) -> Iterator[bytes]:
        """Yield the chunks of a cell in the order in which they were appended; nothing if it is empty.

        The cell must not change during the iteration.
        """
        cell = self._cell(key, window, name)
        head = self._store.get(key_group, cell)
        if head is None:
            return
        yield from self._chunks(key_group, cell, head)

    def _chunks(self, key_group: int, cell: bytes, head: bytes) -> Iterator[bytes]:
        if head[:1] == _SINGLE:
            yield head[1:]
            return
        # Single reads, because the numbers of the chunks are known. A scan would have to merge all runs.
        for n in range(_count(head)):
            chunk = self._store.get(key_group, _chunk(cell, n))
            if chunk is not None:
                yield chunk

    def between(
        self, key_group: int, key: bytes, window: bytes, name: bytes, start: int, end: int
    ) -> list[tuple[bytes, list[bytes]]]:
        """Return the cells of an ordered list with sort keys from `start` to `end` (exclusive), in that order.

        Each is a pair of its state id (see `at_sort_key`) and its chunks.
        """
        lowest, highest = at_sort_key(name, start), at_sort_key(name, end)
        size = len(self._cell(key, window, lowest))
        prefix = self._cell(key, window, lowest)[: size - _TIME.size]
        return [
            (cell[size - len(lowest) :], list(self._chunks(key_group, cell, head)))
            # A list, because `_chunks` reads from the same store during the iteration.
            for _, cell, head in list(self._store.scan(key_group, key_group, prefix))
            # Chunks of the cells have longer keys with the same prefix.
            if len(cell) == size and lowest <= cell[size - len(lowest) :] < highest
        ]

    def cells_named(self, key_group: int, name: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield (key, window, chunk) of each cell of that name. All must have one chunk only."""
        for _, cell, head in self._store.scan(key_group, key_group, b"c"):
            key, window, found = unpack(cell[1:])[:3]
            if found == name:
                yield key, window, head[1:]

    def append(self, key_group: int, key: bytes, window: bytes, name: bytes, chunk: bytes) -> None:
        """Add a chunk to a cell."""
        cell = self._cell(key, window, name)
        head = self._store.get(key_group, cell)
        if head is None:
            self._store.put(key_group, cell, _SINGLE + chunk)
            return
        count = _count(head)
        # Most cells have one chunk, which is stored in the head to save an entry. The second chunk moves it out.
        if head[:1] == _SINGLE:
            self._store.put(key_group, _chunk(cell, 0), head[1:])
        self._store.put(key_group, _chunk(cell, count), chunk)
        self._store.put(key_group, cell, _CHUNKED + _LENGTH.pack(count + 1))

    def replace(self, key_group: int, key: bytes, window: bytes, name: bytes, chunk: bytes) -> None:
        """Replace the content of a cell by one chunk. Do not use it on cells with appended chunks."""
        self._store.put(key_group, self._cell(key, window, name), _SINGLE + chunk)

    def clear(self, key_group: int, key: bytes, window: bytes, name: bytes) -> None:
        """Delete a cell."""
        cell = self._cell(key, window, name)
        head = self._store.get(key_group, cell)
        if head is None:
            return
        if head[:1] == _CHUNKED:
            for n in range(_count(head)):
                self._store.delete(key_group, _chunk(cell, n))
        self._store.delete(key_group, cell)

    def delete_window(self, key_group: int, key: bytes, window: bytes) -> None:
        """Delete all cells of a key and window."""
        found = list(self._store.scan(key_group, key_group, b"c" + pack(key, window)))
        # One tombstone per entry: with tombstones for ranges, every read would have to check them.
        for _, entry, _ in found:
            self._store.delete(key_group, entry)

    @staticmethod
    def _cell(key: bytes, window: bytes, name: bytes) -> bytes:
        return b"c" + pack(key, window, name)


def at_sort_key(name: bytes, sort_key: int) -> bytes:
    """Return the state id of the values of an ordered list at one sort key."""
    return name + _time(sort_key)


def _chunk(cell: bytes, number: int) -> bytes:
    return cell + _LENGTH.pack(4) + _LENGTH.pack(number)


def _count(head: bytes) -> int:
    if head[:1] == _SINGLE:
        return 1
    count: int = _LENGTH.unpack_from(head, 1)[0]
    return count


@dataclass(frozen=True, slots=True)
class TimerEntry:
    """A pending timer. Times in µs since the epoch; `hold_us` is `NO_HOLD_US` if it holds no watermark."""

    key_group: int
    key: bytes
    window: bytes
    family: bytes
    tag: bytes
    domain: bytes
    fire_us: int
    hold_us: int


class Timers:
    """Pending timers of a range of key groups, by key or in firing order."""

    def __init__(self, store: Store, first: int, last: int) -> None:
        self._store = store
        self._first = first
        self._last = last

    def set(self, timer: TimerEntry) -> None:
        """Set a timer; it replaces the one of the same key, window, family and tag. An equal one is not rewritten."""
        known = self.get(timer.key_group, timer.key, timer.window, timer.family, timer.tag)
        # Many DoFns set a timer again to the same time for each element. That must not write state in each epoch.
        if known == timer:
            return
        if known is not None:
            self._delete(known)
        identity = pack(timer.key, timer.window, timer.family, timer.tag)
        record = _TIMER.pack(timer.domain, timer.fire_us, timer.hold_us)
        self._store.put(timer.key_group, b"t" + identity, record)
        # An index in firing order, because each epoch asks for the earliest timer, and a stage may have millions.
        self._store.put(timer.key_group, timer.domain + _time(timer.fire_us) + identity, b"")
        if timer.hold_us != NO_HOLD_US:
            self._store.put(timer.key_group, HOLD + _time(timer.hold_us) + identity, b"")

    def get(self, key_group: int, key: bytes, window: bytes, family: bytes, tag: bytes) -> TimerEntry | None:
        """Return the pending timer with this identity."""
        record = self._store.get(key_group, b"t" + pack(key, window, family, tag))
        if record is None:
            return None
        domain, fire, hold = _TIMER.unpack(record)
        return TimerEntry(key_group, key, window, family, tag, domain, fire, hold)

    def clear(self, key_group: int, key: bytes, window: bytes, family: bytes, tag: bytes) -> None:
        """Delete a timer. A missing timer is not an error."""
        timer = self.get(key_group, key, window, family, tag)
        if timer is not None:
            self._delete(timer)

    def _delete(self, timer: TimerEntry) -> None:
        identity = pack(timer.key, timer.window, timer.family, timer.tag)
        self._store.delete(timer.key_group, b"t" + identity)
        self._store.delete(timer.key_group, timer.domain + _time(timer.fire_us) + identity)
        if timer.hold_us != NO_HOLD_US:
            self._store.delete(timer.key_group, HOLD + _time(timer.hold_us) + identity)

    def delete_window(self, key_group: int, key: bytes, window: bytes) -> None:
        """Delete all timers of a key and window."""
        for timer in self.of_window(key_group, key, window):
            self._delete(timer)

    def of_window(self, key_group: int, key: bytes, window: bytes) -> list[TimerEntry]:
        """Return all timers of a key and window."""
        found = self._store.scan(key_group, key_group, b"t" + pack(key, window))
        return list(itertools.starmap(_timer, found))

    def due(self, domain: bytes, limit_us: int) -> Iterator[TimerEntry]:
        """Yield the timers of a domain with fire time ≤ `limit_us` at the time of the call, earliest first.

        Of two with one time the one in the lower key group comes first. A timer that is deleted or set differently
        during the iteration is left out, if it was not yielded yet.
        """
        if self._first > self._last:
            return iter(())
        stop = domain + _time(limit_us + 1)
        found = self._store.scan(self._first, self._last, domain, stop)
        few = list(itertools.islice(found, FEW_TIMERS + 1))
        if len(few) <= FEW_TIMERS:
            few.sort(key=_by_time)
            return self._current(few)
        # There may be a million, so they are not put into a list: each key group has them in firing order, and the
        # groups are merged.
        with_timers = sorted({group for group, _ in self._store.first_keys(self._first, self._last, domain)})
        scans = [self._store.scan(group, group, domain, stop) for group in with_timers]
        return self._current(heapq.merge(*scans, key=_by_time))

    def _current(self, found: Iterable[tuple[int, bytes, bytes]]) -> Iterator[TimerEntry]:
        for group, entry, _ in found:
            # The index entry is one byte of domain and eight of time, then the timer's identity.
            timer = self.get(group, *unpack(entry[9:]))
            if timer is not None and entry[:9] == timer.domain + _time(timer.fire_us):
                yield timer

    def take(self, timer: TimerEntry) -> bool:
        """Delete a timer; return False, without a change, if it was deleted or set differently in the meantime."""
        if self.get(timer.key_group, timer.key, timer.window, timer.family, timer.tag) != timer:
            return False
        self._delete(timer)
        return True

    def take_due(self, domain: bytes, limit_us: int) -> Iterator[TimerEntry]:
        """Remove and yield the timers that `due` yields, each when it is asked for."""
        for timer in self.due(domain, limit_us):
            self._delete(timer)
            yield timer

    def pending(self) -> Iterator[TimerEntry]:
        """Yield all timers, sorted by key group, key and window."""
        yield from itertools.starmap(_timer, self._store.scan(self._first, self._last, b"t"))

    def earliest(self, domain: bytes) -> int | None:
        """Return the earliest time in the index of a domain (EVENT, PROCESSING or HOLD), in µs; None if it is empty."""
        if self._first > self._last:
            return None
        found = self._store.first_keys(self._first, self._last, domain)
        return min((_TIME.unpack_from(entry, 1)[0] - _SHIFT for _, entry in found), default=None)


def _by_time(found: tuple[int, bytes, bytes]) -> bytes:
    return found[1][1:9]


def _timer(key_group: int, entry: bytes, record: bytes) -> TimerEntry:
    key, window, family, tag = unpack(entry[1:])
    return TimerEntry(key_group, key, window, family, tag, *_TIMER.unpack(record))


def _time(time_us: int) -> bytes:
    # Times before 1970 are negative; the shift makes them sort below the others as unsigned bytes. An exclusive
    # end may be one above the largest value, so values are clamped.
    return _TIME.pack(min(max(time_us + _SHIFT, 0), (1 << 64) - 1))
