"""Reads many partitions ahead: a thread for each stream (see `reader`), one consumer that takes.

    with pool.prefetching(frontier) as prefetcher:
        prefetcher.serve(frontier)                # run exactly the streams that may be open
        batch = prefetcher.take(timeout=0.05)     # steps of one partition, in order; None: nothing yet
        for count, records, step in batch.claims():
            ...                                   # claim the step, emit the records
            batch.claimed += count

A stream may outlive the bundle (see `pool`). Steps that it has read and that were not claimed stay in its queue, and
the next bundle that asks for exactly that position continues there. The partition with the lowest watermark comes
first. After an error the streams are cancelled and all threads end; otherwise they are parked.

Knows neither Beam nor the client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from typing_extensions import Self

from penstock.io.bigtable.frontier import Frontier, Position, Reopened
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.reader import MAX_IN_BATCH, Batch, KeyFilter, Opener, StreamReader
from penstock.io.bigtable.reopen import ReopenSchedule
from penstock.io.change_streams import settings
from penstock.io.change_streams.prefetch import Claim, ReadAhead, Traffic
from penstock.io.change_streams.stream_thread import stop_all
from penstock.timestamps import NANOS

_TURN_SECONDS = 1.0
"""How long a stream may run while others wait for its place."""
_GATHER_SECONDS = 0.01
"""How long a consumer that finds less than a batch waits for more, so that it is not woken for each record."""
_MAX_DEFERRAL_SECONDS = 5.0
"""How long a split waits for the first record of a stream, if the heartbeat interval is not longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(settings.Limits):
    """The common limits, and two times in seconds.

    `merge_wait_seconds`: how long a segment waits for a merge before it asks the service.
    `heartbeat_seconds`: how often the service sends a heartbeat on an idle stream.
    """

    merge_wait_seconds: float
    heartbeat_seconds: float

    @property
    def split_deferral_seconds(self) -> float:
        """How long a split waits for the first record of a stream: at least until its first heartbeat."""
        return max(_MAX_DEFERRAL_SECONDS, self.heartbeat_seconds + 2)


class Streams(Protocol):
    """The pool from which a prefetcher resumes its streams."""

    @property
    def limits(self) -> Limits: ...
    @property
    def ahead(self) -> ReadAhead: ...
    @property
    def opener(self) -> Opener: ...
    @property
    def reopen_schedule(self) -> ReopenSchedule: ...
    def begin(self, positions: set[Position]) -> None: ...
    def resume(self, position: Position) -> StreamReader: ...
    def park(self, reader: StreamReader) -> None: ...


class ReopenBatch:
    """The step that re-opens one waiting segment. It comes from a timer and not from a stream."""

    ends_with_lineage = True

    def __init__(self, part: KeyRange) -> None:
        self.claimed = 0
        self._part = part

    def claims(self) -> Iterator[Claim]:
        """Yield the one step."""
        yield 1, (), Reopened(self._part)


class Prefetcher:
    """The streams of one `process` call. `serve`, `take`, then the end of the `with`."""

    def __init__(self, pool: Streams, clock: Callable[[], int] = time.time_ns) -> None:
        self._pool = pool
        self._clock = clock
        self._changed = pool.ahead.changed
        self._running: dict[KeyRange, StreamReader] = {}
        self._key_filter: KeyFilter | None = None
        self._to_reopen: list[KeyRange] = []
        self._began: float | None = None
        self._in_hand: Batch | None = None
        self._gathered = 0  # steps that may be taken before more of them are waited for
        self._takes_turns = False
        self._traffic = Traffic()

    def serve(self, frontier: Frontier) -> None:
        """Run the streams that may be open, and re-open the segments that have waited long enough for a merge."""
        waiting = frontier.waiting
        self._key_filter = frontier.key_filter()
        self.read(frontier.positions)
        # One segment is re-opened at a time: that may complete the target of another one, which then no longer waits.
        due = [*self._to_reopen, *self._pool.reopen_schedule.due(waiting)]
        self._to_reopen = [part for part in dict.fromkeys(due) if part in waiting]

    def read(self, positions: Mapping[KeyRange, Position]) -> None:
        """Run streams for these positions and no others; beyond `max_concurrent_partitions` they take turns."""
        self._settle()
        if begins := self._began is None:
            # All positions of the bundle are known only now, and the pool needs them to recognize its parked streams.
            self._pool.begin(set(positions.values()))
        # Streams that may no longer be open: their partition was closed or split, or it now belongs to a merge.
        for partition in self._running.keys() - positions.keys():
            self._stop(partition)
        most = self._pool.limits.max_concurrent_partitions
        waiting = [
            position for position in by_watermark(positions) if position.partition not in self._running
        ]
        self._takes_turns = len(positions) > most
        if waiting:
            self._end_turns(len(self._running) + len(waiting) - most)
        for position in waiting[: most - len(self._running)]:
            # Taken by the lowest watermark first, because the slowest partition holds the watermark of the whole read.
            self._running[position.partition] = self._resume(position)
        # Set after the streams are resumed, so that these count as streams of the bundle's beginning (`_is_awaited`).
        if begins:
            self._began = time.monotonic()

    def take(self, timeout: float) -> Batch | ReopenBatch | None:
        """Return a batch of the partition with the lowest watermark; None when none comes within `timeout` seconds.

        Steps of the last batch that were not counted as claimed are put back. Raises what a thread raised.
        """
        self._settle()
        if self._to_reopen:
            return ReopenBatch(self._to_reopen.pop(0))
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
            # Chosen again after the pause: a stream with a lower watermark may have received its first record.
            self._in_hand = batch = min(waiting, key=lambda reader: reader.position.watermark).take()
            # Set here and not by the reader: what is wanted changes with the frontier, after the record was queued.
            batch.key_filter = self._key_filter
            self._gathered -= len(batch.steps)
            return batch

    @property
    def first_record_pending(self) -> bool:
        """Whether a stream whose partition is behind will soon send its first record or heartbeat.

        A split now would discard the stream before it has sent anything, if no later bundle of this process continues
        it. If that happens to every stream of a partition, its watermark stands still. Only streams that ran when
        the bundle began count, so that a bundle with many partitions ends: the next one begins with the others.
        """
        if self._pool.opener.backoff.remaining_pause() > 0:
            return False
        return any(map(self._is_awaited, self._running.values()))

    data_expected = first_record_pending

    def _is_awaited(self, reader: StreamReader) -> bool:
        # A watermark ahead of the clock shows that the clock of this computer is wrong. Then it says nothing.
        lag_seconds = (self._clock() - reader.position.watermark) / NANOS
        is_current = -1 < lag_seconds < self._pool.limits.heartbeat_seconds + 1
        ran_at_first = self._began is not None and reader.running_since <= self._began
        return reader.first_record_pending and ran_at_first and not is_current and self._is_young(reader)

    def _is_young(self, reader: StreamReader) -> bool:
        return time.monotonic() < reader.opened + self._pool.limits.split_deferral_seconds

    @property
    def may_stop(self) -> bool:
        """Whether no partition is behind, and each has its own stream.

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
        """Park the streams, or cancel them and wait for their threads."""
        self._settle()
        readers, self._running = list(self._running.values()), {}
        if not keep:
            stop_all(readers)
            return
        for reader in readers:
            self._pool.park(reader)

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
            # The reader is still in `_running`: only `_stop` removes one, and a batch in hand is settled before it.
            batch.reader.settle(batch)
        # A step of lineage that was claimed closes the stream. Its successors have other positions and other streams.
        if batch.claimed == len(batch.steps) and batch.ends_with_lineage:
            self._stop(batch.reader.position.partition)

    def _resume(self, position: Position) -> StreamReader:
        reader = self._pool.resume(position)
        reader.running_since = time.monotonic()
        return reader

    def _stop(self, partition: KeyRange) -> None:
        reader = self._running.pop(partition)
        self._count(reader)
        reader.stop()

    def _count(self, reader: StreamReader) -> None:
        self._traffic = self._traffic.and_also(reader.uncounted())

    def _end_turns(self, surplus: int) -> None:
        """Stop up to `surplus` of the streams whose turn has ended, those with the highest watermark first.

        No turn ends before the first heartbeat. Otherwise a heartbeat slower than a turn would never be received.
        """
        ended = time.monotonic() - _TURN_SECONDS
        done = [
            reader
            for reader in self._running.values()
            if reader.running_since < ended and not (reader.first_record_pending and self._is_young(reader))
        ]
        done.sort(key=lambda reader: -reader.position.watermark)
        for reader in done[: max(0, surplus)]:
            self._stop(reader.position.partition)


def by_watermark(positions: Mapping[KeyRange, Position]) -> list[Position]:
    """Return the positions, the one with the lowest watermark first."""
    return sorted(positions.values(), key=lambda position: (position.watermark, position.partition))


def _queued(readers: list[StreamReader]) -> int:
    return sum(reader.queued for reader in readers)
