"""The kind of reading of a snapshot, and how it begins. `io/spanner/read.py` and `table.py` use it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from apache_beam.metrics import Metrics

from penstock.io.change_streams.coders import FrontierCoder
from penstock.io.change_streams.kinds import POOLS, SourceFn, StreamKind
from penstock.io.change_streams.lineage import LineageEvent
from penstock.io.change_streams.metrics import ReaderMetrics
from penstock.io.change_streams.prefetch import Prefetcher, StreamPool
from penstock.io.change_streams.read_fn import ReadChangeStreamFn
from penstock.io.change_streams.settings import Settings
from penstock.io.spanner.filter import Selection
from penstock.io.spanner.initial_scan.frontier import KeyRange, ScanFrontier, Table
from penstock.io.spanner.initial_scan.metrics import SNAPSHOT_RANGES, ScanMetrics
from penstock.io.spanner.initial_scan.pool import ScanPool
from penstock.io.spanner.initial_scan.stream import Opener, RangePosition
from penstock.io.spanner.initial_scan.tracker import ScanCoder, ScanTracker
from penstock.io.spanner.metrics import SpannerMetrics
from penstock.timestamps import format_timestamp

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """The options of reading a snapshot. They are not in a checkpoint, unlike the tables that it reads.

    `max_ranges`: about how many key ranges a table is divided in. `data_boost`: read with Data Boost, not with the
    compute capacity of the instance.
    """

    max_ranges: int = 256
    data_boost: bool = False


@dataclass(frozen=True, slots=True)
class SpannerSettings(Settings):
    """The configuration of a reader that may begin with a snapshot.

    `selection`: which changes are emitted, and of which tables rows. `dialect` of the database; None: the service is
    asked.
    """

    snapshot: ScanOptions = ScanOptions()
    selection: Selection = field(default_factory=Selection)
    dialect: str | None = None


class ScanKind(StreamKind):
    """A snapshot at one timestamp, alone or before a change stream. `settings.snapshot` are the options.

    It ends like any bundle: the residual of a whole snapshot is the frontier of the change stream.
    """

    frontier_type = ScanFrontier

    def prepared(self, frontier: Any) -> Any:
        return frontier.settled() if isinstance(frontier, ScanFrontier) else frontier

    def coder(self, others: FrontierCoder) -> FrontierCoder:
        return ScanCoder(others)

    def tracker(self, frontier: ScanFrontier) -> ScanTracker:
        return ScanTracker(frontier, whole_ranges=self._fn._settings.snapshot.data_boost)

    def metrics(self, prefetcher: Prefetcher) -> ReaderMetrics:
        return ScanMetrics(prefetcher)

    def lineage_events(self, step: Any, frontier: Any) -> Iterable[LineageEvent]:
        return ()  # key ranges are no partitions of the change stream

    def drained(self, frontier: ScanFrontier) -> ScanFrontier | None:
        """Return the rows of a snapshot that has begun, and no changes. Half a snapshot would be of no use."""
        # Each part decides for itself, so the part that holds the stream drops it, whatever the others have left.
        return replace(frontier, stream=None) if frontier.ranges else None

    def pool(self, element: Any) -> StreamPool:
        client, settings = self._fn._client(element), self._fn._settings
        options: ScanOptions = settings.snapshot
        return POOLS.get(
            (type(self), type(self._fn), element, settings),
            lambda: ScanPool(
                lambda at: _openers(scan_client(self._fn, element), options, at),
                client.backoff,
                settings.limits,
                client.clock.now,
                whole_ranges=options.data_boost,
            ),
        )


def scan_client(fn: SourceFn, element: Any) -> Any:
    """Return this process's client for reads at a timestamp."""
    # The client imports google-cloud-spanner, which only a running pipeline needs.
    from penstock.io.spanner.initial_scan.client import ScanClient

    return ScanClient(fn._client(element))


def plan_with_retries(
    fn: ReadChangeStreamFn, element: Any, make: Callable[[Any], ScanFrontier]
) -> ScanFrontier:
    """Return the frontier that `make` plans with a client, asked again while the service does not answer."""
    client = scan_client(fn, element)
    frontier: ScanFrontier = client.backoff.ask(lambda: make(client), fn._settings.limits.unavailable_seconds)
    _LOGGER.info(
        "snapshot of %s at %s: %d tables in %d key ranges",
        element,
        format_timestamp(frontier.timestamp),
        len(frontier.tables),
        len(frontier.ranges),
    )
    Metrics.counter(SpannerMetrics.namespace, SNAPSHOT_RANGES).inc(len(frontier.ranges))
    return frontier


def _openers(client: Any, options: ScanOptions, at: RangePosition) -> Iterator[Opener]:
    """Yield the reads that together have the rows of a range."""
    if not options.data_boost:
        yield lambda _: client.read(at.table, at.range, at.timestamp)
        return
    # A transaction for each range: its tokens are used at once, so that they do not expire while other ranges are read.
    transaction = client.begin(at.timestamp)
    for token in client.tokens(at.table, at.range, transaction):
        yield _with_token(client, at.table, at.range, transaction, token)


def _with_token(client: Any, table: Table, each: KeyRange, transaction: Any, token: bytes) -> Opener:
    return lambda resume_token: client.read_partition(
        table, each, transaction, token, resume_token=resume_token, data_boost=True
    )
