"""Parks prefetchers between bundles: one bundle after another resumes them, and those that none continues end.

    with pool.prefetching(frontier) as prefetcher: …

A bundle is split every few hundred milliseconds. To end its queries takes as long as they look ahead, the first rows of
the next bundle take as long again, and rows that were read ahead would be requested twice. So when a bundle ends
without an error, its prefetcher is parked and continues to read. The next bundle continues with those partitions that
it requests at *exactly* their claimed position. If an epoch was repeated, or another worker has read the partition, the
position differs, and the partition is queried again.

When a worker is given another part of the stream, another worker reads its old part. So a bundle that can continue no
parked prefetcher stops all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from penstock.io.change_streams.prefetch import ReadAhead
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.position import Position
from penstock.io.spanner.prefetch import Prefetcher


class StreamPool:
    """The prefetchers of one change stream in one process. Thread-safe; several bundles may use it at once."""

    def __init__(
        self,
        buffer_bytes: int,
        make: Callable[[ReadAhead], Prefetcher],
        synchronize_clock: Callable[[], None] = lambda: None,
    ) -> None:
        """`make` returns a prefetcher over the shared budget.

        `synchronize_clock` is called before each bundle, and sets the clock that the prefetchers plan by.
        """
        self._make = make
        self._synchronize_clock = synchronize_clock
        self._ahead = ReadAhead(buffer_bytes)
        self._lock = threading.Lock()
        self._parked: list[Prefetcher] = []

    @contextmanager
    def prefetching(self, frontier: Frontier) -> Iterator[Prefetcher]:
        """Yield a prefetcher: the parked one that continues most of the open partitions, or a new one.

        After an error in the `with` it is closed, otherwise parked. One whose thread has failed is resumed too,
        so that the bundle raises the error.
        """
        self._synchronize_clock()
        prefetcher = self._resumed(frontier.open) or self._make(self._ahead)
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

    def _resumed(self, partitions: Mapping[str, Position]) -> Prefetcher | None:
        with self._lock:
            self._parked = [prefetcher for prefetcher in self._parked if not prefetcher.ended]
            best = max(self._parked, key=lambda prefetcher: prefetcher.matches(partitions), default=None)
            if best is None or not best.matches(partitions):
                # Another worker reads the parked partitions now, and two readers would ask for everything twice.
                for prefetcher in self._parked:
                    prefetcher.stop()
                return None
            # Under the lock, so that two bundles never share a prefetcher.
            self._parked.remove(best)
        return best if best.resume(partitions) else None
