"""The state that the consumer and the threads of one prefetcher share: partitions, lock, parking.

Knows neither Beam nor the client. Unless a docstring says otherwise, the caller holds `changed`.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.prefetch import Claim, ReadAhead
from penstock.io.spanner.frontier import Advanced
from penstock.io.spanner.position import Position
from penstock.io.spanner.steps import FIRST_SPAN, MAX_IN_CLAIM, PendingStep

_SMALL_BYTES = 64 << 10
"""Batches of a partition are joined up to this size."""


class Call(Protocol):
    """One running query."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield encoded PartialResultSets."""

    def cancel(self) -> None:
        """Cancel the query; the iteration ends or raises."""


@dataclass(slots=True)
class Batch:
    """Steps of one partition in order, none below `low`. The consumer counts in `claimed` how many it has claimed.

    `size` counts the bytes of the messages that the steps came in.
    """

    token: str
    low: int
    steps: list[PendingStep]
    size: int
    claimed: int = 0

    @property
    def ends_with_lineage(self) -> bool:
        """Whether the last step changes which partitions may be read."""
        return not isinstance(self.steps[-1][1], Advanced)

    def claims(self) -> Iterator[Claim]:
        """Yield one claim for each step."""
        for records, step in self.steps:
            yield 1, records, step

    def absorbs(self, later: Batch) -> bool:
        """Append the steps of the next batch, if both are small. A batch costs more than a small message."""
        if self.size + later.size > _SMALL_BYTES or self.ends_with_lineage:
            return False
        (records, _), (following, step) = self.steps[-1], later.steps[0]
        # Messages of one record each: their runs become one. A heartbeat has no records and is not joined to a run.
        if records and following and type(step) is Advanced and len(records) + len(following) <= MAX_IN_CLAIM:
            self.steps[-1] = (records + following, step)
            self.steps += later.steps[1:]
        else:
            self.steps += later.steps
        self.size += later.size
        return True


@dataclass(slots=True, eq=False)
class PartitionState:
    """One partition that is read: `position` is how far its threads have read, `claimed` how far the consumer claimed.

    `claimed` is None after the first announcement of a child was claimed: a position does not say whether the child is
    known, so the next bundle must not continue there. Batches of a `dropped` partition are discarded.

    `caught_up` is false while the partition is behind. Then its queries ask only for time that has passed, because the
    emulator sends nothing before a query's end. Later queries look ahead.
    """

    token: str
    position: Position
    claimed: Position | None
    backoff: Backoff
    """Its own, for a partition that is not answered while others are."""
    caught_up: bool = False
    unclaimed: bool = True
    """Nothing of it has been claimed yet, and none of its queries has failed."""
    finished: bool = False
    dropped: bool = False
    span: int = FIRST_SPAN
    queued_bytes: int = 0
    queue: deque[Batch] = field(default_factory=deque)
    lists_placements: bool = False
    """It is the list of placements, which is looked at from time to time: see `placements`."""


class QuerySchedule:
    """The partitions that no query runs for, by the time at which the next query may start."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, PartitionState]] = []
        self._number = 0  # breaks ties in the order of arrival, so that partitions take turns

    def add(self, partition: PartitionState, not_before: int) -> None:
        """Let a query of the partition start at `not_before`, in nanoseconds of the clock."""
        self._number += 1
        heapq.heappush(self._heap, (not_before, self._number, partition))

    def next_start(self) -> int | None:
        """Return when the first query may start; None: there is none."""
        while self._heap and self._heap[0][2].dropped:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self) -> PartitionState:
        """Return the partition that `next_start` spoke of."""
        return heapq.heappop(self._heap)[2]


class ReadyPartitions:
    """The partitions with batches to take, by the lowest timestamp of their first batch."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, PartitionState]] = []
        self._number = 0

    def __bool__(self) -> bool:
        heap = self._heap
        # An entry that is not true any more is dropped when it comes to the top, as a heap can remove only its top.
        while heap and not (heap[0][2].queue and heap[0][2].queue[0].low == heap[0][0]):
            heapq.heappop(heap)
        return bool(heap)

    def add(self, partition: PartitionState) -> None:
        """Add a partition whose first batch has just changed."""
        self._number += 1
        heapq.heappush(self._heap, (partition.queue[0].low, self._number, partition))

    def take(self) -> Batch:
        """Remove and return the first batch of the partition with the lowest timestamp; there must be one."""
        _, _, partition = heapq.heappop(self._heap)
        batch = partition.queue.popleft()
        if partition.queue:
            self.add(partition)
        return batch


class Parking:
    """Whether a bundle uses the prefetcher, and if none does, how long it waits for the next one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._parked_until: float | None = None
        self.closed = False

    def park(self, seconds: float) -> None:
        """Wait this long for the next bundle."""
        self._parked_until = self._clock() + seconds

    def resume(self) -> None:
        """Serve a bundle again."""
        self._parked_until = None

    @property
    def expired(self) -> bool:
        """Whether no bundle came in time."""
        return self._parked_until is not None and self._clock() >= self._parked_until

    def shorten(self, seconds: float | None) -> float | None:
        """Return `seconds` (None: without limit), or the remaining time of parking if that is less."""
        if self._parked_until is None:
            return seconds
        remaining = max(0.0, self._parked_until - self._clock())
        return remaining if seconds is None else min(remaining, seconds)


class ReadState:
    """One read of a change stream in this process."""

    def __init__(self, ahead: ReadAhead, clock: Callable[[], int]) -> None:
        self.ahead = ahead
        # Three conditions of one lock. A thread that is woken for nothing costs as much as ten records, so a batch
        # wakes the consumer alone, and a partition that may be read wakes one thread.
        self.changed = ahead.changed
        """Credit was released, or the parking has changed."""
        self.arrived = threading.Condition(ahead.lock)
        """A batch or an error has come for the consumer."""
        self.due = threading.Condition(ahead.lock)
        """The schedule has another first entry."""
        self.clock = clock
        self.partitions: dict[str, PartitionState] = {}
        self.ready = ReadyPartitions()
        self.running: dict[PartitionState, tuple[Call, int]] = {}  # the query of each, and its end
        self.schedule = QuerySchedule()
        self.parking = Parking()
        self.error: BaseException | None = None
        self.queued_bytes = 0
        self.queries = self.retries = self.received_bytes = 0

    def check_ended(self) -> bool:
        """Return whether the read has ended. Here a parked read ends that no bundle continued in time."""
        if not self.parking.closed and self.parking.expired:
            # Before the partitions are dropped: threads that wake up then see the end.
            self.parking.closed = True
            for token in list(self.partitions):
                self.drop(token)
            self.wake_all()
        return self.parking.closed

    def wake_all(self) -> None:
        """Wake the consumer and all threads: the parking has changed, or the read has failed."""
        self.changed.notify_all()
        self.due.notify_all()
        self.arrived.notify_all()

    def unwanted(self, partition: PartitionState) -> bool:
        """Return whether the partition's batches will not be taken. Needs no lock."""
        return self.parking.closed or partition.dropped

    def rest(self, partition: PartitionState, asked_until: int) -> None:
        """Let the next query of the partition start when the clock has passed `asked_until`.

        If the clock lags behind the service's, a query ends at once. This rule then limits the rate of queries.
        """
        self.schedule.add(partition, asked_until)
        self.due.notify()

    def start_next(self) -> PartitionState:
        """Return the partition whose query may start first."""
        partition = self.schedule.pop()
        # Threads that wait were each woken for an entry that may not be the first one any more, and this thread is
        # busy from now on: another one must look after the next entry.
        if self.schedule.next_start() is not None:
            self.due.notify()
        return partition

    def drop(self, token: str) -> None:
        """Forget a partition, and cancel its query unless that will end soon."""
        partition = self.partitions.pop(token)
        # `unwanted` reads this flag without the lock.
        partition.dropped = True
        partition.queue.clear()
        self.release(partition, partition.queued_bytes)
        call, end = self.running.get(partition, (None, 0))
        # The emulator works on a cancelled query until its end_timestamp, so one that looks ahead is left to end.
        if call is not None and self.clock() > end:
            call.cancel()

    def charge(self, partition: PartitionState, size: int) -> None:
        """Count bytes that are read ahead."""
        partition.queued_bytes += size
        self.queued_bytes += size
        self.ahead.queued_bytes += size

    def release(self, partition: PartitionState, size: int) -> None:
        """Return the credit of bytes that were taken or dropped."""
        self.charge(partition, -size)
        if self.ahead.waiting:
            self.changed.notify_all()

    def wait_until_due(self, seconds: float | None) -> None:
        """Wait until a query may start, at most so long, and not longer than the read is parked."""
        self.due.wait(self.parking.shorten(seconds))

    def wait_for_credit(self) -> None:
        """Wait until credit is released, and not longer than the read is parked."""
        self.ahead.waiting += 1
        try:
            self.changed.wait(self.parking.shorten(None))
        finally:
            self.ahead.waiting -= 1

    def fail(self, error: BaseException) -> None:
        """End the read with an error, which the consumer raises. The caller does not hold the lock."""
        with self.changed:
            self.error = self.error or error
            self.wake_all()
