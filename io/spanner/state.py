"""The state that the consumer and the threads of one prefetcher share: partitions, lock, lease.

Knows neither Beam nor the client. Unless a docstring says otherwise, the caller holds `changed`.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.prefetch import Claim, ReadAhead
from penstock.io.spanner.frontier import Advanced, Position
from penstock.io.spanner.record import DataChangeRecord
from penstock.io.spanner.steps import FIRST_SPAN, PendingStep


class Window(Protocol):
    """One running query."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield encoded PartialResultSets."""

    def cancel(self) -> None:
        """Cancel the query; the iteration ends or raises."""


@dataclass(slots=True)
class Batch:
    """Steps of one partition in order, none below `low`. The consumer counts in `claimed` how many it has claimed.

    `size` is that of the message that the steps came in.
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
        """Return one claim for each step, so that a split can fall between any two records."""
        nothing: Sequence[DataChangeRecord] = ()
        # A list costs less than a generator that is resumed for each record.
        return iter([(1, nothing if record is None else (record,), step) for record, step in self.steps])


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


class Lease:
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
        self.changed = ahead.changed
        self.clock = clock
        self.partitions: dict[str, PartitionState] = {}
        self.ready: dict[str, PartitionState] = {}  # those with batches to take
        self.running: dict[PartitionState, tuple[Window, int]] = {}  # the query of each, and its end
        self.schedule = QuerySchedule()
        self.lease = Lease()
        self.error: BaseException | None = None
        self.queued_bytes = 0
        self.queries = self.retries = 0

    def check_ended(self) -> bool:
        """Return whether the read has ended. Here a parked read ends that no bundle continued in time."""
        if not self.lease.closed and self.lease.expired:
            self.lease.closed = True
            for token in list(self.partitions):
                self.drop(token)
            self.changed.notify_all()
        return self.lease.closed

    def unwanted(self, partition: PartitionState) -> bool:
        """Return whether the partition's batches will not be taken. Needs no lock."""
        return self.lease.closed or partition.dropped

    def rest(self, partition: PartitionState, asked_until: int) -> None:
        """Let the next query of the partition start when the clock has passed `asked_until`.

        If the clock lags behind the service's, a query ends at once. This rule keeps the pace of queries all the same.
        """
        self.schedule.add(partition, asked_until)
        self.changed.notify_all()

    def drop(self, token: str) -> None:
        """Forget a partition, and cancel its query unless that will end soon."""
        partition = self.partitions.pop(token)
        partition.dropped = True
        partition.queue.clear()
        self.release(partition, partition.queued_bytes)
        self.ready.pop(token, None)
        window, end = self.running.get(partition, (None, 0))
        # The emulator works on a cancelled query until its end_timestamp, so one that looks ahead is left to end.
        if window is not None and self.clock() > end:
            window.cancel()

    def charge(self, partition: PartitionState, size: int) -> None:
        """Count bytes that are read ahead."""
        partition.queued_bytes += size
        self.queued_bytes += size
        self.ahead.queued_bytes += size

    def release(self, partition: PartitionState, size: int) -> None:
        """Return the credit of bytes that were taken or dropped."""
        self.charge(partition, -size)

    def wait(self, seconds: float | None) -> None:
        """Wait until something changes, at most so long, and not longer than the read is parked."""
        self.changed.wait(self.lease.shorten(seconds))

    def fail(self, error: BaseException) -> None:
        """End the read with an error, which the consumer raises. The caller does not hold the lock."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()
