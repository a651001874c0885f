"""Limits the time that a Python worker spends on garbage collection between two tasks.

PySpark 4.3 calls `gc.collect()` after every task (`daemon.manager`). In a backlog a reader has read ahead hundreds of
thousands of objects, so a full collection takes 50 to 140 ms, which was 9 % of the time of such a worker.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

_SHARE = 0.02


class GarbageCollector:
    """Takes the place of the module `gc` in PySpark's daemon.

    A full collection waits until it costs at most `_SHARE` of the time. In between, only objects of the last task are
    looked at, which is quick. Full collections are needed: a cycle may hold large blocks, of which Python's own
    thresholds know nothing.
    """

    def __init__(
        self, collect: Callable[[int], int] = gc.collect, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._collect = collect
        self._clock = clock
        self._next_full = clock()

    def collect(self) -> int:
        """Return the number of unreachable objects that were found."""
        begun = self._clock()
        if begun < self._next_full:
            return self._collect(1)
        count = self._collect(2)
        ended = self._clock()
        self._next_full = ended + (ended - begun) / _SHARE
        return count
