"""Streams that outlive a bundle: opened once, lent to one bundle after another, closed when nobody asks.

A bundle is cut every few hundred milliseconds; opening a stream anew each time costs the service a seek and
throws away what was read ahead. So a stream goes back to the pool of its process when a bundle ends in order,
and is lent again only to a bundle that asks for *exactly* its position: the same partition after the same
claimed token. Whatever else has happened meanwhile (an epoch repeated, the partition read elsewhere, a merge),
the position differs, and a new stream is opened. What nobody asks for within `keep_seconds` is cancelled, and
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
    PartitionReader,
    Select,
    Shared,
    Source,
    by_watermark,
)
from penstock.io.bigtable.reopen import Stalls
from penstock.io.change_streams.process_local import OncePerProcess

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

    unavailable_timeout: float
    max_streams: int
    buffer_bytes: int
    keep_seconds: float
    reopen_after: float


class Pool:
    """The streams of one reading in one process. Safe for threads; several bundles may use it at once."""

    def __init__(self, source: Source, limits: Limits, select: Select | None, bounded: bool) -> None:
        self.limits = limits
        self.shared = Shared(limits.buffer_bytes)
        self.source = source
        self.stalls = Stalls(limits.reopen_after)
        self._select = select
        self._bounded = bounded
        self._kept: list[tuple[float, PartitionReader]] = []
        self._janitor: threading.Thread | None = None

    def begin(self, openings: Collection[Opening]) -> None:
        """Take notice of a bundle: if it goes on with none of the kept streams, somebody else does by now."""
        with self.shared.changed:
            if any(reader.position in openings for _, reader in self._kept):
                return
            kept, self._kept = self._kept, []
        for _, reader in kept:
            reader.stop()

    def lend(self, opening: Opening) -> PartitionReader:
        """Return a stream that stands at this position: a kept one, or a new one.

        A kept one that has failed meanwhile is lent too, so that somebody hears of it.
        """
        with self.shared.changed:
            for number, (_, reader) in enumerate(self._kept):
                if reader.position == opening:
                    del self._kept[number]
                    return reader
        timeout = self.limits.unavailable_timeout
        return PartitionReader(opening, self.source, self._select, self._bounded, timeout, self.shared)

    def give_back(self, reader: PartitionReader) -> None:
        """Keep a stream for the next bundle; the oldest one goes when there are too many."""
        if self.limits.keep_seconds <= 0:
            reader.stop()
            return
        with self.shared.changed:
            self._kept.append((time.monotonic() + self.limits.keep_seconds, reader))
            surplus = [kept for _, kept in self._kept[: -self.limits.max_streams]]
            self._kept = self._kept[-self.limits.max_streams :]
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
            kept, self._kept = [reader for _, reader in self._kept], []
            self.shared.changed.notify_all()
        stop_all(kept)

    def _expire(self) -> None:
        """Cancel kept streams as their time comes; ends when none is left."""
        while True:
            with self.shared.changed:
                now = time.monotonic()
                expired = [reader for until, reader in self._kept if until <= now]
                self._kept = [kept for kept in self._kept if kept[0] > now]
                if not self._kept and not expired:
                    self._janitor = None
                    return
                if not expired:
                    self.shared.changed.wait(min(until for until, _ in self._kept) - now)
            stop_all(expired)


def stop_all(readers: list[PartitionReader]) -> None:
    """Cancel streams and wait for their threads."""
    for reader in readers:
        reader.stop()
    for reader in readers:
        reader.join()


class Readers:
    """The streams that one `process` call has borrowed. `read`, `take`, then the end of the `with`."""

    def __init__(self, pool: Pool, clock: Callable[[], int] = time.time_ns) -> None:
        self._pool = pool
        self._clock = clock
        self._changed = pool.shared.changed
        self._running: dict[KeyRange, PartitionReader] = {}
        self._begun = False
        self._in_hand: Batch | None = None
        self._gathered = 0  # steps that may be taken before more of them are waited for
        self.streams = self.retries = 0

    def read(self, ready: Mapping[KeyRange, Opening]) -> None:
        """Let streams run for these openings and no others; beyond `max_streams` they take turns."""
        self._settle()
        if not self._begun:
            self._begun = True
            self._pool.begin(set(ready.values()))
        for partition in self._running.keys() - ready.keys():
            self._stop(partition)
        waiting = [opening for opening in by_watermark(ready) if opening.partition not in self._running]
        if waiting:
            self._end_turns(len(self._running) + len(waiting) - self._pool.limits.max_streams)
        for opening in waiting[: self._pool.limits.max_streams - len(self._running)]:
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
    def expecting(self) -> bool:
        """A stream lies behind and has not said anything yet, and the service answers."""
        late = self._clock() - _LATE
        silent = any(not r.heard and r.position.watermark < late for r in self._running.values())
        return silent and self._pool.source.outage.remaining_pause() == 0

    def close(self, *, keep: bool = False) -> None:
        """Give the streams back to the pool, or cancel them and wait for their threads."""
        self._settle()
        readers, self._running = list(self._running.values()), {}
        for reader in readers:
            self._count(reader)
            if keep:
                self._pool.give_back(reader)
        if not keep:
            stop_all(readers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(keep=kind is None)

    def _waiting(self) -> list[PartitionReader]:
        return [reader for reader in self._running.values() if reader.waiting]

    def _settle(self) -> None:
        batch, self._in_hand = self._in_hand, None
        if batch is None:
            return
        with self._changed:
            batch.reader.settle(batch)
        if batch.claimed == len(batch.steps) and batch.ends_stream:
            self._stop(batch.reader.position.partition)

    def _borrow(self, opening: Opening) -> PartitionReader:
        reader = self._pool.lend(opening)
        reader.since = time.monotonic()
        return reader

    def _stop(self, partition: KeyRange) -> None:
        reader = self._running.pop(partition)
        self._count(reader)
        reader.stop()

    def _count(self, reader: PartitionReader) -> None:
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


def _queued(readers: list[PartitionReader]) -> int:
    return sum(reader.queued for reader in readers)


pools: OncePerProcess[Pool] = OncePerProcess()
"""Those of this process, by stream and settings."""
