"""Reads the partitions of one bundle ahead: a `StreamReader` for each, one consumer that takes.

    with pool.prefetching(frontier) as prefetcher:
        prefetcher.serve(frontier)                # read exactly the partitions that may be read
        batch = prefetcher.take(timeout=0.05)     # steps of one partition, in order; None: nothing yet
        for count, records, step in batch.claims():
            ...                                   # claim the step, emit the records
            batch.claimed += count

A reader may outlive the bundle (see `partition_pool`). Steps that it has read and that were not claimed stay in its
queue, and the next bundle that asks for exactly that position continues there. The partition with the lowest watermark
comes first. Beyond `max_concurrent_partitions` partitions take turns. After an error the readers are stopped and all
threads end; otherwise they are parked.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Protocol

from typing_extensions import Self

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.partition_stream import StreamBatch, records_in
from penstock.io.change_streams.prefetch import ReadAhead, Traffic
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.stream_reader import StreamReader, stop_all

_FEW = 256
"""Queued steps below which a consumer waits for more."""


class Readers(Protocol):
    """The pool from which a prefetcher resumes its readers."""

    @property
    def limits(self) -> Limits: ...
    @property
    def ahead(self) -> ReadAhead: ...
    @property
    def backoff(self) -> Backoff: ...
    def positions(self, frontier: Any) -> Mapping[Any, Any]: ...
    def begin(self, positions: Mapping[Any, Any]) -> None: ...
    def resume(self, partition: Hashable, position: Any, streams: int) -> StreamReader: ...
    def park(self, reader: StreamReader) -> None: ...
    def drop(self, reader: StreamReader) -> None: ...


class PartitionPrefetcher:
    """The readers of one `process` call. `serve`, `take`, then the end of the `with`."""

    gather_seconds: ClassVar[float] = 0.01
    """How long a consumer that finds less than a batch waits for more, so that it is not woken for each record."""
    turn_seconds: ClassVar[float] = 1.0
    """How long a partition may be read while others wait for its place."""

    def __init__(self, pool: Readers) -> None:
        self.pool, self._changed = pool, pool.ahead.changed
        self.running: dict[Any, StreamReader] = {}
        self.began: float | None = None
        """When the bundle's first streams were resumed; None: not yet."""
        self._in_hand: StreamBatch | None = None
        self._gathered = 0  # steps that may be taken before more of them are waited for
        self._takes_turns = False
        self._traffic = Traffic()

    def serve(self, frontier: Any) -> None:
        """Read the partitions that are readable in `frontier`, and no others."""
        self.read(self.pool.positions(frontier))

    def read(self, positions: Mapping[Any, Any]) -> None:
        """Read partitions at these positions and no others."""
        # First, because the claims of the last batch decide at which positions the readers stand.
        self._settle()
        if begins := self.began is None:
            # All positions of the bundle are known only now, and the pool needs them to recognize its parked readers.
            self.pool.begin(positions)
        # Partitions that are finished, or belong to another part of the frontier now.
        for partition in [each for each in self.running if each not in positions]:
            self._stop(partition)
        most = self.pool.limits.max_concurrent_partitions
        self._takes_turns = len(positions) > most
        waiting = self.candidates(positions, most)
        if waiting:
            # Only as many turns end as partitions wait; the other streams stay open.
            self._end_turns(len(self.running) + len(waiting) - most)
        for partition in waiting[: most - len(self.running)]:
            reader = self.pool.resume(partition, positions[partition], min(len(positions), most))
            reader.running_since = time.monotonic()
            self.running[partition] = reader
        # Set after the streams are resumed, so that these count as streams of the bundle's beginning (`is_awaited`).
        if begins:
            self.began = time.monotonic()

    def candidates(self, positions: Mapping[Any, Any], most: int) -> list[Any]:
        """Return partitions that have no reader yet, in their order.

        If partitions take turns, these are all of them. Otherwise they are enough for `most` readers.
        """
        return sorted(
            (partition for partition in positions if partition not in self.running),
            key=lambda partition: self.rank(partition, positions[partition]),
        )

    def take(self, timeout: float) -> Any:
        """Return a batch of the partition with the lowest watermark; None when none comes within `timeout` seconds.

        Steps of the last batch that were not counted as claimed are put back. Raises what a thread raised.
        """
        self._settle()
        with self._changed:
            waiting = self._changed.wait_for(self._waiting, timeout)
            queued = _queued(waiting)
        if not waiting:
            return None
        # One short pause here costs less than a wake-up of this thread for each record.
        # Once per round of batches: without `_gathered` each of many partitions with one record would cost a pause.
        if self.gather_seconds and self._gathered <= 0 and queued < _FEW:
            time.sleep(self.gather_seconds)
        with self._changed:
            waiting = self._waiting()
            if self._gathered <= 0:
                self._gathered = _queued(waiting)
            # Chosen again after the pause: a reader with a lower watermark may have received its first record.
            first = min(waiting, key=lambda reader: self.rank(reader.partition, reader.position))
            self._in_hand = batch = first.take()
            self._gathered -= sum(map(records_in, batch.steps))
            return batch

    def rank(self, partition: Any, position: Any) -> tuple[Any, ...]:
        """Return the order in which partitions are read and taken: by the watermark."""
        # The slowest partition holds the watermark of the whole read.
        return position.watermark, partition

    @property
    def first_record_pending(self) -> bool:
        """Whether a partition that is behind will soon send its first record.

        A split now would discard the stream before it has sent anything, if no later bundle of this process continues
        it. If that happens to every stream of a partition, its watermark stands still. Only readers that ran when the
        bundle began count, so that a bundle with many partitions ends: the next one begins with the others.
        """
        if self.pool.backoff.remaining_pause() > 0:
            return False
        return any(map(self.is_awaited, self.running.values()))

    @property
    def data_expected(self) -> bool:
        """The same: after its first record a reader outlives the bundle."""
        return self.first_record_pending

    def is_awaited(self, reader: StreamReader) -> bool:
        """Return whether a split may wait for the first record of this reader."""
        ran_at_first = self.began is not None and reader.running_since <= self.began
        return ran_at_first and self._is_pending(reader) and reader.stream.awaits_first(reader.position)

    def _is_pending(self, reader: StreamReader) -> bool:
        limit = reader.made_at + self.pool.limits.split_deferral_seconds
        return reader.unclaimed and reader.error is None and time.monotonic() < limit

    @property
    def is_behind(self) -> bool:
        """Whether a partition that is read now is behind."""
        return any(reader.stream.is_behind(reader.position) for reader in self.running.values())

    @property
    def may_stop(self) -> bool:
        """Whether no partition is behind, and each has its own reader.

        Otherwise partitions take turns, and a short bundle is no turn.
        """
        return not self._takes_turns and not self.is_behind

    def uncounted(self) -> Traffic:
        """Return the streams that were opened and lost since the last call, and the bytes that were received."""
        for reader in self.running.values():
            self._count(reader)
        done, self._traffic = self._traffic, Traffic()
        return done

    def close(self, *, keep: bool = False) -> None:
        """Park the readers, or stop them and wait for their threads."""
        self._settle()
        readers, self.running = list(self.running.values()), {}
        for reader in readers:
            (self.pool.park if keep else self.pool.drop)(reader)
        if not keep:
            stop_all(readers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(keep=kind is None)

    def _waiting(self) -> list[StreamReader]:
        return [reader for reader in self.running.values() if reader.waiting]

    def _settle(self) -> None:
        batch, self._in_hand = self._in_hand, None
        if batch is None:
            return
        # The reader still runs: only `_stop` removes one, and a batch in hand is settled before it.
        reader = self.running[batch.partition]
        with self._changed:
            after = reader.settle(batch)
        # A step of lineage that was claimed ends the stream. What follows has other positions and other readers.
        if batch.claimed == len(batch.steps) and batch.ends_with_lineage:
            self._stop(batch.partition)
        elif after is not None:
            after()

    def _stop(self, partition: Any) -> None:
        reader = self.running.pop(partition)
        self._count(reader)
        self.pool.drop(reader)
        reader.stop()

    def _count(self, reader: StreamReader) -> None:
        self._traffic = self._traffic.and_also(reader.uncounted())

    def _end_turns(self, surplus: int) -> None:
        """Stop up to `surplus` of the readers whose turn has ended, those with the highest watermark first.

        No turn ends before the first record or heartbeat. Otherwise one that takes longer than a turn would never be
        received.
        """
        ended = time.monotonic() - self.turn_seconds
        done = [
            reader
            for reader in self.running.values()
            if reader.running_since < ended and not self._is_pending(reader)
        ]
        done.sort(key=lambda reader: -reader.position.watermark)
        for reader in done[: max(0, surplus)]:
            self._stop(reader.partition)


def _queued(readers: list[StreamReader]) -> int:
    """Return how many steps are queued, of each reader at most `_FEW`."""
    return sum(reader.at_hand(_FEW) for reader in readers)
