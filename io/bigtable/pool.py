"""Streams that outlive a bundle: opened once, resumed by one bundle after another, closed when none continues them.

    with pool.prefetching(frontier) as prefetcher: …

A bundle is split every few hundred milliseconds. A stream that is opened again each time costs the service a seek and
drops what was read ahead. So a stream is parked in the pool of its process when a bundle ends without an error, and is
resumed only by a bundle that asks for *exactly* its position: the same partition after the same claimed token. If an
epoch was repeated, the partition was read elsewhere or merged, the position differs and a new stream is opened. A
stream that no bundle asks for within `idle_stream_seconds` is cancelled. When a bundle can continue none of the parked
streams, this worker was given another part of the table, and all of them are cancelled at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from penstock.io.bigtable.frontier import Frontier, Position
from penstock.io.bigtable.prefetch import Limits, Prefetcher
from penstock.io.bigtable.reader import Opener, Select, StreamReader
from penstock.io.bigtable.reopen import ReopenSchedule
from penstock.io.change_streams.prefetch import ReadAhead
from penstock.io.change_streams.stream_thread import stop_all


class StreamPool:
    """The streams of one change stream in one process. Thread-safe; several bundles may use it at once."""

    def __init__(self, opener: Opener, limits: Limits, select: Select | None, bounded: bool) -> None:
        self.limits = limits
        self.ahead = ReadAhead(limits.buffer_bytes)
        self.opener = opener
        self.reopen_schedule = ReopenSchedule(limits.merge_wait_seconds)
        self._select = select
        self._bounded = bounded
        self._parked: list[tuple[float, StreamReader]] = []
        self._expiry: threading.Thread | None = None

    @contextmanager
    def prefetching(self, frontier: Frontier) -> Iterator[Prefetcher]:
        """Yield a prefetcher, which resumes streams as `serve` asks for them. After an error they are cancelled."""
        with Prefetcher(self) as prefetcher:
            yield prefetcher

    def begin(self, positions: Collection[Position]) -> None:
        """Start a bundle. If it continues none of the parked streams, their partitions moved: cancel them."""
        with self.ahead.changed:
            if any(reader.position in positions for _, reader in self._parked):
                return
            parked, self._parked = self._parked, []
        # Outside of the lock, which the threads need to see that they were stopped.
        for _, reader in parked:
            reader.stop()

    def resume(self, position: Position) -> StreamReader:
        """Return a stream that stands at this position: a parked one, or a new one.

        A parked stream whose thread has failed is resumed too, so that the bundle raises the error.
        """
        with self.ahead.changed:
            # A list and not a dict by position: a position changes with each claim, so it cannot be a key, and a worker
            # has at most `max_concurrent_partitions` streams.
            for number, (_, reader) in enumerate(self._parked):
                if reader.position == position:
                    del self._parked[number]
                    return reader
        timeout = self.limits.unavailable_seconds
        return StreamReader(position, self.opener, self._select, self._bounded, timeout, self.ahead)

    def park(self, reader: StreamReader) -> None:
        """Park a stream for the next bundle; the oldest one is cancelled when there are too many."""
        if self.limits.idle_stream_seconds <= 0:
            reader.stop()
            return
        most = self.limits.max_concurrent_partitions
        with self.ahead.changed:
            self._parked.append((time.monotonic() + self.limits.idle_stream_seconds, reader))
            surplus = [parked for _, parked in self._parked[:-most]]
            self._parked = self._parked[-most:]
            if self._expiry is None:
                self._expiry = threading.Thread(
                    target=self._expire, name="penstock-bigtable-reader-expiry", daemon=True
                )
                self._expiry.start()
        # The oldest: the longer a stream waits, the less likely a bundle asks for its position.
        for parked in surplus:
            parked.stop()

    def clear(self) -> None:
        """Cancel all parked streams and wait for their threads."""
        with self.ahead.changed:
            parked, self._parked = [reader for _, reader in self._parked], []
            self.ahead.changed.notify_all()
        stop_all(parked)

    def _expire(self) -> None:
        """Cancel parked streams as they expire. The thread ends when none is parked; `park` starts a new one."""
        while True:
            with self.ahead.changed:
                now = time.monotonic()
                expired = [reader for until, reader in self._parked if until <= now]
                self._parked = [parked for parked in self._parked if parked[0] > now]
                # Under the lock, so that `park` either finds this thread or starts another.
                if not self._parked and not expired:
                    self._expiry = None
                    return
                if not expired:
                    self.ahead.changed.wait(min(until for until, _ in self._parked) - now)
            stop_all(expired)
