"""Warns when the service refuses one partition for long while it answers others.

An answer to any request ends an outage. So if the service refuses only one partition, the pipeline never fails. But the
changes of that partition do not come, and it holds the watermark of the whole read. Therefore an operator is warned.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass

_LOGGER = logging.getLogger(__name__)
_FORGOTTEN_SECONDS = 120.0
"""If a partition has not failed for this long, another worker has it now and may have read it: forget the refusal."""


_OF_PROCESS: weakref.WeakSet[Refusals] = weakref.WeakSet()


def refused_now() -> tuple[int, float]:
    """Return how many partitions all readers of this process are refused, and the seconds of the longest refusal."""
    found = [refusals.current() for refusals in list(_OF_PROCESS)]
    return sum(count for count, _ in found), max((seconds for _, seconds in found), default=0.0)


@dataclass(slots=True)
class _Refusal:
    since: float
    last: float
    warn_at: float


class Refusals:
    """Remembers when the service began to refuse each partition of a process. Thread-safe.

    It outlives bundles: a bundle that ends discards the state of a partition that it could not read.
    """

    def __init__(
        self,
        service: str,
        clock: Callable[[], float] = time.monotonic,
        warn: Callable[[str], None] = _LOGGER.warning,
    ) -> None:
        self.service = service
        self._clock = clock
        self._warn = warn
        self._lock = threading.Lock()
        self._refused: dict[Hashable, _Refusal] = {}
        _OF_PROCESS.add(self)

    def failed(self, partition: Hashable, name: str, reason: str, after_seconds: float) -> None:
        """Record a failed request of `partition`. Warn after `after_seconds`, then whenever the time has doubled."""
        with self._lock:
            now = self._clock()
            self._forget(now - _FORGOTTEN_SECONDS)
            refusal = self._refused.setdefault(partition, _Refusal(now, now, now + after_seconds))
            refusal.last = now
            # Decided under the lock and logged outside of it: a log handler may be slow, and readers call this.
            due = now >= refusal.warn_at
            if due:
                refusal.warn_at = now + max(now - refusal.since, 1.0)
        if due:
            self._warn(
                f"{self.service} has refused {name} for {now - refusal.since:.0f} s, and answers others. Its changes "
                f"and the watermark wait for it; the reader keeps trying. The last answer: {reason}"
            )

    def answered(self, partition: Hashable) -> None:
        """Record that the service has answered `partition`."""
        if self._refused:  # the usual case costs no lock
            with self._lock:
                self._refused.pop(partition, None)

    def current(self) -> tuple[int, float]:
        """Return how many partitions are refused now, and for how many seconds the longest of them."""
        with self._lock:
            now = self._clock()
            self._forget(now - _FORGOTTEN_SECONDS)
            return len(self._refused), max((now - each.since for each in self._refused.values()), default=0.0)

    def _forget(self, before: float) -> None:
        for partition in [each for each, refusal in self._refused.items() if refusal.last < before]:
            del self._refused[partition]
