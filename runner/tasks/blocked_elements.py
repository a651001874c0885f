"""Elements of a stream that wait until their side inputs are ready. Pure, except for the store it writes to.

Elements are stored by window, in the order of their arrival. They hold the input watermark of the stage that they
are blocked for, because the stage has not seen them yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from apache_beam.utils.timestamp import MAX_TIMESTAMP

from penstock.runner.store.cells import EVENT, HOLD, Cells, TimerEntry, Timers

_FAMILY, _ELEMENTS = b"waiting", b"elements"


@dataclass(frozen=True, slots=True)
class BlockedQueue:
    """The blocked elements of one window (encoded), in one key group."""

    key_group: int
    window: bytes


class BlockedElements:
    """The blocked elements of one stage in one task.

    Each queue has a timer that never fires, at the end of time. It carries the queue's hold, which is the lowest
    timestamp in it, and it is how queues are found again.
    """

    def __init__(self, cells: Cells, timers: Timers) -> None:
        self._cells = cells
        self._timers = timers

    def add(self, queue: BlockedQueue, timestamp_us: int, element: bytes) -> None:
        """Append an encoded element."""
        # The user key is empty: elements of one window wait for the same panes, so their keys do not matter.
        self._cells.append(queue.key_group, b"", queue.window, _ELEMENTS, element)
        known = self._timers.get(queue.key_group, b"", queue.window, _FAMILY, b"")
        # Only a lower hold is written: otherwise each element would change the timer.
        if known is None or timestamp_us < known.hold_us:
            end = MAX_TIMESTAMP.micros
            self._timers.set(
                TimerEntry(queue.key_group, b"", queue.window, _FAMILY, b"", EVENT, end, timestamp_us)
            )

    def queues(self) -> list[BlockedQueue]:
        """The queues that are not empty."""
        return [BlockedQueue(timer.key_group, timer.window) for timer in self._timers.pending()]

    def remove(self, queue: BlockedQueue) -> Iterator[bytes]:
        """Yield the elements of a queue, then delete it."""
        # Read all entries first, because the caller may write to the store between two elements.
        yield from list(self._cells.chunks(queue.key_group, b"", queue.window, _ELEMENTS))
        self._cells.clear(queue.key_group, b"", queue.window, _ELEMENTS)
        self._timers.clear(queue.key_group, b"", queue.window, _FAMILY, b"")

    def hold_us(self) -> int | None:
        """The lowest timestamp of all blocked elements."""
        return self._timers.earliest(HOLD)

    def earliest_us(self) -> int | None:
        """Return the time of the first timer of the queues."""
        return self._timers.earliest(EVENT)
