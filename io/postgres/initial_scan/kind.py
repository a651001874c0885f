"""The kind of reading of an initial snapshot; `io/postgres/read.py` uses it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from penstock.io.change_streams.coders import FrontierCoder
from penstock.io.change_streams.kinds import POOLS, StreamKind
from penstock.io.change_streams.lineage import LineageEvent
from penstock.io.change_streams.prefetch import Prefetcher
from penstock.io.change_streams.range_tracker import RangeTracker
from penstock.io.postgres.initial_scan.coder import ScanCoder
from penstock.io.postgres.initial_scan.frontier import LogFrontier, ScanFrontier, begun
from penstock.io.postgres.initial_scan.pool import ClosableReader, ScanPool
from penstock.io.postgres.initial_scan.signals import SignalSource
from penstock.io.postgres.metrics import ScanMetrics


class ScanKind(StreamKind):
    """The rows of tables at one snapshot of the database, before the log."""

    frontier_type = ScanFrontier

    def prepared(self, frontier: Any) -> Any:
        if isinstance(frontier, LogFrontier):
            frontier = begun(frontier)
        return frontier.settled() if isinstance(frontier, ScanFrontier) else frontier

    def coder(self, others: FrontierCoder) -> FrontierCoder:
        return ScanCoder(others)

    def tracker(self, frontier: ScanFrontier) -> RangeTracker:
        return RangeTracker(frontier)

    def metrics(self, prefetcher: Prefetcher) -> ScanMetrics:
        return ScanMetrics(prefetcher)

    def lineage_events(self, step: Any, frontier: Any) -> Iterable[LineageEvent]:
        return ()  # ranges are no partitions of the log

    def pool(self, element: Any) -> ScanPool:
        settings = self._fn._settings
        client = self._fn._client(element)
        found: Any = POOLS.get(
            (type(self), type(self._fn), element, settings), lambda: self._open(element, client.backoff)
        )
        return found

    def _open(self, element: Any, backoff: Any) -> ScanPool:
        # Imported here, because the modules need psycopg.
        from penstock.io.postgres.incremental.setup import channels_of_slot
        from penstock.io.postgres.initial_scan.reader import HeldBlockReader

        settings = self._fn._settings
        shards = {shard.slot: shard for shard in element.shards}

        states: dict[Any, Any] = {}

        def make(slot: str, view: Any) -> ClosableReader:
            return HeldBlockReader(shards[slot], settings, view.view, states)

        options = settings.snapshots
        signals = {
            slot: SignalSource(
                str(shard),
                partial(channels_of_slot, shard, settings),
                options.poll_seconds,
                settings.notification_output,
            )
            for slot, shard in shards.items()
            if options.takes_signals
        }
        return ScanPool(make, backoff, settings.limits, options.chunk_rows, signals)
