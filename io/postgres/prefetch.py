"""The reader of a slot between bundles: lent to one bundle after another while each continues at its position.

A server lets one reader use a slot. A parked reader therefore gives the slot up when `idle_stream_seconds` have passed,
and at once when a bundle begins at another position. A bundle in another worker does not wait for that: it ends the
connection of the parked reader (`Client.take_slot`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.io.change_streams.flat import FlatFrontier
from penstock.io.change_streams.settings import Limits
from penstock.io.postgres.log_reader import PARTITION, Batch, LogPosition, LogReader

_FIRST_STEP_SECONDS = 5.0
"""How long a split waits for the first step of a new connection."""

MakeReader = Callable[[LogPosition, int], LogReader]


class StreamPool:
    """The reader of one slot in one process. Thread-safe; one bundle uses it at a time."""

    def __init__(self, make: MakeReader, limits: Limits) -> None:
        self._make, self._idle_seconds = make, limits.idle_stream_seconds
        self._lock = threading.Lock()
        self._parked: LogReader | None = None
        self._janitor: threading.Timer | None = None

    @contextmanager
    def checkout(self, frontier: FlatFrontier) -> Iterator[Prefetcher]:
        """Lend a prefetcher. After an error its reader is stopped, otherwise it is parked."""
        prefetcher = Prefetcher(self)
        try:
            yield prefetcher
        except BaseException:
            prefetcher.close()
            raise
        else:
            prefetcher.close(keep=True)

    def borrow(self, position: LogPosition, watermark: int) -> LogReader:
        """Return the parked reader if it stands at this position, else a new one.

        A position that a bundle begins at is in the checkpoint, so the server need not keep the log before it. A
        repeated epoch begins at an older one, which acknowledges nothing.
        """
        reader = self._unpark()
        if reader is not None and not (reader.unpark() and reader.position == position):
            reader.stop()
            reader = None
        if reader is None:
            reader = self._make(position, watermark)
        reader.acknowledge(position.safe_lsn)
        return reader

    def give_back(self, reader: LogReader) -> None:
        """Park the reader for the next bundle.

        A reader whose end was claimed is stopped. If that bundle is lost, the next one begins at the same position and
        would wait for the end without limit.
        """
        if self._idle_seconds <= 0 or reader.is_exhausted:
            reader.stop()
            return
        reader.park()
        with self._lock:
            before, self._parked = self._parked, reader
            self._janitor = threading.Timer(self._idle_seconds, self._expire, (reader,))
            self._janitor.daemon = True
            self._janitor.start()
        if before is not None:
            before.stop()

    def _unpark(self) -> LogReader | None:
        with self._lock:
            reader, self._parked = self._parked, None
            if self._janitor is not None:
                self._janitor.cancel()
                self._janitor = None
            return reader

    def _expire(self, reader: LogReader) -> None:
        with self._lock:
            if self._parked is not reader:
                return
            self._parked = None
        reader.stop()


class Prefetcher:
    """The reader that one `process` call has borrowed."""

    def __init__(self, pool: StreamPool) -> None:
        self._pool = pool
        self._reader: LogReader | None = None
        self._in_hand: Batch | None = None
        self._began = time.monotonic()

    def serve(self, frontier: FlatFrontier) -> None:
        """Read the slot, if it is not read to its end."""
        self._settle()
        opening = frontier.positions.get(PARTITION)
        if self._reader is None and opening is not None:
            self._reader = self._pool.borrow(LogPosition(*opening.at), opening.watermark)

    def take(self, timeout: float) -> Batch | None:
        """Return a batch, or None after `timeout` seconds; see `change_streams.prefetch`."""
        self._settle()
        if self._reader is None:
            return None
        self._in_hand = self._reader.take(timeout)
        return self._in_hand

    @property
    def data_expected(self) -> bool:
        """Whether the connection is new and nothing has arrived yet."""
        young = time.monotonic() < self._began + _FIRST_STEP_SECONDS
        return self._reader is not None and not self._reader.has_answered and young

    first_record_pending = data_expected

    @property
    def may_stop(self) -> bool:
        """Always: the next bundle continues the connection."""
        return True

    def uncounted(self) -> tuple[int, int]:
        """Return how many connections were opened and how many were lost since the last call."""
        return (0, 0) if self._reader is None else self._reader.uncounted()

    def close(self, *, keep: bool = False) -> None:
        """Park the reader, or stop it."""
        self._settle()
        reader, self._reader = self._reader, None
        if reader is None:
            return
        if keep:
            self._pool.give_back(reader)
        else:
            reader.stop()

    def _settle(self) -> None:
        batch, self._in_hand = self._in_hand, None
        if batch is not None and self._reader is not None:
            self._reader.settle(batch)
