"""Elements of a stream that wait until their side inputs are ready. Pure but for its store.

They wait window by window, in the order in which they came, and hold the watermark of the stage that they wait
for: for that stage they have not arrived yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from apache_beam.utils.timestamp import MAX_TIMESTAMP

from penstock.runner.store.cells import EVENT, HOLD, Cells, TimerEntry, Timers

_FAMILY, _ELEMENTS = b"waiting", b"elements"


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits for one window (encoded), in one key group."""

    key_group: int
    window: bytes


class Waiting:
    """The waiting elements of one stage in one task."""

    def __init__(self, cells: Cells, timers: Timers) -> None:
        self._cells = cells
        self._timers = timers

    def add(self, queue: Queue, at_us: int, element: bytes) -> None:
        """Let an encoded element with a timestamp wait."""
        self._cells.append(queue.key_group, b"", queue.window, _ELEMENTS, element)
        known = self._timers.get(queue.key_group, b"", queue.window, _FAMILY, b"")
        if known is None or at_us < known.hold_us:
            end = MAX_TIMESTAMP.micros
            self._timers.set(TimerEntry(queue.key_group, b"", queue.window, _FAMILY, b"", EVENT, end, at_us))

    def queues(self) -> list[Queue]:
        """The windows for which something waits."""
        return [Queue(timer.key_group, timer.window) for timer in self._timers.pending()]

    def take(self, queue: Queue) -> Iterator[bytes]:
        """Yield what waits for a window, then forget it."""
        yield from list(self._cells.chunks(queue.key_group, b"", queue.window, _ELEMENTS))
        self._cells.clear(queue.key_group, b"", queue.window, _ELEMENTS)
        self._timers.clear(queue.key_group, b"", queue.window, _FAMILY, b"")

    def hold_us(self) -> int | None:
        """The lowest timestamp of what waits."""
        return self._timers.earliest(HOLD)
