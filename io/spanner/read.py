"""The splittable DoFn and the transform that read a change stream.

    changes = pipeline | ReadFromSpannerChangeStream(
        project="my-project", instance="my-instance", database="bank", change_stream="AllChanges")

- **Order**: changes of one primary key come in commit order, if one bundle after another reads the restriction.
  There is no order between keys. With a snapshot, the row of a key comes before every change of it.
- **After a crash**: the read continues at the last checkpoint, which may be between two records of one timestamp.
  Records before it are not emitted again. Records that a lost bundle had emitted are emitted again.
- **Watermark**: held at the time of the snapshot until all of its rows are read. Then held by the slowest open
  partition and by the start of every waiting one; advanced by records and heartbeats, also while nothing changes.
- **State**: one entry per live partition in the restriction. There is no metadata table and nothing outside the
  pipeline.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from penstock.datasets import ReadTable
from penstock.errors import SetupError, UsageError
from penstock.event.model import Source
from penstock.extras import extra_packages
from penstock.io.change_streams.arguments import check_end, in_range, named, period
from penstock.io.change_streams.incremental.frontier import progress_at_rest
from penstock.io.change_streams.incremental.new_tables import CHANNEL, KnownTables
from penstock.io.change_streams.incremental.options import SnapshotOptions
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental_kind import IncrementalKind
from penstock.io.change_streams.kinds import StreamKind
from penstock.io.change_streams.lineage import LineageEvent
from penstock.io.change_streams.prefetch import ReadAhead
from penstock.io.change_streams.read_fn import ReadChangeStreamFn, Unbounded
from penstock.io.change_streams.retention import retention
from penstock.io.change_streams.transform import ReadFromChangeStream
from penstock.io.spanner import coder  # noqa: F401 - registers the coders of streams and records
from penstock.io.spanner.datasets import spanner_dataset
from penstock.io.spanner.filter import Selection
from penstock.io.spanner.frontier import Frontier, abbreviate
from penstock.io.spanner.incremental.chunk_reader import ChunkReader
from penstock.io.spanner.incremental.merging import SpannerRecords
from penstock.io.spanner.initial_scan import plan
from penstock.io.spanner.initial_scan.frontier import ScanFrontier
from penstock.io.spanner.initial_scan.pool import check_changes_kept
from penstock.io.spanner.initial_scan.read import (
    ScanKind,
    ScanOptions,
    SpannerSettings,
    plan_with_retries,
    scan_client,
)
from penstock.io.spanner.initial_scan.snapshot import begin_snapshot, ranges_of
from penstock.io.spanner.lineage import lineage_events
from penstock.io.spanner.metrics import SpannerMetrics
from penstock.io.spanner.options import SpannerStreamOptions
from penstock.io.spanner.placements import PlacementList, look_at_placements
from penstock.io.spanner.pool import StreamPool
from penstock.io.spanner.prefetch import Limits, Prefetcher
from penstock.io.spanner.preflight import StreamFacts, check_source, check_tables, unmatched_tables
from penstock.io.spanner.query import (
    GOOGLESQL,
    POSTGRESQL,
    change_stream_query,
    checked_name,
    function_of,
    read_functions,
    token_of,
)
from penstock.io.spanner.record import DataChangeRecord
from penstock.io.spanner.source import (
    SNAPSHOT_AT_START,
    ChangeStream,
    Connection,
    snapshot_of,
)
from penstock.io.spanner.state import Call
from penstock.io.spanner.tracker import FrontierCoder, SpannerTracker
from penstock.measurement import Measurement
from penstock.tables import EVERY_TABLE, SourceTable
from penstock.timestamps import NANOS, format_timestamp

if TYPE_CHECKING:
    from penstock.io.spanner.client import Client


_LOOK = 10 * NANOS
"""Interval between two looks at the list of placements. It delays the watermark of a stream with per_placement_tvf."""


class ReadSpannerFn(ReadChangeStreamFn):
    """Turns `ChangeStream` elements into the rows of a snapshot, if they ask for one, and then into changes."""

    frontier_type = Frontier
    tracker_type = SpannerTracker
    frontier_coder = FrontierCoder
    metrics_type = SpannerMetrics
    split_deferral_seconds = 10.0

    def connect(self, stream: ChangeStream) -> Client:
        # The client imports google-cloud-spanner, which only a running pipeline needs.
        with extra_packages("spanner"):
            from penstock.io.spanner.client import client_for

        return client_for(stream, self._settings.connection)

    def kinds(self) -> tuple[StreamKind, ...]:
        return (ScanKind(self), IncrementalKind(self), *super().kinds())

    def open_pool(self, stream: ChangeStream) -> StreamPool:
        client, settings = self._client(stream), self._settings

        def open_call(key: str, start_timestamp: int, end_timestamp: int) -> Call:
            function = function_of(key) or read_functions(stream.change_stream, GOOGLESQL, mutable=False)
            query = change_stream_query(
                function, token_of(key), start_timestamp, end_timestamp, settings.heartbeat_ms
            )
            ahead = max(0, end_timestamp - client.clock.now()) / NANOS
            return client.open(query, f"{format_timestamp(start_timestamp)} in {abbreviate(key)}", ahead)

        wanted = None if settings.selection.everything else settings.selection.passes

        placements = PlacementList(
            lambda key, since: look_at_placements(stream, client.rows, key, since),
            NANOS if settings.connection.emulated else _LOOK,
        )

        def prefetcher(ahead: ReadAhead) -> Prefetcher:
            return Prefetcher(
                open_call,
                client.backoff,
                settings.limits,
                stream.end,
                client.clock.now,
                ahead,
                wanted,
                placements,
            )

        return StreamPool(settings.limits.buffer_bytes, prefetcher, client.clock.synchronize)

    def ask_service(self, client: Client, stream: ChangeStream) -> StreamFacts:
        return check_source(stream, client.rows, self._settings.dialect)

    def check_start(self, stream: ChangeStream) -> None:
        """Also check that the tables exist. After the start they may be dropped, and their changes are still read."""
        super().check_start(stream)
        tables = self._settings.selection.tables
        if tables != EVERY_TABLE:
            client, limit = self._client(stream), self._settings.limits.unavailable_seconds
            client.backoff.ask(lambda: check_tables(stream, client.rows, tables), limit)

    def lineage_events(self, step: Any, frontier: Any) -> Iterable[LineageEvent]:
        return lineage_events(step, frontier)

    def first_frontier(self, stream: ChangeStream, said: StreamFacts) -> Any:
        """Return the rows of a snapshot, if the stream asks for one, otherwise the change stream."""
        if stream.snapshot:
            return plan_with_retries(self, stream, lambda client: self._plan(client, stream, said))
        progress = SnapshotProgress()
        if self._settings.snapshots.reads_new_tables:
            # Known from the start on: a table that joins while the rows of the others are read joins later.
            known = self._client(stream).backoff.ask(
                lambda: self.known_tables(stream), self._settings.limits.unavailable_seconds
            )
            progress = progress.with_channel(CHANNEL, known.pack())
        return IncrementalKind(self).prepared(self._stream_frontier(stream, said), progress)

    def _stream_frontier(self, stream: ChangeStream, said: StreamFacts) -> Frontier:
        """Return the root partitions alone: their children are the partitions that are live at the start."""
        emulated = self._settings.connection.emulated
        return Frontier.starting_at(
            stream.start,
            stream.end,
            roots=said.roots(stream.change_stream),
            globally_ordered=emulated,
            mutable=said.mutable,
        )

    def _plan(self, client: Any, stream: ChangeStream, said: StreamFacts) -> ScanFrontier:
        transaction = begin_snapshot(
            client,
            stream.start if stream.snapshot == SNAPSHOT_AT_START else None,
            stream.database_path,
            emulated=self._settings.connection.emulated,
        )
        timestamp = transaction.timestamp
        check_end(timestamp, stream.end, SetupError)

        def query(sql: str) -> list[list[Any]]:
            rows: list[list[Any]] = client.query(sql, timestamp)
            return rows

        watched = tuple(
            [
                table
                for table in plan.watched_tables(query, stream.change_stream)
                if self._settings.selection.reads_table(table.name)
            ]
        )
        options = plan.stream_options(query, stream.change_stream)
        kept = plan.stream_retention_of(options)
        # Strictly after the snapshot: it has every change up to its own time, inclusive.
        following = replace(stream, start=timestamp + 1, snapshot="")
        has_changes = stream.end is None or stream.end > timestamp
        frontier = ScanFrontier(
            timestamp,
            watched,
            ranges_of(client, watched, transaction, self._settings.snapshot.max_ranges),
            self.first_frontier(following, said) if has_changes else None,
            timestamp + kept,
            options.get("value_capture_type", "OLD_AND_NEW_VALUES"),
        )
        check_changes_kept(frontier, client.clock.now())
        return frontier

    # Incremental snapshots.

    def stream_from_now(self, element: ChangeStream) -> Frontier:
        client = self._client(element)
        client.clock.synchronize()
        return self._stream_frontier(replace(element, start=client.clock.now()), self.check(element))

    def rewound(self, element: ChangeStream, restrictions: Sequence[Any], to: int) -> Any:
        """See the base class. Exact, because no change comes below the watermark of its partition."""
        if any(isinstance(each, ScanFrontier) for each in restrictions):
            raise UsageError(
                f"the job is still reading the rows of {element} for the first time. Let it finish, or start a new job "
                "with another checkpoint folder and empty tables"
            )
        progress = progress_at_rest(restrictions)
        facts, client = self.check(element), self._client(element)
        kept: int = client.backoff.ask(lambda: self._kept(element), self._settings.limits.unavailable_seconds)
        client.clock.synchronize()
        if to < (oldest := client.clock.now() - kept):
            raise UsageError(
                f"{element} no longer has the changes from {format_timestamp(to)} on, only those from "
                f"{format_timestamp(oldest)} on (its retention_period). Choose a later time"
            )
        whole = self._stream_frontier(replace(element, start=to), facts)
        return IncrementalKind(self).prepared(whole, progress)

    def _kept(self, element: ChangeStream) -> int:
        """Ask the service, once, for how many nanoseconds it keeps the changes."""
        client = scan_client(self, element)
        options = plan.stream_options(lambda sql: client.query(sql, None), element.change_stream)
        return plan.stream_retention_of(options)

    def snapshot_source(self, element: Any) -> SpannerRecords:
        return SpannerRecords()

    def chunk_reader(self, element: ChangeStream, stopped: Callable[[], bool]) -> ChunkReader:
        settings = self._settings
        return ChunkReader(
            scan_client(self, element),
            element.change_stream,
            settings.selection.reads_table,
            dialect=settings.dialect,
            emulated=settings.connection.emulated,
        )

    def known_tables(self, element: ChangeStream) -> KnownTables:
        client = scan_client(self, element)
        return plan.known_tables(lambda sql: client.query(sql, None), element.change_stream)

    def reads_table(self, table: str) -> bool:
        selected: bool = self._settings.selection.reads_table(table)
        return selected

    def signal_rows(self, element: ChangeStream, table: str) -> Callable[[], Sequence[Sequence[Any]]]:
        client = scan_client(self, element)
        return lambda: client.query(
            plan.signal_query(table, plan.dialect_of(lambda sql: client.query(sql, None))), None
        )

    def read_on(self, element: ChangeStream) -> ChangeStream | None:
        """Return the element that begins after the end of `element`; it has no snapshot. See the base class."""
        following: ChangeStream | None = super().read_on(element)
        return None if following is None else replace(following, snapshot="")


class ReadSpannerUnboundedFn(Unbounded, ReadSpannerFn):
    """`ReadSpannerFn` for a stream without end."""


class ReadFromSpannerChangeStream(SpannerStreamOptions, ReadFromChangeStream):
    """Read the data change records of a change stream, timestamped with their commit timestamps.

    For both dialects, both partition modes, geo-partitioned databases and every value capture type; the rest of
    Penstock works best with OLD_AND_NEW_VALUES. Nothing is written to the database. The docstring of this module has
    the promises about order, repeats and the watermark.

    Raises:
        UsageError: an argument is missing, malformed or out of range. Whether the stream exists and can be
            read is known only to the service: `check()` asks it, and the pipeline does so before it reads.
    """

    bounded_fn = ReadSpannerFn
    unbounded_fn = ReadSpannerUnboundedFn
    record_type = DataChangeRecord
    _settings: SpannerSettings

    def __post_init__(self) -> None:
        stream = ChangeStream(
            named("project", self.project),
            named("instance", self.instance),
            named("database", self.database),
            checked_name(named("change_stream", self.change_stream)),
            *period(self.start, self.end, ahead_seconds=600),
            snapshot_of(self.snapshot, start_given=self.start is not None),
        )
        if self.dialect not in (None, GOOGLESQL, POSTGRESQL):
            raise UsageError(f"dialect must be {GOOGLESQL} or {POSTGRESQL}, not {self.dialect!r}")
        settings = SpannerSettings(
            connection=Connection.checked(self),
            limits=Limits.checked(
                self,
                max_concurrent_partitions=self.max_concurrent_partitions,
                poll_seconds=in_range("poll_seconds", self.poll_seconds, 0.01, 60),
            ),
            heartbeat_ms=round(1000 * in_range("heartbeat_seconds", self.heartbeat_seconds, 1, 300)),
            identity=stream.identity,
            end=stream.end,
            selection=Selection.checked(
                self.tables, self.mod_types, self.exclude_transaction_tags, self.without_tables
            ),
            dialect=self.dialect,
            snapshot=ScanOptions(data_boost=self.snapshot_data_boost),
            snapshots=SnapshotOptions.checked(self, self.snapshot),
        )
        ReadFromChangeStream.__init__(self, stream, settings)

    @property
    def selection(self) -> Selection:
        """The selection of the records to emit."""
        return self._settings.selection

    def with_selection(self, selection: Selection) -> Self:
        """Return a copy that emits the records of another selection."""
        changed = copy.copy(self)
        changed._settings = replace(self._settings, selection=selection)
        return changed

    def row_reader(self) -> ChunkReader:
        """Return a reader of the rows of the tables as they are now. It does not disturb the pipeline."""
        return ReadSpannerFn(self._settings).chunk_reader(self._stream, lambda: False)

    def source_tables(self) -> list[SourceTable]:
        """Return the watched tables that are read, with their watched columns. It asks the service.

        Raises:
            ChangeStreamError: the service refused to answer.
            UnavailableError: it did not answer for `unavailable_seconds`.
        """
        fn, stream = ReadSpannerFn(self._settings), self._stream
        client = scan_client(fn, stream)

        def watched() -> list[SourceTable]:
            tables = plan.watched_tables(lambda sql: client.query(sql, None), stream.change_stream)
            names = [(*table.name.rpartition("."), table.columns) for table in tables]
            return [SourceTable(schema, name, columns) for schema, _, name, columns in names]

        found = client.backoff.ask(watched, self._settings.limits.unavailable_seconds)
        return [table for table in found if self._settings.selection.reads_table(str(table))]

    def setup_warnings(self) -> list[str]:
        """Return warnings about patterns of tables that match none. It asks and raises as `source_tables` does."""
        selection = self._settings.selection.tables
        if selection == EVERY_TABLE:
            return []
        client = ReadSpannerFn(self._settings).connect(self._stream)
        unmatched = client.backoff.ask(
            lambda: unmatched_tables(self._stream, client.rows, selection),
            self._settings.limits.unavailable_seconds,
        )
        return [*unmatched.names, *unmatched.globs]

    def measure(self) -> list[Measurement]:
        """Return the retention period of the change stream; see `penstock.measurement`. Asks once, without retries.

        Raises:
            UnreachableError: the service does not answer now.
            ChangeStreamError: it refused to answer.
        """
        kept = ReadSpannerFn(self._settings)._kept(self._stream)
        return retention(self._stream.change_stream, kept / NANOS)

    def tables_read(self) -> list[ReadTable]:
        """Return the tables as datasets; see `penstock.datasets`. It asks and raises as `source_tables` does."""
        at = self._stream
        return [
            ReadTable(
                Source("spanner", f"{at.project}/{at.instance}", at.database, table.schema, table.name),
                spanner_dataset(at.project, at.instance, at.database, str(table), table.columns),
            )
            for table in self.source_tables()
        ]

    def capture_type(self) -> str:
        """Ask the service, from this process, which values the change stream sends, such as ``NEW_ROW``.

        Raises:
            ChangeStreamError: the stream cannot be read; the message says why and what to do.
        """
        facts: StreamFacts = self.check()
        return facts.capture_type
