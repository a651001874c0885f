"""Readings that outlive a bundle: lent to one bundle after another, ended when nobody asks.

    with pool.checkout(frontier.open) as readers: …

A bundle is cut every few hundred milliseconds. To end its queries takes as long as they look ahead, the next
bundle's first rows take as long again, and what was read ahead would be asked for twice. So when a bundle ends
in order its threads read on, and the next one goes on with those partitions that it asks for at *exactly* their
claimed position. Whatever else has happened meanwhile (an epoch repeated, a partition read elsewhere), the
position differs, and the partition is asked for anew.

A worker that is given another part of the stream leaves nothing behind that reads on beside whoever has its old
part now: a bundle that finds nothing to go on with ends what was kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from penstock.io.change_streams.process_local import ProcessLocal
from penstock.io.spanner.frontier import Position
from penstock.io.spanner.prefetch import Prefetcher


class StreamPool:
    """The readings of one change stream in one process. Safe for threads; several bundles may borrow at once."""

    def __init__(
        self, make: Callable[[], Prefetcher], synchronize_clock: Callable[[], None] = lambda: None
    ) -> None:
        """`synchronize_clock` is called before each loan, and sets the clock that the readers plan by."""
        self._make = make
        self._synchronize_clock = synchronize_clock
        self._lock = threading.Lock()
        self._parked: list[Prefetcher] = []

    @contextmanager
    def checkout(self, partitions: Mapping[str, Position]) -> Iterator[Prefetcher]:
        """Lend a reading: the kept one that stands where most of these partitions begin, or a new one.

        After an error in the `with` it is closed, and else kept. One that has failed meanwhile is lent too, so
        that somebody hears of it.
        """
        self._synchronize_clock()
        readers = self._resumed(partitions) or self._make()
        try:
            yield readers
        except BaseException:
            readers.close()
            raise
        if readers.park():
            with self._lock:
                self._parked.append(readers)
        else:
            readers.close()

    def _resumed(self, partitions: Mapping[str, Position]) -> Prefetcher | None:
        with self._lock:
            self._parked = [readers for readers in self._parked if not readers.ended]
            best = max(self._parked, key=lambda readers: readers.matches(partitions), default=None)
            if best is None or not best.matches(partitions):
                for readers in self._parked:
                    readers.discard()
                return None
            self._parked.remove(best)
        return best if best.resume(partitions) else None


pools: ProcessLocal[StreamPool] = ProcessLocal()
"""Those of this process, by stream and settings."""
