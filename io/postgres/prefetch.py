"""Readers of slots between bundles: each is parked, and resumed by the next bundle if that continues at its position.

A server lets one reader use a slot. A parked reader therefore gives the slot up when `idle_stream_seconds` have passed,
and at once when a bundle begins at another position. A bundle in another worker does not wait for that: it ends the
connection of the parked reader (`Client.take_slot`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from penstock.io.change_streams.flat import FlatFrontier
from penstock.io.change_streams.prefetch import ReadAhead, Traffic
from penstock.io.change_streams.settings import Limits
from penstock.io.postgres.reader import Batch, Position, StreamReader

_CONNECTING_SECONDS = 5.0
"""How long a split waits for a new connection."""
_DECODING_SECONDS = 600.0
"""How long a split waits for the server, which sends nothing while it decodes a large transaction.

A new connection gets the transaction that it begins in from its first record again. The server needs seconds for a
million rows and minutes for a hundred million."""

MakeReader = Callable[[str, Position, int], StreamReader]
"""Makes the reader of a slot at a position with a watermark."""


class _Parked(NamedTuple):
    reader: StreamReader
    expiry: threading.Timer


class StreamPool:
    """The readers of the slots of one change stream in one process. Thread-safe; one bundle uses a slot at a time."""

    def __init__(self, make: MakeReader, ahead: ReadAhead, limits: Limits) -> None:
        """`ahead`: the budget that all readers of `make` share."""
        self._make, self._idle_seconds = make, limits.idle_stream_seconds
        self.ahead = ahead
        self._lock = threading.Lock()
        self._parked: dict[str, _Parked] = {}

    @contextmanager
    def prefetching(self, frontier: FlatFrontier) -> Iterator[Prefetcher]:
        """Yield a prefetcher. After an error its readers are stopped, otherwise they are parked."""
        prefetcher = Prefetcher(self)
        try:
            yield prefetcher
        except BaseException:
            prefetcher.close()
            raise
        else:
            prefetcher.close(keep=True)

    def resume(self, slot: str, position: Position, watermark: int) -> StreamReader:
        """Return the parked reader of a slot if it stands at this position, else a new one.

        A position that a bundle begins at is in the checkpoint, so the server need not keep the log before it. A
        repeated epoch begins at an older one, which acknowledges nothing.
        """
        reader = self._take_parked(slot)
        # Asked in this order: a parked reader whose connection was lost has ended, whatever its position is.
        if reader is not None and not (reader.resume() and reader.position == position):
            reader.stop()
            reader = None
        if reader is None:
            reader = self._make(slot, position, watermark)
        # Only a position that a bundle begins at: what a bundle has claimed may still be repeated.
        reader.acknowledge(position.safe_lsn)
        return reader

    def park(self, reader: StreamReader) -> None:
        """Park the reader for the next bundle.

        A reader whose end was claimed is stopped. If that bundle is lost, the next one begins at the same position and
        would wait for the end without limit.
        """
        if self._idle_seconds <= 0 or reader.is_exhausted:
            reader.stop()
            return
        # Before the timer: it may fire at once.
        reader.park()
        expiry = threading.Timer(self._idle_seconds, self._expire, (reader,))
        expiry.daemon = True
        with self._lock:
            before = self._parked.get(reader.slot)
            self._parked[reader.slot] = _Parked(reader, expiry)
            expiry.start()
        # Outside of the lock, because `stop` waits for the end of the reader's thread.
        if before is not None:
            before.expiry.cancel()
            before.reader.stop()

    def _take_parked(self, slot: str) -> StreamReader | None:
        with self._lock:
            parked = self._parked.pop(slot, None)
        if parked is None:
            return None
        parked.expiry.cancel()
        return parked.reader

    def _expire(self, reader: StreamReader) -> None:
        with self._lock:
            parked = self._parked.get(reader.slot)
            # A bundle may have resumed the reader at the moment at which the timer fired.
            if parked is None or parked.reader is not reader:
                return
            del self._parked[reader.slot]
        reader.stop()


class Prefetcher:
    """The readers of one `process` call: one for each slot of its frontier."""

    def __init__(self, pool: StreamPool) -> None:
        self._pool = pool
        self._readers: dict[str, StreamReader] = {}
        self._in_hand: tuple[StreamReader, Batch] | None = None
        self._began = time.monotonic()

    def serve(self, frontier: FlatFrontier) -> None:
        """Read the slots that are not read to their end."""
        self._settle()
        for slot, flat in frontier.positions.items():
            if slot not in self._readers:
                position = Position(*flat.position)
                self._readers[slot] = self._pool.resume(slot, position, flat.watermark)

    def take(self, timeout: float) -> Batch | None:
        """Return a batch, or None after `timeout` seconds; see `change_streams.prefetch`.

        Among slots with something to claim, the one with the lowest watermark is next, so that no slot falls behind.
        """
        self._settle()
        if not self._readers:
            return None
        readers, changed = self._readers.values(), self._pool.ahead.changed
        with changed:
            changed.wait_for(lambda: any(reader.is_ready for reader in readers), timeout)
            ready = [reader for reader in readers if reader.is_ready]
        if not ready:
            return None
        reader = min(ready, key=lambda reader: reader.watermark)
        batch = reader.take(0)
        self._in_hand = None if batch is None else (reader, batch)
        return batch

    @property
    def data_expected(self) -> bool:
        """Whether a connection is new and nothing has arrived yet."""
        return any(not reader.has_answered for reader in self._awaited())

    @property
    def first_record_pending(self) -> bool:
        """Whether a split now would repeat more of the log than this bundle has read; see `reopen_cost`."""
        return any(reader.holds_connection for reader in self._awaited())

    def _awaited(self) -> list[StreamReader]:
        """Return the readers for which a split may wait: those that try to connect only for a short time."""
        age = time.monotonic() - self._began
        if age >= _DECODING_SECONDS:
            return []
        return [reader for reader in self._readers.values() if reader.is_open or age < _CONNECTING_SECONDS]

    @property
    def may_stop(self) -> bool:
        """Whether no reader is behind. A split loses nothing: the next bundle continues the connection."""
        return not any(reader.is_behind for reader in self._readers.values())

    def uncounted(self) -> Traffic:
        """Return the connections that were opened and lost since the last call, and the bytes that were received."""
        done = Traffic()
        for reader in self._readers.values():
            done = done.and_also(reader.uncounted())
        return done

    def close(self, *, keep: bool = False) -> None:
        """Park the readers, or stop them."""
        self._settle()
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            if keep:
                self._pool.park(reader)
            else:
                reader.stop()

    def _settle(self) -> None:
        in_hand, self._in_hand = self._in_hand, None
        if in_hand is not None:
            reader, batch = in_hand
            reader.settle(batch)
