"""The readers of an initial snapshot in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.partition_pool import PartitionPool
from penstock.io.change_streams.partition_prefetch import PartitionPrefetcher
from penstock.io.change_streams.partition_stream import PartitionStream
from penstock.io.change_streams.range_prefetch import RangePositions, RangePrefetcher
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.settings import Limits
from penstock.io.postgres.initial_scan.frontier import BlockRange, ScanFrontier, ScanView
from penstock.io.postgres.initial_scan.signals import SignalPosition, SignalSource, SignalStream
from penstock.io.postgres.initial_scan.stream import BlockReader, BlockStream, RangePosition

_REFUSALS = Refusals("PostgreSQL")
READING_THREADS = 2
"""Ranges that one bundle reads at once: while one waits for the server, rows of the other are converted. Signals have
one thread more."""


class ClosableReader(BlockReader, Protocol):
    """A reader that closes its connections."""

    def close(self) -> None: ...


MakeReader = Callable[[str, ScanView], ClosableReader]
"""Opens the connections of a reader of a slot at a snapshot; raises as `BlockReader` does."""


class ScanPool(PartitionPool):
    """The readers of one scan in one process. Connections end when no range is open and no bundle runs."""

    prefetcher_type = RangePrefetcher

    def __init__(
        self,
        make_reader: MakeReader,
        backoff: Backoff,
        limits: Limits,
        chunk_rows: int,
        signals: Mapping[str, SignalSource] | None = None,
    ) -> None:
        """`signals`: the channels of each slot that takes signals."""
        self._signals = signals or {}
        threads = READING_THREADS + len(self._signals)
        super().__init__(_REFUSALS, backoff, replace(limits, max_concurrent_partitions=threads))
        self._make_reader, self._chunk_rows = make_reader, chunk_rows
        self._lock = threading.Lock()
        self._users = 0
        """Open ranges and running bundles."""
        self._idle: list[tuple[str, ScanView, ClosableReader]] = []

    def positions(self, frontier: ScanFrontier) -> Mapping[int, RangePosition | SignalPosition]:
        tables, views = frontier.tables, frontier.views
        # Below the numbers of ranges, so that signals come first.
        signals = {
            -1 - number: SignalPosition(slot, frontier.progress[slot], views[slot].watermark)
            for number, slot in enumerate(sorted(self._signals))
            if slot in frontier.progress
        }

        def position(each: BlockRange | SignalPosition) -> RangePosition | SignalPosition:
            if isinstance(each, SignalPosition):
                return each
            table = tables[each.table]
            return RangePosition(each, table, views[table.slot])

        return RangePositions({**signals, **frontier.ranges} if signals else frontier.ranges, position)

    def make_stream(
        self, partition: int, position: RangePosition | SignalPosition, share_bytes: int
    ) -> PartitionStream:
        if isinstance(position, SignalPosition):
            return SignalStream(position, self._signals[position.slot])
        return BlockStream(partition, position, self._borrow, self._chunk_rows)

    @contextmanager
    def prefetching(self, frontier: ScanFrontier) -> Iterator[PartitionPrefetcher]:
        with self._lock:
            self._users += 1
        try:
            with super().prefetching(frontier) as prefetcher:
                yield prefetcher
        finally:
            self._returned(None)

    @contextmanager
    def _borrow(self, slot: str, view: ScanView) -> Iterator[BlockReader]:
        reader = self._taken(slot, view) or self._opened(slot, view)
        try:
            yield reader
        except BaseException:
            # Its connections may be broken, or in the middle of a statement.
            self._returned(None)
            reader.close()
            raise
        self._returned((slot, view, reader))

    def _taken(self, slot: str, view: ScanView) -> ClosableReader | None:
        with self._lock:
            self._users += 1
            for number, (of_slot, at, reader) in enumerate(self._idle):
                if (of_slot, at) == (slot, view):
                    del self._idle[number]
                    return reader
        return None

    def _opened(self, slot: str, view: ScanView) -> ClosableReader:
        try:
            return self._make_reader(slot, view)
        except BaseException:
            self._returned(None)
            raise

    def _returned(self, idle: tuple[str, ScanView, ClosableReader] | None) -> None:
        with self._lock:
            self._users -= 1
            self._idle += [] if idle is None else [idle]
            ended, self._idle = (self._idle, []) if not self._users else ([], self._idle)
        # Outside of the lock: a server that does not answer must not stop the other ranges.
        for _, _, reader in ended:
            reader.close()
