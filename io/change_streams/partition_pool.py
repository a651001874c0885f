"""Readers that outlive a bundle: opened once, resumed by one bundle after another, stopped when none continues them.

    with pool.prefetching(frontier) as prefetcher: …

A bundle is split every few hundred milliseconds. A stream that is opened again each time costs the service a seek and
drops what was read ahead. So a reader is parked in the pool of its process when a bundle ends without an error, and is
resumed only by a bundle that asks for *exactly* its position. If an epoch was repeated, or the partition was read
elsewhere, the position differs and a new reader is made. A reader that no bundle asks for within `idle_stream_seconds`
is stopped. When a bundle can continue none of the parked readers, another worker was given their partitions, and all of
them are stopped at once.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.partition_prefetch import PartitionPrefetcher
from penstock.io.change_streams.partition_stream import PartitionStream
from penstock.io.change_streams.prefetch import ReadAhead
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.stream_reader import StreamReader, stop_all

_MIN_SHARE = 64 << 10
"""Bytes that a partition may be read ahead, however many there are."""


class PartitionPool(ABC):
    """The readers of one change stream in one process. Thread-safe; several bundles may use it at once.

    One thread of the pool stops parked readers that no bundle asked for. It also does the periodic work of a source
    that has some, while there are readers. An error of this work fails the next bundle, and the work starts again with
    the bundle after it.
    """

    prefetcher_type: ClassVar[type[PartitionPrefetcher]] = PartitionPrefetcher
    has_work: ClassVar[bool] = False
    """Whether `work` is to be called."""

    def __init__(self, refusals: Refusals, backoff: Backoff, limits: Limits) -> None:
        self.backoff, self.limits = backoff, limits
        self.ahead = ReadAhead(limits.buffer_bytes)
        self._refusals = refusals
        self._running: set[StreamReader] = set()
        self._parked: list[tuple[float, StreamReader]] = []
        self._worker: threading.Thread | None = None
        self._error: BaseException | None = None
        # Not the condition of the readers, which is notified for each batch.
        self._wake = threading.Event()
        self._wakes_at = 0.0

    # Methods that a source implements.

    @abstractmethod
    def positions(self, frontier: Any) -> Mapping[Any, Any]:
        """Return the position of each partition that may be read. Positions have a `watermark` in nanoseconds."""

    @abstractmethod
    def make_stream(self, partition: Any, position: Any, share_bytes: int) -> PartitionStream:
        """Return the stream of a partition; `share_bytes`: its part of the budget."""

    def work(self, now: float, readers: Sequence[StreamReader]) -> float:
        """Do the periodic work on readers that run or are parked; return when it is due again, as `now` is."""
        raise NotImplementedError

    # Bundles.

    @contextmanager
    def prefetching(self, frontier: Any) -> Iterator[PartitionPrefetcher]:
        """Yield a prefetcher, which resumes readers as `serve` asks for them. After an error they are stopped."""
        with self.prefetcher_type(self) as prefetcher:
            yield prefetcher

    def begin(self, positions: Mapping[Any, Any]) -> None:
        """Start a bundle. If it continues none of the parked readers, their partitions moved: stop them.

        Raises what the periodic work raised.
        """
        with self.ahead.lock:
            error, self._error = self._error, None
            if error is not None:
                raise error
            if any(positions.get(reader.partition) == reader.position for _, reader in self._parked):
                return
            parked, self._parked = self._parked, []
        # Outside of the lock, which their threads need to end.
        stop_all([reader for _, reader in parked])

    def resume(self, partition: Hashable, position: Any, streams: int) -> StreamReader:
        """Return a reader that stands at this position: a parked one, or a new one.

        `streams`: how many partitions share the budget. A parked reader whose thread has failed is resumed too, so that
        the bundle raises the error.
        """
        with self.ahead.lock:
            mine = [parked for parked in self._parked if parked[1].partition == partition]
            self._parked = [parked for parked in self._parked if parked not in mine]
            found = next(
                (reader for _, reader in mine if reader.position == position and reader.resume()), None
            )
            if found is not None:
                self._start_work(found, math.inf)
        # Before a new one is opened: it has the same partition, and some services let one reader use it.
        stop_all([reader for _, reader in mine if reader is not found])
        if found is None:
            share = max(_MIN_SHARE, self.limits.buffer_bytes // max(1, streams))
            found = StreamReader(
                partition,
                position,
                self.make_stream(partition, position, share),
                self.ahead,
                self.backoff,
                self._refusals,
                self.limits.unavailable_seconds,
            )
            with self.ahead.lock:
                self._start_work(found, time.monotonic())
        return found

    def park(self, reader: StreamReader) -> None:
        """Park a reader for the next bundle; the oldest one is stopped when there are too many."""
        until = time.monotonic() + self.limits.idle_stream_seconds
        most = self.limits.max_concurrent_partitions if self.limits.idle_stream_seconds > 0 else 0
        with self.ahead.lock:
            self._running.discard(reader)
            reader.park()
            self._parked.append((until, reader))
            # The oldest: the longer a reader waits, the less likely a bundle asks for its position.
            surplus = [parked for _, parked in self._parked[: max(0, len(self._parked) - most)]]
            del self._parked[: len(surplus)]
            self._ensure_worker(until)
        stop_all(surplus)

    def drop(self, reader: StreamReader) -> None:
        """Forget a reader that its bundle stops."""
        with self.ahead.lock:
            self._running.discard(reader)

    def clear(self) -> None:
        """Stop all parked readers and wait for their threads."""
        with self.ahead.lock:
            parked, self._parked = self._parked, []
            self._wake.set()
        stop_all([reader for _, reader in parked])

    # The pool's thread.

    def wake(self) -> None:
        """Let the periodic work come soon."""
        self._wake.set()

    def _start_work(self, reader: StreamReader, due: float) -> None:
        self._running.add(reader)
        if self.has_work:
            self._ensure_worker(due)

    def _ensure_worker(self, until: float) -> None:
        """Have a thread that looks at the readers at `until`. The lock is held."""
        if self._worker is None:
            name = f"penstock-{self._refusals.service.lower()}-reader-pool"
            self._worker = threading.Thread(target=self._maintain, name=name, daemon=True)
            self._worker.start()
        elif until < self._wakes_at:
            self._wake.set()

    def _maintain(self) -> None:
        try:
            while self._look_after_readers():
                self._wake.wait(max(0.0, self._wakes_at - time.monotonic()))
                # A wake-up before this line is not lost: the next look sees the cause.
                self._wake.clear()
        except BaseException as error:  # whatever it is, the next bundle raises it
            with self.ahead.lock:
                self._worker, self._error = None, error

    def _look_after_readers(self) -> bool:
        """Stop readers that expired and do the periodic work; False: there are no readers, so the thread ends."""
        now = time.monotonic()
        with self.ahead.lock:
            expired = [reader for until, reader in self._parked if until <= now]
            self._parked = [parked for parked in self._parked if parked[0] > now]
            readers = [*(self._running if self.has_work else ()), *(reader for _, reader in self._parked)]
        stop_all(expired)
        # Outside of the lock, which readers need for each batch: the work sends requests.
        due = self.work(now, readers) if self.has_work else math.inf
        with self.ahead.lock:
            # Under the lock, so that `park` and `resume` either find this thread or start another.
            if not self._parked and not (self.has_work and self._running):
                self._worker = None
                return False
            self._wakes_at = min([due, *(until for until, _ in self._parked)])
            return True
