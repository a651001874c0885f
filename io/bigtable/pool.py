"""Streams that outlive a bundle: opened once, lent to one bundle after another, closed when nobody asks.

A bundle is cut every few hundred milliseconds; opening a stream anew each time costs the service a seek and
throws away what was read ahead. So a stream goes back to the pool of its process when a bundle ends in order,
and is lent again only to a bundle that asks for *exactly* its position: the same partition after the same
claimed token. Whatever else has happened meanwhile (an epoch repeated, the partition read elsewhere, a merge),
the position differs, and a new stream is opened. What nobody asks for within `idle_stream_seconds` is cancelled, and
at once when a bundle finds nothing to go on with: this worker was given another part of the table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from penstock.io.bigtable.frontier import Opening
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.prefetch import (
    MOST_IN_BATCH,
    Batch,
    Select,
    Shared,
    Source,
    StreamReader,
    by_watermark,
)
from penstock.io.bigtable.reopen import ReopenSchedule
from penstock.io.change_streams.process_local import ProcessLocal

_TURN_SECONDS = 1.0
"""How long a stream may run while others wait for its place."""
_GATHER_SECONDS = 0.01
"""How long a consumer that finds less than a batch lets more of it come, so that it is not woken for each record."""
_LATE = 2_000_000_000
"""Nanoseconds; a reader that lies further behind expects its streams to bring something soon."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How the reading is bounded: how long the service may stay away and how long an unused stream lives
    (seconds), how many streams run at once, how much may be read ahead of the consumer, and how long a segment
    waits for a merge before it asks (seconds)."""

    unavailable_seconds: float
    max_concurrent_partitions: int
    buffer_bytes: int
    idle_stream_seconds: float
    merge_wait_seconds: float


class StreamPool:
    """The streams of one reading in one process. Safe for threads; several bundles may use it at once."""

    def __init__(self, source: Source, limits: Limits, select: Select | None, bounded: bool) -> None:
        self.limits = limits
        self.shared = Shared(limits.buffer_bytes)
        self.source = source
        self.reopen_schedule = ReopenSchedule(limits.merge_wait_seconds)
        self._select = select
        self._bounded = bounded
        self._parked: list[tuple[float, StreamReader]] = []
        self._janitor: threading.Thread | None = None

    def begin(self, openings: Collection[Opening]) -> None:
        """Take notice of a bundle: if it goes on with none of the kept streams, somebody else does by now."""
        with self.shared.changed:
            if any(reader.position in openings for _, reader in self._parked):
                return
            kept, self._parked = self._parked, []
        for _, reader in kept:
            reader.stop()

    def checkout(self, opening: Opening) -> StreamReader:
        """Return a stream that stands at this position: a kept one, or a new one.

        A kept one that has failed meanwhile is lent too, so that somebody hears of it.
        """
        with self.shared.changed:
            for number, (_, reader) in enumerate(self._parked):
                if reader.position == opening:
                    del self._parked[number]
                    return reader
        timeout = self.limits.unavailable_seconds
        return StreamReader(opening, self.source, self._select, self._bounded, timeout, self.shared)

    def park(self, reader: StreamReader) -> None:
        """Keep a stream for the next bundle; the oldest one goes when there are too many."""
        if self.limits.idle_stream_seconds <= 0:
            reader.stop()
            return
        with self.shared.changed:
            self._parked.append((time.monotonic() + self.limits.idle_stream_seconds, reader))
            surplus = [kept for _, kept in self._parked[: -self.limits.max_concurrent_partitions]]
            self._parked = self._parked[-self.limits.max_concurrent_partitions :]
            if self._janitor is None:
                self._janitor = threading.Thread(
                    target=self._expire, name="penstock-bigtable-reader-janitor", daemon=True
                )
                self._janitor.start()
        for kept in surplus:
            kept.stop()

    def clear(self) -> None:
        """Cancel all kept streams and wait for their threads."""
        with self.shared.changed:
            kept, self._parked = [reader for _, reader in self._parked], []
            self.shared.changed.notify_all()
        stop_all(kept)

    def _expire(self) -> None:
        """Cancel kept streams as their time comes; ends when none is left."""
        while True:
            with self.shared.changed:
                now = time.monotonic()
                expired = [reader for until, reader in self._parked if until <= now]
                self._parked = [kept for kept in self._parked if kept[0] > now]
                if not self._parked and not expired:
                    self._janitor = None
                    return
                if not expired:
                    self.shared.changed.wait(min(until for until, _ in self._parked) - now)
            stop_all(expired)


def stop_all(readers: list[StreamReader]) -> None:
    """Cancel streams and wait for their threads."""
    for reader in readers:
        reader.stop()
    for reader in readers:
        reader.join()


class Prefetcher:
    """The streams that one `process` call has borrowed. `read`, `take`, then the end of the `with`."""

    def __init__(self, pool: StreamPool, clock: Callable[[], int] = time.time_ns) -> None:
        self._pool = pool
        self._clock = clock
        self._changed = pool.shared.changed
        self._running: dict[KeyRange, StreamReader] = {}
        self._begun = False
        self._in_hand: Batch | None = None
        self._gathered = 0  # steps that may be taken before more of them are waited for
        self.streams = self.retries = 0

    def read(self, ready: Mapping[KeyRange, Opening]) -> None:
        """Let streams run for these openings and no others; beyond `max_concurrent_partitions` they take turns."""
        self._settle()
        if not self._begun:
            self._begun = True
            self._pool.begin(set(ready.values()))
        for partition in self._running.keys() - ready.keys():
            self._stop(partition)
        waiting = [opening for opening in by_watermark(ready) if opening.partition not in self._running]
        if waiting:
            self._end_turns(len(self._running) + len(waiting) - self._pool.limits.max_concurrent_partitions)
        for opening in waiting[: self._pool.limits.max_concurrent_partitions - len(self._running)]:
            self._running[opening.partition] = self._borrow(opening)

    def take(self, timeout: float) -> Batch | None:
        """Return a batch of the partition that lies lowest; None when there is none within `timeout` seconds.

        Whatever of the last batch was not counted as claimed is put back. Raises what a thread raised.
        """
        self._settle()
        deadline = time.monotonic() + timeout
        with self._changed:
            while not (waiting := self._waiting()):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._changed.wait(remaining)
        if self._gathered <= 0 and _queued(waiting) < MOST_IN_BATCH:
            time.sleep(_GATHER_SECONDS)
        with self._changed:
            waiting = self._waiting()
            if self._gathered <= 0:
                self._gathered = _queued(waiting)
            self._in_hand = min(waiting, key=lambda reader: reader.position.watermark).take()
            self._gathered -= len(self._in_hand.steps)
            return self._in_hand

    @property
    def data_expected(self) -> bool:
        """A stream lies behind and has not said anything yet, and the service answers."""
        late = self._clock() - _LATE
        silent = any(not r.heard and r.position.watermark < late for r in self._running.values())
        return silent and self._pool.source.backoff.remaining_pause() == 0

    def close(self, *, keep: bool = False) -> None:
        """Give the streams back to the pool, or cancel them and wait for their threads."""
        self._settle()
        readers, self._running = list(self._running.values()), {}
        for reader in readers:
            self._count(reader)
            if keep:
                self._pool.park(reader)
        if not keep:
            stop_all(readers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(keep=kind is None)

    def _waiting(self) -> list[StreamReader]:
        return [reader for reader in self._running.values() if reader.waiting]

    def _settle(self) -> None:
        batch, self._in_hand = self._in_hand, None
        if batch is None:
            return
        with self._changed:
            batch.reader.settle(batch)
        if batch.claimed == len(batch.steps) and batch.ends_stream:
            self._stop(batch.reader.position.partition)

    def _borrow(self, opening: Opening) -> StreamReader:
        reader = self._pool.checkout(opening)
        reader.since = time.monotonic()
        return reader

    def _stop(self, partition: KeyRange) -> None:
        reader = self._running.pop(partition)
        self._count(reader)
        reader.stop()

    def _count(self, reader: StreamReader) -> None:
        streams, retries = reader.uncounted()
        self.streams += streams
        self.retries += retries

    def _end_turns(self, surplus: int) -> None:
        """Stop up to `surplus` of the streams whose turn is over, those that have come furthest first."""
        over = time.monotonic() - _TURN_SECONDS
        done = [reader for reader in self._running.values() if reader.since < over]
        done.sort(key=lambda reader: -reader.position.watermark)
        for reader in done[: max(0, surplus)]:
            self._stop(reader.position.partition)


def _queued(readers: list[StreamReader]) -> int:
    return sum(reader.queued for reader in readers)


pools: ProcessLocal[StreamPool] = ProcessLocal()
"""Those of this process, by stream and settings."""
