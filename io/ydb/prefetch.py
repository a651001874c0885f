"""Reads many partitions ahead: a thread for each (see `reader`), one consumer that takes.

    with pool.prefetching(frontier) as prefetcher:
        prefetcher.serve(frontier)                # run exactly the partitions that are open
        batch = prefetcher.take(timeout=0.05)     # steps of one partition, in order; None: nothing yet

The partition with the lowest watermark comes first. Beyond `max_concurrent_partitions` partitions take turns. Knows
neither Beam nor the client.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol

from typing_extensions import Self

from penstock.io.change_streams.prefetch import ReadAhead, Traffic
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.stream_thread import stop_all
from penstock.io.ydb.frontier import Frontier, Position
from penstock.io.ydb.reader import MAX_IN_BATCH, Batch, StreamReader

_TURN_SECONDS = 1.0
"""How long a partition may be read while others wait for its place."""
_GATHER_SECONDS = 0.01
"""How long a consumer that finds less than a batch waits for more, so that it is not woken for each record."""
_FIRST_RECORD_SECONDS = 5.0
"""How long a split waits for the first record of a stream."""


class Streams(Protocol):
    """The pool from which a prefetcher resumes its readers."""

    @property
    def limits(self) -> Limits: ...
    @property
    def ahead(self) -> ReadAhead: ...
    def begin(self, positions: Mapping[int, Position]) -> None: ...
    def resume(self, partition: int, position: Position, streams: int) -> StreamReader: ...
    def park(self, reader: StreamReader) -> None: ...
    def drop(self, reader: StreamReader) -> None: ...


class Prefetcher:
    """The readers of one `process` call. `serve`, `take`, then the end of the `with`."""

    def __init__(self, pool: Streams) -> None:
        self._pool, self._changed = pool, pool.ahead.changed
        self._running: dict[int, StreamReader] = {}
        self._in_hand: Batch | None = None
        self._gathered = 0  # steps that may be taken before more of them are waited for
        self._takes_turns = False
        self._began: float | None = None
        self._traffic = Traffic()

    def serve(self, frontier: Frontier) -> None:
        """Read the open partitions of the frontier and no others."""
        # First, because the claims of the last batch decide at which positions the readers stand.
        self._settle()
        positions = frontier.open
        if begins := self._began is None:
            self._pool.begin(positions)
        # Finished, or moved to another part of the frontier: the reader must not hold its share.
        for partition in self._running.keys() - positions.keys():
            self._stop(partition)
        most = self._pool.limits.max_concurrent_partitions
        self._takes_turns = len(positions) > most
        by_watermark = sorted(positions, key=lambda number: (positions[number].watermark, number))
        waiting = [number for number in by_watermark if number not in self._running]
        if waiting:
            # Only as many turns end as partitions wait; the other streams stay open.
            self._end_turns(len(self._running) + len(waiting) - most)
        for number in waiting[: most - len(self._running)]:
            reader = self._pool.resume(number, positions[number], min(len(positions), most))
            reader.running_since = time.monotonic()
            self._running[number] = reader
        if begins:
            self._began = time.monotonic()

    def take(self, timeout: float) -> Batch | None:
        """Return a batch of the partition with the lowest watermark; see `change_streams.prefetch`."""
        self._settle()
        with self._changed:
            waiting = self._changed.wait_for(self._waiting, timeout)
        if not waiting:
            return None
        # One short pause here costs less than a wake-up of this thread for each record.
        # Once per round of batches: without `_gathered` each of many partitions with one record would cost a pause.
        if self._gathered <= 0 and _queued(waiting) < MAX_IN_BATCH:
            time.sleep(_GATHER_SECONDS)
        with self._changed:
            waiting = self._waiting()
            if self._gathered <= 0:
                self._gathered = _queued(waiting)
            # Chosen again after the pause: a reader with a lower watermark may have received its first record.
            self._in_hand = batch = min(waiting, key=lambda reader: reader.position.watermark).take()
            self._gathered -= max(1, len(batch.steps))
            return batch

    @property
    def first_record_pending(self) -> bool:
        """Whether a partition that is behind will soon send its first record.

        A split now would discard the stream before it has sent anything, if no later bundle of this process continues
        it. Only readers that ran when the bundle began count, so that a bundle with many partitions ends.
        """
        return any(map(self._is_awaited, self._running.values()))

    data_expected = first_record_pending

    def _is_awaited(self, reader: StreamReader) -> bool:
        ran_at_first = self._began is not None and reader.running_since <= self._began
        young = time.monotonic() < reader.opened + _FIRST_RECORD_SECONDS
        return ran_at_first and young and reader.first_record_pending

    @property
    def may_stop(self) -> bool:
        """Whether no partition is behind, and each has its own reader.

        Otherwise partitions take turns, and a short bundle is no turn.
        """
        return not self._takes_turns and not any(reader.is_behind for reader in self._running.values())

    def uncounted(self) -> Traffic:
        """Return the streams that were opened and lost since the last call, and the bytes that were received."""
        for reader in self._running.values():
            self._count(reader)
        done, self._traffic = self._traffic, Traffic()
        return done

    def close(self, *, keep: bool = False) -> None:
        """Park the readers, or stop them."""
        self._settle()
        readers, self._running = list(self._running.values()), {}
        for reader in readers:
            (self._pool.park if keep else self._pool.drop)(reader)
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
            # The grant is sent below, outside of the lock: it is a message to the server.
            granted = batch.reader.settle(batch)
        if batch.claimed > len(batch.steps):  # with the end of the partition
            self._stop(batch.reader.partition)
        elif granted:
            batch.reader.grant(granted)

    def _stop(self, partition: int) -> None:
        reader = self._running.pop(partition, None)
        if reader is None:
            return
        self._count(reader)
        self._pool.drop(reader)
        reader.stop()

    def _count(self, reader: StreamReader) -> None:
        self._traffic = self._traffic.and_also(reader.uncounted())

    def _end_turns(self, surplus: int) -> None:
        """Stop up to `surplus` of the readers whose turn has ended, those with the highest watermark first."""
        ended = time.monotonic() - _TURN_SECONDS
        done = [
            reader
            for reader in self._running.values()
            if reader.running_since < ended and not self._is_awaited(reader)
        ]
        done.sort(key=lambda reader: -reader.position.watermark)
        for reader in done[: max(0, surplus)]:
            self._stop(reader.partition)


def _queued(readers: list[StreamReader]) -> int:
    return sum(reader.queued for reader in readers)
