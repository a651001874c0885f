"""The readers of an initial scan in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from penstock.errors import PositionLostError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.partition_pool import PartitionPool
from penstock.io.change_streams.partition_prefetch import PartitionPrefetcher
from penstock.io.change_streams.range_prefetch import RangePositions, RangePrefetcher
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.stream_reader import StreamReader
from penstock.io.spanner.initial_scan.frontier import ScanFrontier
from penstock.io.spanner.initial_scan.stream import Openers, RangePosition, RangeStream
from penstock.timestamps import format_timestamp

_REFUSALS = Refusals("Spanner")
READING_THREADS = 8
"""Ranges that one bundle reads at once. Python decodes in one thread at a time, so more do not read faster; some of the
ranges have been read to their end, and wait for the bundle."""


class ScanPrefetcher(RangePrefetcher):
    """The ranges of one bundle."""

    pool: ScanPool

    def _waiting(self) -> list[StreamReader]:
        waiting = super()._waiting()
        if not self.pool.whole_ranges or self._current not in self.running:
            return waiting
        # A range of unordered rows that has begun must be finished by this bundle.
        return [reader for reader in waiting if reader.partition == self._current]

    def close(self, *, keep: bool = False) -> None:
        # Part of a whole range may have been emitted by a bundle that does not commit.
        super().close(keep=keep and not self.pool.whole_ranges)


class ScanPool(PartitionPool):
    """The readers of one snapshot in one process."""

    prefetcher_type = ScanPrefetcher

    def __init__(
        self,
        openers: Openers,
        backoff: Backoff,
        limits: Limits,
        now: Callable[[], int],
        *,
        whole_ranges: bool = False,
    ) -> None:
        """`now` is the service's time in nanoseconds. `whole_ranges`: see `RangeStream`."""
        super().__init__(_REFUSALS, backoff, replace(limits, max_concurrent_partitions=READING_THREADS))
        self._openers, self._now, self.whole_ranges = openers, now, whole_ranges

    def positions(self, frontier: ScanFrontier) -> Mapping[int, RangePosition]:
        snapshot = frontier.timestamp, frontier.tables, frontier.capture
        return RangePositions(frontier.ranges, lambda each: RangePosition(each, *snapshot))

    def make_stream(self, partition: int, position: RangePosition, share_bytes: int) -> RangeStream:
        return RangeStream(partition, position, self._openers, whole_ranges=self.whole_ranges)

    @contextmanager
    def prefetching(self, frontier: ScanFrontier) -> Iterator[PartitionPrefetcher]:
        """Yield a prefetcher.

        Raises:
            PositionLostError: the change stream no longer has the changes after the snapshot.
        """
        check_changes_kept(frontier, self._now())
        with super().prefetching(frontier) as prefetcher:
            yield prefetcher


def check_changes_kept(frontier: ScanFrontier, now: int) -> None:
    """Check that the change stream still has the changes after the snapshot; `now` in nanoseconds.

    Raises:
        PositionLostError: it does not, so the snapshot cannot be continued.
    """
    if frontier.readable_until is not None and now > frontier.readable_until:
        raise PositionLostError(
            f"the snapshot of {format_timestamp(frontier.timestamp)} is not finished, and the change stream keeps its "
            f"changes only until {format_timestamp(frontier.readable_until)}: no exact result is possible any more. "
            "Raise the stream's retention_period (ALTER CHANGE STREAM … SET OPTIONS, at most 7 days) or add workers, "
            "and start with a new checkpoint folder"
        )
