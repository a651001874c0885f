"""Reads many partitions ahead: threads that query, one consumer that takes.

    with pool.prefetching(frontier) as prefetcher:
        prefetcher.serve(frontier)               # read the open partitions
        batch = prefetcher.take(timeout=0.05)    # steps of one partition, in order; None: nothing yet
        for count, records, step in batch.claims():
            ...                                  # claim the step, emit the records
            batch.claimed += count

The threads may outlive the bundle (see `pool`). Batches that were read and not claimed stay in their queues, and the
next bundle continues with those partitions that it asks for at exactly their claimed position.

- **Memory**: decoded messages wait under one budget of bytes, which the prefetchers of a process share. No query
  starts while it is used up, and within a query a thread over its share stops receiving. One message per partition
  is always accepted, so that the lowest partition never starves.
- **Errors** of a thread are raised by `take`, in the consumer. A temporary failure is retried after a pause, which
  also grows while only this partition is refused.
- **End**: `close` starts no further query, lets the running ones end (they look ahead by `poll_seconds` at most), and
  returns when all threads have ended. A query is cancelled only after its end_timestamp has passed, because the
  emulator works on a cancelled query until then. Parked threads end when no bundle continues them.

Knows neither Beam nor the client. Times are nanoseconds of the clock that is passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.io.change_streams import settings
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.prefetch import ReadAhead, Traffic
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.frontier import Advanced, Frontier
from penstock.io.spanner.placements import PlacementList
from penstock.io.spanner.position import Position
from penstock.io.spanner.query import is_list_of_placements
from penstock.io.spanner.reader import Opener, StreamReader
from penstock.io.spanner.state import Batch, PartitionState, ReadState
from penstock.io.spanner.steps import Wanted
from penstock.timestamps import NANOS

_LATE = NANOS
"""If a partition is further behind than this, its query is expected to send data soon."""
_GATHER_SECONDS = 0.002
"""Pause of a consumer that was woken by a message, so that more messages of its batch can arrive."""
_GRACE = NANOS // 2
"""How long after its end_timestamp a query may still run when the bundle ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(settings.Limits):
    """The common limits, and how far one query looks ahead."""

    poll_seconds: float


class Prefetcher:
    """Reads the partitions of one bundle after another. `serve`, `take`, then `park` or `close`: one consumer."""

    def __init__(
        self,
        opener: Opener,
        backoff: Backoff,
        limits: Limits,
        end: int | None,
        clock: Callable[[], int] = time.time_ns,
        ahead: ReadAhead | None = None,
        wanted: Wanted | None = None,
        placements: PlacementList | None = None,
    ) -> None:
        """Read nothing yet. `end`: last timestamp to read, inclusive; None: without end.

        `ahead` is the budget that the prefetchers of a process share; None: a new one. `wanted`: which records are
        emitted; None: all. `placements` looks at the list of placements, for a frontier that has one.
        """
        self._backoff = backoff
        self._limits = limits
        self._poll = round(limits.poll_seconds * NANOS)
        self._clock = clock
        self._state = ReadState(ahead or ReadAhead(limits.buffer_bytes), clock)
        self._changed = self._state.changed
        self._reader = StreamReader(
            self._state,
            opener,
            backoff,
            poll=self._poll,
            end=end,
            unavailable_seconds=limits.unavailable_seconds,
            wanted=wanted,
            placements=placements,
        )
        self._in_hand: Batch | None = None

    # During a bundle.

    def serve(self, frontier: Frontier) -> None:
        """Start reading the open partitions of `frontier` that are not being read."""
        self.read(frontier.open)

    def read(self, partitions: Mapping[str, Position]) -> None:
        """Start reading the partitions that are not being read."""
        state = self._state
        with self._changed:
            for token in partitions.keys() - state.partitions.keys():
                position = partitions[token]
                # A back-off for each partition: the shared one is reset by every answer, so a partition that alone is
                # refused would be asked without a pause.
                partition = PartitionState(token, position, position, Backoff("Spanner", UnreachableError))
                partition.lists_placements = is_list_of_placements(token)
                state.partitions[token] = partition
                # If the start is in the future, the query would not end before it, so it is sent only then.
                state.rest(partition, position.timestamp - self._poll)
            self._reader.start_threads(min(len(state.partitions), self._limits.max_concurrent_partitions))

    def take(self, timeout: float) -> Batch | None:
        """Return the batch of the partition with the lowest position; None when none comes within `timeout` seconds.

        Steps of the last batch that were not counted as claimed come again. An error of a thread is raised here.
        """
        # Waits use the monotonic clock. Positions are compared with the service's clock (`self._clock`), because the
        # machine's wall clock may be wrong.
        deadline = time.monotonic() + timeout
        state = self._state
        with self._changed:
            self._settle()
            waited = False
            while not state.ready and state.error is None:
                remaining = deadline - time.monotonic()
                # Wait for `arrived` and not for `changed`: the consumer needs to wake up only for a batch or an error.
                if remaining <= 0:
                    return None
                waited = state.arrived.wait(remaining)
        # The threads are faster than the service sends small messages, so this one would be woken for each of them.
        # In a short pause they gather in the queue, as one batch.
        if waited:
            time.sleep(_GATHER_SECONDS)
        with self._changed:
            if state.error is not None:
                raise state.error
            self._in_hand = state.ready.take() if state.ready else None
            return self._in_hand

    @property
    def data_expected(self) -> bool:
        """Whether a partition is more than a second behind, and the service answers and is working on it."""
        with self._changed:
            return self._lowest_behind() is not None and self._backoff.remaining_pause() == 0

    @property
    def first_record_pending(self) -> bool:
        """As `data_expected`, and nothing of that partition has been claimed: a split now would drop its query."""
        with self._changed:
            lowest = self._lowest_behind()
            return lowest is not None and lowest.unclaimed and self._backoff.remaining_pause() == 0

    @property
    def is_behind(self) -> bool:
        """Whether the query of a partition asks for time that passed more than a second ago."""
        late = self._clock() - _LATE
        with self._changed:
            # Not any query that asks for the past: with many partitions one has just begun at nearly any time.
            return any(
                partition.position.timestamp < late and self._is_behind(partition)
                for partition in self._state.partitions.values()
            )

    @property
    def may_stop(self) -> bool:
        """Whether no partition is behind: `park` would drop its query, and the next bundle would ask again."""
        with self._changed:
            return not any(map(self._is_behind, self._state.partitions.values()))

    def uncounted(self) -> Traffic:
        """Return the queries that were started and lost since the last call, and the bytes that were received."""
        with self._changed:
            state = self._state
            done = Traffic(state.queries, state.retries, state.received_bytes)
            state.queries = state.retries = state.received_bytes = 0
            return done

    # Between bundles.

    def park(self) -> bool:
        """Read ahead for the next bundle, for `idle_stream_seconds`; False: there is nothing to continue.

        Partitions that are behind are dropped. Their queries may take long, and a query that was left running for a
        bundle that begins elsewhere would delay that bundle's own.
        """
        state = self._state
        with self._changed:
            self._settle()
            for token in [token for token, each in state.partitions.items() if self._is_behind(each)]:
                state.drop(token)
            state.parking.park(self._limits.idle_stream_seconds)
            # Threads that wait without a limit must now wait no longer than the read is parked.
            state.wake_all()
            return bool(state.partitions) and not state.check_ended()

    @property
    def ended(self) -> bool:
        """Whether the read was closed, or parked for too long."""
        with self._changed:
            return self._state.check_ended()

    def matches(self, partitions: Mapping[str, Position]) -> int:
        """Return how many of these partitions a bundle could continue here, at exactly these positions."""
        with self._changed:
            if self._state.check_ended():
                return 0
            return sum(map(self._stands_at, partitions, partitions.values()))

    def resume(self, partitions: Mapping[str, Position]) -> bool:
        """Serve another bundle and drop what it does not ask for at its position; False: the read has ended."""
        state = self._state
        with self._changed:
            if state.check_ended():
                return False
            state.parking.resume()
            for token in list(state.partitions):
                if token not in partitions or not self._stands_at(token, partitions[token]):
                    state.drop(token)
            state.wake_all()
            return True

    def stop(self) -> None:
        """End a parked read soon, without waiting for its threads: no bundle will ask for it."""
        with self._changed:
            self._state.parking.park(0)
            self._state.check_ended()

    def close(self) -> None:
        """End the read and all its threads; batches that were not claimed are dropped. May be called again."""
        with self._changed:
            self._state.parking.closed = True
            self._state.wake_all()
        for thread in self._reader.threads:
            # Wait in steps: a query that outlives its end must be cancelled while this call waits for its thread.
            while thread.is_alive():
                thread.join(self._seconds_until_overdue())
                self._cancel_overdue()

    # The lock is held below, except at the end.

    def _lowest_behind(self) -> PartitionState | None:
        """Return the partition with the lowest position, if it is more than a second behind."""
        # The list of placements does not count: it is always behind between two looks, and it sends no rows.
        reading = (
            partition
            for partition in self._state.partitions.values()
            if not partition.finished and not partition.lists_placements
        )
        lowest = min(reading, key=lambda partition: partition.position.timestamp, default=None)
        # Only the lowest partition counts, because it holds the watermark. To wait for others would not advance it.
        late = self._clock() - _LATE
        return lowest if lowest is not None and lowest.position.timestamp < late else None

    def _settle(self) -> None:
        """Record which steps of the batch in hand were claimed; put the rest back, or return the batch's credit."""
        batch, self._in_hand = self._in_hand, None
        if batch is None:
            return
        state = self._state
        # The partition is still known: only this method removes one during a bundle.
        partition = state.partitions[batch.token]
        partition.unclaimed = partition.unclaimed and not batch.claimed
        for _, step in batch.steps[: batch.claimed]:
            if type(step) is not Advanced:
                # The position does not say whether the announcement was claimed: see `PartitionState.claimed`.
                partition.claimed = None
            elif partition.claimed is not None:
                partition.claimed = step.position
        # The rest keeps the size of the whole message, whose bytes stay in memory until its last step is claimed.
        if batch.claimed < len(batch.steps):
            partition.queue.appendleft(
                Batch(batch.token, batch.low, batch.steps[batch.claimed :], batch.size)
            )
            state.ready.add(partition)
        else:
            state.release(partition, batch.size)
        # Not while steps wait: the rest of a batch that was put back must be claimed first.
        if partition.finished and not partition.queue:
            del state.partitions[batch.token]

    def _is_behind(self, partition: PartitionState) -> bool:
        """Whether a query asks for time that has passed, or should have ended long ago."""
        _, end = self._state.running.get(partition, (None, self._clock()))
        return not partition.caught_up or self._clock() > end + _GRACE

    def _stands_at(self, token: str, position: Position) -> bool:
        known = self._state.partitions
        # Equal, not only at the same timestamp: `seen` says which records of that timestamp were claimed.
        return token in known and known[token].claimed == position

    def _seconds_until_overdue(self) -> float:
        with self._changed:
            ends = [end for _, end in self._state.running.values()]
        return max(0.01, (min(ends, default=0) + _GRACE - self._clock()) / NANOS)

    def _cancel_overdue(self) -> None:
        with self._changed:
            overdue = [call for call, end in self._state.running.values() if self._clock() > end + _GRACE]
        for call in overdue:
            call.cancel()
