"""The interfaces for reading ahead: a bundle, its prefetcher, the pool, and the budget they share. Pure.

A prefetcher reads partitions in threads and returns batches. The bundle claims each step of a batch and counts how many
it claimed. Steps that were not claimed are returned again, to this bundle or to the next one that continues at the
same position.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias

Claim: TypeAlias = tuple[int, Sequence[Any], Any]
"""(number of steps, records to emit, the step to claim). The claim of this last step claims all of them."""


class Batch(Protocol):
    """Steps of one partition, in the order of the service. The bundle counts in `claimed` how many it has claimed."""

    claimed: int

    @property
    def ends_with_lineage(self) -> bool:
        """Whether the last step changes which partitions may be read, so that the prefetcher needs the new frontier."""

    def claims(self) -> Iterator[Claim]:
        """Yield the claims to make, in order."""


class Traffic(NamedTuple):
    """What went over the network: requests that were sent, those that were lost, and bytes as the service sent them."""

    requests: int = 0
    retries: int = 0
    received_bytes: int = 0

    def and_also(self, other: Traffic) -> Traffic:
        """Return the sum of both."""
        return Traffic(*map(sum, zip(self, other, strict=True)))


class Prefetcher(Protocol):
    """Reads the partitions of one bundle ahead. One consumer; the threads may outlive the bundle."""

    def serve(self, frontier: Any) -> None:
        """Read the partitions that are readable in `frontier`."""

    def take(self, timeout: float) -> Batch | None:
        """Return the batch of the partition with the lowest position, or None after `timeout` seconds.

        Steps of the last batch that were not counted as claimed are put back. An error of a thread is raised here.
        """

    @property
    def data_expected(self) -> bool:
        """Whether a partition is behind and the service is working on it, so that a batch will come soon."""

    @property
    def first_record_pending(self) -> bool:
        """Whether such a partition would make no progress if the bundle were split now."""

    @property
    def is_behind(self) -> bool:
        """Whether a partition has more data than was taken, although no batch may be at hand now."""

    @property
    def may_stop(self) -> bool:
        """Whether the bundle may end when it has no more batches at hand.

        False: a request whose data has not come yet would be discarded, or a partition is behind, and more data comes
        soon. Then the bundle reads until the runner splits it: a backlog that is read in many short epochs pays the
        fixed cost of each.
        """

    def uncounted(self) -> Traffic:
        """Return the traffic since the last call. Data that is read again counts again."""

    def close(self) -> None:
        """Stop all threads and drop the data that was read ahead."""


class StreamPool(Protocol):
    """Keeps prefetched streams of one change stream in one process, between bundles."""

    def prefetching(self, frontier: Any) -> AbstractContextManager[Prefetcher]:
        """Yield a prefetcher for a bundle. After an error it is closed, otherwise its streams are parked.

        A parked stream is resumed only by a bundle that asks for exactly its position. A pool closes parked
        streams when `idle_stream_seconds` have passed, or when a bundle does not continue any.
        """


class ReadAhead:
    """The budget of bytes that all prefetchers of a pool share, and their lock.

    `changed` is a condition on `lock`. Waiting and notifying need it. Other users enter `lock`, which is faster.
    """

    def __init__(self, buffer_bytes: int) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.buffer_bytes = buffer_bytes
        self.queued_bytes = 0
        self.streams = 0
        """Streams or queries that run, of all prefetchers: each has an equal share of the budget."""
        self.waiting = 0
        """Threads that wait for credit."""
