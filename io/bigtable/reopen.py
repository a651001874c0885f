"""Decides how long a segment waits for its target before it is re-opened as a partition. The clock is injected.

Only the service knows whether a target will complete: another parent may be hours behind and close into it later, or
the layout may have changed again. To ask is always correct and costs one short stream. So a segment asks soon, and
waits twice as long each time that the service sends it back to the same target.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.io.bigtable.keys import KeyRange

MAX_WAIT_SECONDS = 5.0
"""Seconds; waits double up to this."""


@dataclass(slots=True)
class _Wait:
    pause: float
    due: float | None
    seen: float


class ReopenSchedule:
    """The waiting segments of a process and when each asks next; outlives `process` calls."""

    def __init__(self, merge_wait_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`merge_wait_seconds`: seconds until a segment asks for the first time."""
        self._first = merge_wait_seconds
        self._clock = clock
        self._waits: dict[tuple[KeyRange, KeyRange], _Wait] = {}

    def due(self, waiting: Mapping[KeyRange, KeyRange]) -> list[KeyRange]:
        """Return the ranges to re-open now, given all waiting segments (range to target), in order of their keys."""
        now = self._clock()
        due = [part for part, target in sorted(waiting.items()) if self._is_due((part, target), now)]
        # Kept for a while: a segment that the service sends back to the same target waits again, twice as long.
        if len(self._waits) > len(waiting):
            self._forget(now - 2 * max(MAX_WAIT_SECONDS, self._first))
        return due

    def _is_due(self, key: tuple[KeyRange, KeyRange], now: float) -> bool:
        wait = self._waits.setdefault(key, _Wait(self._first, None, now))
        wait.seen = now
        # Set when the segment waits again, so that the time in which it was read does not count.
        if wait.due is None:
            wait.due = now + wait.pause
        if now < wait.due:
            return False
        # A first pause above the limit stays as long as the user has set it.
        wait.pause, wait.due = min(2 * wait.pause, max(MAX_WAIT_SECONDS, self._first)), None
        return True

    def _forget(self, before: float) -> None:
        for key in [key for key, wait in self._waits.items() if wait.seen < before]:
            del self._waits[key]
