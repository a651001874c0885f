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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import Self

from penstock.errors import SetupError, UsageError
from penstock.extras import extra_packages
from penstock.io.change_streams.arguments import check_end, in_range, named, period
from penstock.io.change_streams.lineage import LineageEvent
from penstock.io.change_streams.prefetch import ReadAhead
from penstock.io.change_streams.read_fn import ReadChangeStreamFn, ReadFromChangeStream, Unbounded
from penstock.io.change_streams.snapshot_reading import SnapshotsReading
from penstock.io.change_streams.snapshots import options as signals
from penstock.io.spanner import coder  # noqa: F401 - registers the coders of streams and records
from penstock.io.spanner.filter import Selection
from penstock.io.spanner.frontier import Frontier, abbreviate
from penstock.io.spanner.lineage import lineage_events
from penstock.io.spanner.metrics import SpannerMetrics
from penstock.io.spanner.placements import PlacementList, look_at_placements
from penstock.io.spanner.pool import StreamPool
from penstock.io.spanner.prefetch import Limits, Prefetcher
from penstock.io.spanner.preflight import StreamFacts, check_source, check_tables
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
from penstock.io.spanner.snapshot import plan
from penstock.io.spanner.snapshot.chunk_reader import ChunkReader
from penstock.io.spanner.snapshot.frontier import SnapshotFrontier
from penstock.io.spanner.snapshot.merging import SpannerRecords
from penstock.io.spanner.snapshot.pool import check_changes_kept
from penstock.io.spanner.snapshot.read import (
    SnapshotOptions,
    SnapshotReading,
    SpannerSettings,
    begin_snapshot,
    ranges_of,
)
from penstock.io.spanner.source import (
    SNAPSHOT_AT_START,
    ChangeStream,
    Connection,
    snapshot_of,
)
from penstock.io.spanner.state import Window
from penstock.io.spanner.tracker import FrontierCoder, SpannerTracker
from penstock.tables import SourceTable
from penstock.timestamps import NANOS, Timelike, format_timestamp

if TYPE_CHECKING:
    from penstock.io.spanner.client import Client


_LOOK = 10 * NANOS
"""Interval between two looks at the list of placements. It delays the watermark of a stream with per_placement_tvf."""


class ReadSpannerFn(ReadChangeStreamFn):
    """Turns `ChangeStream` elements into timestamped `DataChangeRecord`s."""

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

    def open_pool(self, stream: ChangeStream) -> StreamPool:
        client, settings = self._client(stream), self._settings

        def ask(key: str, start_timestamp: int, end_timestamp: int) -> Window:
            function = function_of(key) or read_functions(stream.change_stream, GOOGLESQL, mutable=False)
            query = change_stream_query(
                function, token_of(key), start_timestamp, end_timestamp, settings.heartbeat_ms
            )
            ahead = max(0, end_timestamp - client.clock.now()) / NANOS
            return client.ask(query, f"{format_timestamp(start_timestamp)} in {abbreviate(key)}", ahead)

        wanted = None if settings.selection.everything else settings.selection.passes

        placements = PlacementList(
            lambda key, since: look_at_placements(stream, client.rows, key, since),
            NANOS if settings.connection.emulated else _LOOK,
        )

        def prefetcher(ahead: ReadAhead) -> Prefetcher:
            return Prefetcher(
                ask, client.backoff, settings.limits, stream.end, client.clock.now, ahead, wanted, placements
            )

        return StreamPool(settings.limits.buffer_bytes, prefetcher, client.clock.synchronize)

    def ask_service(self, client: Client, stream: ChangeStream) -> StreamFacts:
        return check_source(stream, client.rows, self._settings.dialect)

    def check_start(self, stream: ChangeStream) -> None:
        """Also check that the tables exist. After the start they may be dropped, and their changes are still read."""
        super().check_start(stream)
        tables = self._settings.selection.names
        if tables:
            client, limit = self._client(stream), self._settings.limits.unavailable_seconds
            client.backoff.ask(lambda: check_tables(stream, client.rows, tables), limit)

    def lineage_events(self, step: Any, frontier: Any) -> Iterable[LineageEvent]:
        return lineage_events(step, frontier)

    def first_frontier(self, stream: ChangeStream, said: StreamFacts) -> Frontier:
        """Return the root partitions alone: their children are the partitions that are live at the start."""
        emulated = self._settings.connection.emulated
        return Frontier.starting_at(
            stream.start,
            stream.end,
            roots=said.roots(stream.change_stream),
            globally_ordered=emulated,
            mutable=said.mutable,
        )


class ReadSpannerUnboundedFn(Unbounded, ReadSpannerFn):
    """The same for a stream without end."""


class ReadSpannerWithSnapshotsFn(SnapshotsReading, ReadSpannerFn):
    """The same with incremental snapshots, if the settings name a place for signals."""

    def stream_from_now(self, element: ChangeStream) -> Frontier:
        client = self._client(element)
        client.clock.synchronize()
        following = replace(element, start=client.clock.now(), snapshot="")
        return ReadSpannerFn.first_frontier(self, following, self.check(element))

    def stream_lineage(self, step: Any, frontier: Any) -> Iterable[LineageEvent]:
        return lineage_events(step, frontier)

    def snapshot_source(self, element: Any) -> SpannerRecords:
        return SpannerRecords()

    def chunk_reader(self, element: ChangeStream, stopped: Callable[[], bool]) -> ChunkReader:
        settings = self._settings
        return ChunkReader(
            self._snapshot_client(element),
            element.change_stream,
            settings.selection.reads_table,
            dialect=settings.dialect,
            emulated=settings.connection.emulated,
        )

    def signal_rows(self, element: ChangeStream, table: str) -> Callable[[], Sequence[Sequence[Any]]]:
        client = self._snapshot_client(element)
        return lambda: client.query(
            plan.signal_query(table, plan.dialect_of(lambda sql: client.query(sql, None))), None
        )

    def _snapshot_client(self, element: ChangeStream) -> Any:
        from penstock.io.spanner.snapshot.client import SnapshotClient

        return SnapshotClient(self._client(element))

    def open_pool(self, stream: ChangeStream) -> Any:
        return self.merge_pool(stream, super().open_pool(stream), self._client(stream).backoff)

    def first_frontier(self, stream: ChangeStream, said: StreamFacts) -> Any:
        return self.with_snapshots(super().first_frontier(stream, said))


class ReadSnapshotAndStreamFn(SnapshotReading, ReadSpannerWithSnapshotsFn):
    """Turns `ChangeStream` elements into the rows of a snapshot, if they ask for one, and then into changes."""

    def first_frontier(self, stream: ChangeStream, said: StreamFacts) -> Any:
        if not stream.snapshot:
            return super().first_frontier(stream, said)
        return self.plan_with_retries(stream, lambda client: self._plan(client, stream, said))

    def _plan(self, client: Any, stream: ChangeStream, said: StreamFacts) -> SnapshotFrontier:
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
        retention = plan.period_of(options.get("retention_period", plan.DEFAULT_STREAM_RETENTION))
        # Strictly after the snapshot: it has every change up to its own time, inclusive.
        following = replace(stream, start=timestamp + 1, snapshot="")
        has_changes = stream.end is None or stream.end > timestamp
        frontier = SnapshotFrontier(
            timestamp,
            watched,
            ranges_of(client, watched, transaction, self.options.max_ranges),
            super().first_frontier(following, said) if has_changes else None,
            timestamp + retention,
            options.get("value_capture_type", "OLD_AND_NEW_VALUES"),
        )
        check_changes_kept(frontier, client.clock.now())
        return frontier

    def read_on(self, element: ChangeStream) -> ChangeStream | None:
        """Return the element that begins after the end of `element`; it has no snapshot. See the base class."""
        following: ChangeStream | None = super().read_on(element)
        return None if following is None else replace(following, snapshot="")


class ReadSnapshotAndStreamUnboundedFn(Unbounded, ReadSnapshotAndStreamFn):
    """The same for a stream without end."""


class ReadFromSpannerChangeStream(ReadFromChangeStream):
    """Read the data change records of a change stream, timestamped with their commit timestamps.

    For both dialects, both partition modes, geo-partitioned databases and every value capture type; the rest of
    Penstock works best with OLD_AND_NEW_VALUES. Nothing is written to the database. The docstring of this module has
    the promises about order, repeats and the watermark.

    Args:
        project, instance, database, change_stream: names; the change stream's without READ_.
        start: the first commit timestamp to read, inclusive. None means now: the time when this transform
            is made. A pipeline that resumes from a checkpoint ignores it.
        end: the last commit timestamp to read, inclusive. None means without end. A pipeline that
            resumes from a checkpoint may have a later end or none, but no earlier one.
        snapshot: "initial" (or True) reads every row of the watched tables before the changes, as records with the
            mod_type READ: as of `start`, or as of now without one. Then follows every change with a greater commit
            timestamp. "when_needed" also reads all rows when the service no longer has the changes after the
            checkpoint; rows that were deleted in that time cannot be known. "never" (or False) reads changes only. A
            pipeline that resumes from a checkpoint takes no initial snapshot, and finishes one that it has begun.
            This holds for each value.
        signal_table: a table with the STRING columns id, type and data, which is polled. Rows that are inserted there
            request incremental snapshots, in Debezium's layout. docs/snapshots.md has the signals.
        signal_file: a file of JSON lines with the same fields, which all workers can read.
        signal_folder: a folder of such files, one for each signal; `penstock snapshot` writes there.
        signal_kafka: options of a Kafka consumer, with the topic as ``topic`` and, optionally, the key of messages that
            are meant for this pipeline as ``key``.
        chunk_rows: how many rows of a table an incremental snapshot reads at once, unless a signal says it.
        parallel_tables: how many tables it reads at once.
        snapshot_data_boost: read the rows with Data Boost, not with the compute capacity of the instance.
        heartbeat_seconds: interval of the service's heartbeats in a long idle query; 1 to 300.
        poll_seconds: length of the time window of one query; 0.01 to 60. A shorter window delivers sooner where the
            service sends rows only at the end of a query, and needs more queries.
        unavailable_seconds: how long the service may fail to answer before the pipeline fails.
        max_concurrent_partitions: partitions that one worker process reads at once; the others take turns.
        buffer_bytes: how much one worker process may read ahead of the pipeline, as sent by the service.
        idle_stream_seconds: how long open queries wait for the next bundle that continues at their positions; 0:
            not at all, and a bundle ends when its queries have ended.
        tables: names of tables, or globs such as ``sales.*``, with the letter case of the database; changes of others
            are left out. A name without a schema is the table in every schema. Empty: all.
        mod_types: INSERT, UPDATE, DELETE; changes of other kinds are left out. Empty: all.
        exclude_transaction_tags: changes of transactions with one of these tags are left out.
        dialect: GOOGLE_STANDARD_SQL or POSTGRESQL; None: the service is asked when a pipeline starts.
        credentials: a picklable google.auth credentials object; None: application default credentials, found
            by each worker.
        database_role: for fine-grained access control.
        rpc_priority: LOW, MEDIUM or HIGH; None: the service's default, HIGH.
        include_replicas, exclude_replicas: directed reads: replicas that may answer, in the order of preference, or
            that may not. Each is a location (``us-east1``), a location and a type (``us-east1:READ_ONLY``) or a type
            (``:READ_ONLY``).
        auto_failover: whether other replicas answer while none of `include_replicas` can.
        emulator_host: ``host:port`` of an emulator; None: SPANNER_EMULATOR_HOST of this process, if set.
        api_endpoint: ``host:port`` of a regional or private endpoint, or of a self-managed one.
        plain_text: connect to `api_endpoint` without TLS and credentials.
        root_certificates: path of a PEM file with the certificates that sign the one of a self-managed `api_endpoint`.
        client_certificate, client_key: paths of PEM files, for mutual TLS with a self-managed `api_endpoint`. Every
            worker reads the files. With certificates, no application default credentials are used.

    Raises:
        UsageError: an argument is missing, malformed or out of range. Whether the stream exists and can be
            read is known only to the service: `check()` asks it, and the pipeline does so before it reads.
    """

    bounded_fn = ReadSnapshotAndStreamFn
    unbounded_fn = ReadSnapshotAndStreamUnboundedFn
    record_type = DataChangeRecord
    _settings: SpannerSettings

    # Sources repeat the parameters that they share: a signature is what editors, the docs and the tests read. A test
    # compares names, types and defaults.
    def __init__(
        self,
        *,
        project: str,
        instance: str,
        database: str,
        change_stream: str,
        start: Timelike | None = None,
        end: Timelike | None = None,
        snapshot: Literal["initial", "never", "when_needed"] | bool = "never",
        snapshot_data_boost: bool = False,
        signal_table: str | None = None,
        signal_file: str | None = None,
        signal_folder: str | None = None,
        signal_kafka: Mapping[str, str] | None = None,
        chunk_rows: int = 10_240,
        parallel_tables: int = 2,
        heartbeat_seconds: float = 1.0,
        poll_seconds: float = 0.2,
        unavailable_seconds: float = 60.0,
        max_concurrent_partitions: int = 32,
        buffer_bytes: int = 32 << 20,
        idle_stream_seconds: float = 3.0,
        tables: Sequence[str] = (),
        mod_types: Sequence[str] = (),
        exclude_transaction_tags: Sequence[str] = (),
        dialect: str | None = None,
        credentials: Any = None,
        database_role: str | None = None,
        rpc_priority: str | None = None,
        include_replicas: Sequence[str] = (),
        exclude_replicas: Sequence[str] = (),
        auto_failover: bool = True,
        emulator_host: str | None = None,
        api_endpoint: str | None = None,
        plain_text: bool = False,
        root_certificates: str | None = None,
        client_certificate: str | None = None,
        client_key: str | None = None,
    ) -> None:
        stream = ChangeStream(
            named("project", project),
            named("instance", instance),
            named("database", database),
            checked_name(named("change_stream", change_stream)),
            *period(start, end, ahead_seconds=600),
            snapshot_of(snapshot, start_given=start is not None),
        )
        if dialect not in (None, GOOGLESQL, POSTGRESQL):
            raise UsageError(f"dialect must be {GOOGLESQL} or {POSTGRESQL}, not {dialect!r}")
        connection = Connection.checked(
            credentials=credentials,
            emulator_host=emulator_host,
            api_endpoint=api_endpoint,
            plain_text=plain_text,
            root_certificates=root_certificates,
            client_certificate=client_certificate,
            client_key=client_key,
            database_role=database_role,
            rpc_priority=rpc_priority,
            include_replicas=include_replicas,
            exclude_replicas=exclude_replicas,
            auto_failover=auto_failover,
        )
        limits = Limits.checked(
            unavailable_seconds=unavailable_seconds,
            max_concurrent_partitions=max_concurrent_partitions,
            buffer_bytes=buffer_bytes,
            idle_stream_seconds=idle_stream_seconds,
            poll_seconds=in_range("poll_seconds", poll_seconds, 0.01, 60),
        )
        heartbeat_ms = round(1000 * in_range("heartbeat_seconds", heartbeat_seconds, 1, 300))
        super().__init__(
            stream,
            SpannerSettings(
                connection=connection,
                heartbeat_ms=heartbeat_ms,
                limits=limits,
                identity=stream.identity,
                end=stream.end,
                selection=Selection.checked(tables, mod_types, exclude_transaction_tags),
                dialect=dialect,
                snapshot=SnapshotOptions(data_boost=snapshot_data_boost),
                snapshots=signals.SnapshotOptions.checked(
                    snapshot=snapshot,
                    signal_table=signal_table,
                    signal_file=signal_file,
                    signal_folder=signal_folder,
                    signal_kafka=signal_kafka,
                    chunk_size=chunk_rows,
                    parallel_tables=parallel_tables,
                ),
            ),
        )

    @property
    def selection(self) -> Selection:
        """The selection of the records to emit."""
        return self._settings.selection

    def with_selection(self, selection: Selection) -> Self:
        """Return a copy that emits the records of another selection."""
        changed = copy.copy(self)
        changed._settings = replace(self._settings, selection=selection)
        return changed

    def source_tables(self) -> list[SourceTable]:
        """Return the watched tables that are read, with their watched columns. It asks the service.

        Raises:
            ChangeStreamError: the service refused to answer.
            UnavailableError: it did not answer for `unavailable_seconds`.
        """
        fn, stream = ReadSnapshotAndStreamFn(self._settings), self._stream
        client = fn.snapshot_client(stream)

        def watched() -> list[SourceTable]:
            tables = plan.watched_tables(lambda sql: client.query(sql, None), stream.change_stream)
            names = [(*table.name.rpartition("."), table.columns) for table in tables]
            return [SourceTable(schema, name, columns) for schema, _, name, columns in names]

        found = client.backoff.ask(watched, self._settings.limits.unavailable_seconds)
        return [table for table in found if self._settings.selection.reads_table(str(table))]

    def capture_type(self) -> str:
        """Ask the service, from this process, which values the change stream sends, such as ``NEW_ROW``.

        Raises:
            ChangeStreamError: the stream cannot be read; the message says why and what to do.
        """
        facts: StreamFacts = self.check()
        return facts.capture_type
