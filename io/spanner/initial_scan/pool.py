"""Prefetchers of an initial scan that outlive a bundle: one bundle after another resumes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from penstock.errors import PositionLostError
from penstock.io.change_streams.prefetch import Prefetcher, StreamPool
from penstock.io.spanner.initial_scan.frontier import ScanFrontier
from penstock.io.spanner.initial_scan.prefetch import ScanPrefetcher
from penstock.timestamps import format_timestamp


class ScanPool:
    """The prefetchers of one snapshot in one process. Thread-safe; several bundles may use it at once."""

    def __init__(self, make: Callable[[ScanFrontier], ScanPrefetcher], now: Callable[[], int]) -> None:
        """`make` returns a new prefetcher; `now` is the service's time in nanoseconds."""
        self._make = make
        self._now = now
        self._lock = threading.Lock()
        self._parked: list[ScanPrefetcher] = []

    @contextmanager
    def prefetching(self, frontier: ScanFrontier) -> Iterator[ScanPrefetcher]:
        """Yield the parked prefetcher that continues most of the ranges, or a new one.

        After an error it is closed, otherwise parked.

        Raises:
            PositionLostError: the change stream no longer has the changes after the snapshot.
        """
        check_changes_kept(frontier, self._now())
        prefetcher = self._resumed(frontier) or self._make(frontier)
        try:
            yield prefetcher
        except BaseException:
            prefetcher.close()
            raise
        if prefetcher.park():
            with self._lock:
                self._parked.append(prefetcher)
        else:
            prefetcher.close()

    def _resumed(self, frontier: ScanFrontier) -> ScanPrefetcher | None:
        with self._lock:
            self._parked = [each for each in self._parked if not each.ended]
            best = max(self._parked, key=lambda each: each.matches(frontier.ranges), default=None)
            if best is None or not best.matches(frontier.ranges):
                # Another worker reads the parked ranges now, and what was read ahead of it takes memory.
                for each in self._parked:
                    each.stop()
                return None
            self._parked.remove(best)
        if best.resume(frontier.ranges):
            return best
        best.close()
        return None


class BothPools:
    """The pool of a source that reads a snapshot and then a change stream: each kind of frontier has its own pool."""

    def __init__(self, snapshot: ScanPool, stream: Callable[[], StreamPool]) -> None:
        """`stream` makes the pool of the change stream when it is first needed."""
        self._snapshot = snapshot
        self._make_stream = stream
        self._stream: StreamPool | None = None
        self._lock = threading.Lock()

    def prefetching(self, frontier: Any) -> AbstractContextManager[Prefetcher]:
        """Yield a prefetcher for this kind of frontier."""
        if isinstance(frontier, ScanFrontier):
            return self._snapshot.prefetching(frontier)
        with self._lock:
            if self._stream is None:
                self._stream = self._make_stream()
        return self._stream.prefetching(frontier)


def check_changes_kept(frontier: ScanFrontier, now: int) -> None:
    """Check that the change stream still has the changes after the snapshot; `now` in nanoseconds.

    Raises:
        PositionLostError: it does not, so the snapshot cannot be continued.
    """
    if frontier.readable_until is not None and now > frontier.readable_until:
        raise PositionLostError(
            f"the snapshot of {format_timestamp(frontier.timestamp)} is not finished, and the change stream keeps its "
            f"changes only until {format_timestamp(frontier.readable_until)}: no exact result is possible any more. "
            "Raise the stream's retention_period (ALTER CHANGE STREAM … SET OPTIONS, at most 7 days) or add workers, "
            "and start with a new checkpoint folder"
        )
