"""The readers of one change stream in one process, and the segments that wait for a merge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.io.bigtable.frontier import Frontier, Position, Reopened
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.reopen import ReopenSchedule
from penstock.io.bigtable.stream import BigtableStream, Opener, Select
from penstock.io.change_streams import settings
from penstock.io.change_streams.partition_pool import PartitionPool
from penstock.io.change_streams.partition_prefetch import PartitionPrefetcher
from penstock.io.change_streams.prefetch import Claim
from penstock.io.change_streams.refusals import Refusals

_REFUSALS = Refusals("Bigtable")
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


class ReopenBatch:
    """The step that re-opens one waiting segment. It comes from a timer and not from a stream."""

    ends_with_lineage = True

    def __init__(self, part: KeyRange) -> None:
        self.claimed = 0
        self._part = part

    def claims(self) -> Iterator[Claim]:
        """Yield the one step."""
        yield 1, (), Reopened(self._part)


class Prefetcher(PartitionPrefetcher):
    """The streams of one `process` call, and the segments that have waited long enough for a merge."""

    pool: StreamPool

    def __init__(self, pool: StreamPool) -> None:
        super().__init__(pool)
        self._to_reopen: list[KeyRange] = []

    def serve(self, frontier: Frontier) -> None:
        """Run the streams that may be open, and re-open the segments that have waited long enough."""
        super().serve(frontier)
        key_filter = frontier.key_filter()
        # All streams get it: keys that were read to the end in one partition may come with another one later.
        for reader in self.running.values():
            reader.stream.key_filter = key_filter  # type: ignore[attr-defined]
        waiting = frontier.waiting
        # One segment is re-opened at a time: that may complete the target of another one, which then no longer waits.
        due = [*self._to_reopen, *self.pool.reopen_schedule.due(waiting)]
        self._to_reopen = [part for part in dict.fromkeys(due) if part in waiting]

    def take(self, timeout: float) -> Any:
        """Return a batch; one that re-opens a segment comes first."""
        if not self._to_reopen:
            return super().take(timeout)
        self._settle()
        return ReopenBatch(self._to_reopen.pop(0))


class StreamPool(PartitionPool):
    """The streams of one change stream in one process."""

    prefetcher_type = Prefetcher
    limits: Limits

    def __init__(self, opener: Opener, limits: Limits, select: Select | None, bounded: bool) -> None:
        super().__init__(_REFUSALS, opener.backoff, limits)
        self.reopen_schedule = ReopenSchedule(limits.merge_wait_seconds)
        self._opener, self._select, self._bounded = opener, select, bounded

    def positions(self, frontier: Frontier) -> Mapping[KeyRange, Position]:
        return frontier.positions

    def make_stream(self, partition: KeyRange, position: Position, share_bytes: int) -> BigtableStream:
        return BigtableStream(
            position, self._opener, self._select, self._bounded, self.limits.heartbeat_seconds
        )
