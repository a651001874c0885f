"""The splittable DoFn and the transform that read a change stream.

    changes = pipeline | ReadFromBigtableChangeStream(
        project="my-project", instance="my-instance", table="my-table")

- **Order**: changes of one row made in one cluster come in commit order, if one bundle after another reads the
  restriction. There is no order between rows.
- **After a crash**: the read continues at the last checkpoint, after the last record that it holds. Records before it
  are not emitted again. Records that a lost bundle had emitted are emitted again.
- **Watermark**: the lowest of the service's *estimates* over all key ranges, waiting ones too; advanced by records
  and heartbeats. The service may send a record below its estimate: it is emitted with its own timestamp, as late data.
- **State**: one entry per live partition in the restriction. There is no metadata table and nothing outside the
  pipeline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import UsageError
from penstock.extras import extra_packages
from penstock.io.bigtable import coder  # noqa: F401 - registers the coders of streams and records
from penstock.io.bigtable.filter import Column, Selection
from penstock.io.bigtable.frontier import Frontier
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.lineage import lineage_events
from penstock.io.bigtable.metrics import BigtableMetrics
from penstock.io.bigtable.pool import StreamPool
from penstock.io.bigtable.prefetch import Limits
from penstock.io.bigtable.preflight import check_retention, check_source
from penstock.io.bigtable.record import ChangeStreamMutation
from penstock.io.bigtable.snapshots import BigtableRecords, RowReader
from penstock.io.bigtable.source import EMULATOR_VARIABLE, ChangeStream, Connection
from penstock.io.bigtable.tracker import BigtableTracker, FrontierCoder
from penstock.io.change_streams import settings
from penstock.io.change_streams.arguments import in_range, named, period
from penstock.io.change_streams.lineage import LineageEvent
from penstock.io.change_streams.read_fn import ReadChangeStreamFn, ReadFromChangeStream, Unbounded
from penstock.io.change_streams.snapshot_reading import SnapshotsReading
from penstock.io.change_streams.snapshots.options import SnapshotOptions
from penstock.io.change_streams.snapshots.prefetch import MergePool
from penstock.timestamps import Timelike

if TYPE_CHECKING:
    from penstock.io.bigtable.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(settings.Settings):
    """The common settings, and what is emitted."""

    selection: Selection


class ReadBigtableFn(SnapshotsReading, ReadChangeStreamFn):
    """Turns `ChangeStream` elements into timestamped `ChangeStreamMutation`s."""

    frontier_type = Frontier
    tracker_type = BigtableTracker
    frontier_coder = FrontierCoder
    metrics_type = BigtableMetrics
    split_deferral_seconds = math.inf
    """Each stream has its own limit, which depends on the heartbeat interval; see `Prefetcher`."""

    def connect(self, stream: ChangeStream) -> Client:
        # The client imports google-cloud-bigtable, which only a running pipeline needs.
        with extra_packages("bigtable"):
            from penstock.io.bigtable.client import client_for

        return client_for(stream, self._settings.connection, self._settings.heartbeat_ms)

    def open_pool(self, stream: ChangeStream) -> MergePool:
        settings, client = self._settings, self._client(stream)
        select = None if settings.selection.everything else settings.selection.apply
        changes = StreamPool(client, settings.limits, select, stream.end is not None)
        return self.merge_pool(stream, changes, client.backoff)

    def stream_from_now(self, element: ChangeStream) -> Frontier:
        now = time.time_ns() // 1000 * 1000
        return Frontier.starting_at(now, self.check(element), element.row_range, element.end)

    def stream_lineage(self, step: Any, frontier: Any) -> Iterable[LineageEvent]:
        return lineage_events(step, frontier)

    def snapshot_source(self, element: ChangeStream) -> BigtableRecords:
        return BigtableRecords(element.table)

    def chunk_reader(self, element: ChangeStream, stopped: Callable[[], bool]) -> RowReader:
        from penstock.io.bigtable.row_client import table_for

        return RowReader(table_for(element, self._settings.connection), element, self._settings.selection)

    def ask_service(self, client: Client, stream: ChangeStream) -> list[KeyRange]:
        from penstock.io.bigtable.admin import Admin

        connection = self._settings.connection
        with closing(Admin(stream, connection)) as admin:
            check_source(stream, connection.app_profile, admin.routing)
        return client.partitions()

    def check_start(self, stream: ChangeStream) -> None:
        super().check_start(stream)
        limit = self._settings.limits.unavailable_seconds
        self._client(stream).backoff.ask(lambda: self._ask_retention(stream), limit)

    def _ask_retention(self, stream: ChangeStream) -> None:
        from penstock.io.bigtable.admin import Admin

        with closing(Admin(stream, self._settings.connection)) as admin:
            check_retention(stream, admin.retention, time.time_ns())

    def first_time_after(self, end: int) -> int:
        # The service rounds timestamps down to microseconds: `end + 1` would be the same time again.
        return (end // 1000 + 1) * 1000

    def first_frontier(self, stream: ChangeStream, said: list[KeyRange]) -> Any:
        """Return the present partitions, to be read from the start, and an initial snapshot if it is wanted."""
        return self.with_initial(Frontier.starting_at(stream.start, said, stream.row_range, stream.end))


class ReadBigtableUnboundedFn(Unbounded, ReadBigtableFn):
    """`ReadBigtableFn` for a stream without end."""


class ReadFromBigtableChangeStream(ReadFromChangeStream):
    """Read the changes of a table, timestamped with their commit timestamps.

    The table needs a change stream, the app profile single-cluster routing. Nothing is written to the table, and
    there is no metadata table. The docstring of this module says what is promised about order, repeats and the
    watermark.

    Args:
        project, instance, table: bare names.
        app_profile: name of an app profile with single-cluster routing.
        start: the first commit timestamp to read, inclusive. None means now: the time when this transform
            is made. A pipeline that resumes from a checkpoint ignores it.
        snapshot: "initial" (or True) reads all rows too, when a pipeline starts without a checkpoint, as records of the
            type READ. "when_needed" does so too when the service no longer has the changes after the checkpoint; cells
            that were deleted in that time cannot be known. "never" (or False) reads changes only. docs/snapshots.md
            has the promises.
        signal_file: a file of JSON lines with requests for incremental snapshots, in Debezium's layout, which all
            workers can read.
        signal_folder: a folder of such files, one for each signal; `penstock snapshot` writes there.
        signal_kafka: options of a Kafka consumer, with the topic as ``topic`` and, optionally, the key of messages that
            are meant for this pipeline as ``key``.
        chunk_rows: how many rows a snapshot reads at once, unless a signal says it.
        end: the last commit timestamp to read, inclusive. None means without end. A pipeline that
            resumes from a checkpoint may have a later end or none, but no earlier one.
        row_range: (first row key, inclusive; row key to end before, ``b""`` for none). None: all rows. Kept in
            the checkpoint; partitions that hold none of the rows are not read.
        families, columns: allow-lists: names of families, and columns as ``"family:qualifier"`` or
            ``(family, qualifier as bytes)``. An entry passes if one of them names it. Empty: all.
        ignored_families, ignored_columns: never emitted. See `filter.Selection` for deletions.
        garbage_collection: whether deletions by garbage collection are emitted too.
        source_clusters: names of clusters; changes made in others are left out. Empty: all.
        heartbeat_seconds: interval of the service's heartbeats on an idle partition; 0.1 to 60.
        unavailable_seconds: how long the service may fail to answer before the pipeline fails.
        max_concurrent_partitions: partitions that one worker process reads at once; the others take turns.
        buffer_bytes: how much one worker process may read ahead of the pipeline, as sent by the service.
        idle_stream_seconds: how long an open stream waits for the next bundle that continues at its position; 0: not at
            all.
        merge_wait_seconds: how long a partition waits for a merge before it asks the service whether the
            merge still comes.
        credentials: a picklable google.auth credentials object; None: application default credentials, found
            by each worker.
        emulator_host: ``host:port`` of an emulator; None: BIGTABLE_EMULATOR_HOST of this process, if set.
        api_endpoint: ``host:port`` of a private endpoint of the data API.

    Raises:
        UsageError: an argument is missing, malformed or out of range. Whether the stream exists and can be
            read is known only to the service: `check()` asks it, and the pipeline does so before it reads.
    """

    bounded_fn = ReadBigtableFn
    unbounded_fn = ReadBigtableUnboundedFn
    record_type = ChangeStreamMutation

    # Sources repeat the parameters that they share: a signature is what editors, the docs and the tests read. A test
    # compares names, types and defaults.
    def __init__(
        self,
        *,
        project: str,
        instance: str,
        table: str,
        app_profile: str = "default",
        start: Timelike | None = None,
        end: Timelike | None = None,
        snapshot: Literal["initial", "never", "when_needed"] | bool = "never",
        signal_file: str | None = None,
        signal_folder: str | None = None,
        signal_kafka: Mapping[str, str] | None = None,
        chunk_rows: int = 10_240,
        row_range: tuple[bytes, bytes] | None = None,
        families: Iterable[str] = (),
        columns: Iterable[str | Column] = (),
        ignored_families: Iterable[str] = (),
        ignored_columns: Iterable[str | Column] = (),
        garbage_collection: bool = True,
        source_clusters: Iterable[str] = (),
        heartbeat_seconds: float = 1.0,
        unavailable_seconds: float = 60.0,
        max_concurrent_partitions: int = 64,
        buffer_bytes: int = 32 << 20,
        idle_stream_seconds: float = 3.0,
        merge_wait_seconds: float = 0.05,
        credentials: Any = None,
        emulator_host: str | None = None,
        api_endpoint: str | None = None,
    ) -> None:
        stream = ChangeStream(
            named("project", project),
            named("instance", instance),
            named("table", table),
            *period(start, end, ahead_seconds=1),
            KeyRange(*(row_range or (b"", b""))).checked(),
        )
        connection = Connection.from_arguments(
            EMULATOR_VARIABLE,
            credentials=credentials,
            emulator_host=emulator_host,
            api_endpoint=api_endpoint,
            app_profile=named("app_profile", app_profile),
        )
        limits = Limits.checked(
            unavailable_seconds=unavailable_seconds,
            max_concurrent_partitions=max_concurrent_partitions,
            buffer_bytes=buffer_bytes,
            idle_stream_seconds=idle_stream_seconds,
            merge_wait_seconds=in_range("merge_wait_seconds", merge_wait_seconds, 0.001, 3600),
            heartbeat_seconds=in_range("heartbeat_seconds", heartbeat_seconds, 0.1, 60),
        )
        selection = Selection(
            _names("families", families),
            _columns(columns),
            _names("ignored_families", ignored_families),
            _columns(ignored_columns),
            garbage_collection,
            _names("source_clusters", source_clusters),
        )
        super().__init__(
            stream,
            Settings(
                connection=connection,
                heartbeat_ms=round(1000 * heartbeat_seconds),
                limits=limits,
                identity=stream.identity,
                end=stream.end,
                selection=selection,
                snapshots=SnapshotOptions.checked(
                    snapshot=snapshot,
                    signal_table=None,
                    signal_file=signal_file,
                    signal_folder=signal_folder,
                    signal_kafka=signal_kafka,
                    chunk_size=chunk_rows,
                    parallel_tables=1,
                ),
            ),
        )


def _names(name: str, values: Iterable[str]) -> frozenset[str]:
    if isinstance(values, str):
        raise UsageError(f"{name} must be a list of names, not {values!r}: pass [{values!r}]")
    return frozenset(values)


def _columns(values: Iterable[str | Column]) -> frozenset[Column]:
    return frozenset([_column(value) for value in _names("columns", values)])  # type: ignore[arg-type]


def _column(value: str | Column) -> Column:
    if not isinstance(value, str):
        return value
    family, colon, qualifier = value.partition(":")
    if not colon:
        raise UsageError(f"column {value!r} has no family: pass 'family:qualifier' or (family, b'qualifier')")
    return family, qualifier.encode()
