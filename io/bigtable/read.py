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
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.datasets import ReadTable
from penstock.errors import UsageError
from penstock.event.model import Source
from penstock.extras import extra_packages
from penstock.io.bigtable import coder  # noqa: F401 - registers the coders of streams and records
from penstock.io.bigtable.datasets import bigtable_dataset
from penstock.io.bigtable.filter import Column, Selection
from penstock.io.bigtable.frontier import Frontier
from penstock.io.bigtable.incremental import BigtableRecords, RowReader
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.lineage import lineage_events
from penstock.io.bigtable.metrics import BigtableMetrics
from penstock.io.bigtable.options import BigtableStreamOptions
from penstock.io.bigtable.pool import Limits, StreamPool
from penstock.io.bigtable.preflight import check_retention, check_source
from penstock.io.bigtable.record import ChangeStreamMutation
from penstock.io.bigtable.source import EMULATOR_VARIABLE, ChangeStream, Connection
from penstock.io.bigtable.tracker import BigtableTracker, FrontierCoder
from penstock.io.change_streams import settings
from penstock.io.change_streams.arguments import in_range, named, period
from penstock.io.change_streams.incremental.options import SnapshotOptions
from penstock.io.change_streams.incremental_kind import IncrementalKind
from penstock.io.change_streams.kinds import StreamKind
from penstock.io.change_streams.lineage import LineageEvent
from penstock.io.change_streams.read_fn import ReadChangeStreamFn, Unbounded
from penstock.io.change_streams.retention import retention
from penstock.io.change_streams.transform import ReadFromChangeStream
from penstock.measurement import Measurement
from penstock.timestamps import NANOS

if TYPE_CHECKING:
    from penstock.io.bigtable.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(settings.Settings):
    """The common settings, and what is emitted."""

    selection: Selection


class ReadBigtableFn(ReadChangeStreamFn):
    """Turns `ChangeStream` elements into timestamped `ChangeStreamMutation`s."""

    frontier_type = Frontier
    tracker_type = BigtableTracker
    frontier_coder = FrontierCoder
    metrics_type = BigtableMetrics
    no_rewind = (
        "Bigtable estimates until when a change stream is complete, so a change from before the time may come after "
        "it, and would be lost. Restore the target by its own means, and start a new job with another checkpoint "
        "folder and a start well before the time"
    )
    split_deferral_seconds = math.inf
    """Each stream has its own limit, which depends on the heartbeat interval; see `Prefetcher`."""

    def connect(self, stream: ChangeStream) -> Client:
        # The client imports google-cloud-bigtable, which only a running pipeline needs.
        with extra_packages("bigtable"):
            from penstock.io.bigtable.client import client_for

        return client_for(stream, self._settings.connection, self._settings.heartbeat_ms)

    def kinds(self) -> tuple[StreamKind, ...]:
        return (IncrementalKind(self), *super().kinds())

    def open_pool(self, stream: ChangeStream) -> StreamPool:
        settings, client = self._settings, self._client(stream)
        select = None if settings.selection.everything else settings.selection.apply
        return StreamPool(client, settings.limits, select, stream.end is not None)

    def stream_from_now(self, element: ChangeStream) -> Frontier:
        # Rounded as the service rounds: otherwise changes could come from before the first watermark.
        now = time.time_ns() // 1000 * 1000
        return Frontier.starting_at(now, self.check(element), element.row_range, element.end)

    def lineage_events(self, step: Any, frontier: Any) -> Iterable[LineageEvent]:
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
        check_retention(stream, lambda: self.retention(stream), time.time_ns())

    def retention(self, stream: ChangeStream) -> int:
        """Return how long the service keeps changes, in nanoseconds, or 0 if it does not say; see `Admin`."""
        from penstock.io.bigtable.admin import Admin

        with closing(Admin(stream, self._settings.connection)) as admin:
            return admin.retention()

    def first_time_after(self, end: int) -> int:
        # The service rounds timestamps down to microseconds: `end + 1` would be the same time again.
        return (end // 1000 + 1) * 1000

    def first_frontier(self, stream: ChangeStream, said: list[KeyRange]) -> Any:
        """Return the present partitions, to be read from the start, and an initial snapshot if it is wanted."""
        frontier = Frontier.starting_at(stream.start, said, stream.row_range, stream.end)
        return IncrementalKind(self).first(frontier)


class ReadBigtableUnboundedFn(Unbounded, ReadBigtableFn):
    """`ReadBigtableFn` for a stream without end."""


class ReadFromBigtableChangeStream(BigtableStreamOptions, ReadFromChangeStream):
    """Read the changes of a table, timestamped with their commit timestamps.

    The table needs a change stream, the app profile single-cluster routing. Nothing is written to the table, and
    there is no metadata table. The docstring of this module says what is promised about order, repeats and the
    watermark.

    Raises:
        UsageError: an argument is missing, malformed or out of range. Whether the stream exists and can be
            read is known only to the service: `check()` asks it, and the pipeline does so before it reads.
    """

    bounded_fn: ClassVar[type[ReadBigtableFn]] = ReadBigtableFn
    unbounded_fn = ReadBigtableUnboundedFn
    record_type = ChangeStreamMutation

    def __post_init__(self) -> None:
        stream = ChangeStream(
            named("project", self.project),
            named("instance", self.instance),
            named("table", self.table),
            *period(self.start, self.end, ahead_seconds=1),
            KeyRange(*(self.row_range or (b"", b""))).checked(),
        )
        settings = Settings(
            connection=Connection.of_options(
                EMULATOR_VARIABLE, self, app_profile=named("app_profile", self.app_profile)
            ),
            limits=Limits.checked(
                self,
                max_concurrent_partitions=self.max_concurrent_partitions,
                merge_wait_seconds=in_range("merge_wait_seconds", self.merge_wait_seconds, 0.001, 3600),
                heartbeat_seconds=in_range("heartbeat_seconds", self.heartbeat_seconds, 0.1, 60),
            ),
            heartbeat_ms=round(1000 * self.heartbeat_seconds),
            identity=stream.identity,
            end=stream.end,
            selection=Selection(
                _names("families", self.families),
                _columns("columns", self.columns),
                _names("ignored_families", self.ignored_families),
                _columns("ignored_columns", self.ignored_columns),
                self.garbage_collection,
                _names("source_clusters", self.source_clusters),
            ),
            snapshots=SnapshotOptions.checked(self, self.snapshot),
        )
        ReadFromChangeStream.__init__(self, stream, settings)

    def measure(self) -> list[Measurement]:
        """Return the retention period of the change stream; see `penstock.measurement`. Asks once, without retries.

        Raises:
            UnreachableError: the service does not answer now.
        """
        kept = self.bounded_fn(self._settings).retention(self._stream)
        return retention(self._stream.table, kept / NANOS)

    def tables_read(self) -> list[ReadTable]:
        """Return the tables as datasets; see `penstock.datasets`. It asks nothing."""
        at = self._stream
        source = Source("bigtable", f"{at.project}/{at.instance}", table=at.table)
        return [ReadTable(source, bigtable_dataset(at.project, at.instance, at.table))]


def _names(name: str, values: Iterable[str]) -> frozenset[str]:
    # A text is a collection too: its characters would be taken for names.
    if isinstance(values, str):
        raise UsageError(f"{name} must be a list of names, not {values!r}: pass [{values!r}]")
    return frozenset(values)


def _columns(name: str, values: Iterable[str | Column]) -> frozenset[Column]:
    return frozenset([_column(value) for value in _names(name, values)])  # type: ignore[arg-type]


def _column(value: str | Column) -> Column:
    if not isinstance(value, str):
        return value
    family, colon, qualifier = value.partition(":")
    if not colon:
        raise UsageError(f"column {value!r} has no family: pass 'family:qualifier' or (family, b'qualifier')")
    return family, qualifier.encode()
