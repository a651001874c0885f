"""The transform that reads tables as of one timestamp.

    rows = pipeline | ReadFromSpannerTable(
        project="my-project", instance="my-instance", database="bank", tables=["Accounts", "sales.Orders"])

Each element is a `DataChangeRecord` with the mod_type READ: up to a few hundred rows of one table, each a mod with its
keys and new values. This is the shape of a change stream's records, so `ToChangeEvents` turns rows and changes into one
kind of event, and a sink needs no second path.

- **Order**: none between rows. One key comes once.
- **After a crash**: the read continues after the last row of each key range that is in the checkpoint. Rows before it
  are not emitted again. Rows that a lost bundle had emitted are emitted again.
- **Watermark**: held at the timestamp of the snapshot until all rows are read.
- **State**: two keys per key range that is not finished, in the restriction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apache_beam as beam

from penstock.errors import UsageError
from penstock.extras import extra_packages
from penstock.io.change_streams.arguments import named, whole_in_range
from penstock.io.change_streams.coders import ChangeStreamCoder
from penstock.io.change_streams.kinds import StreamKind
from penstock.io.change_streams.read_fn import ReadChangeStreamFn
from penstock.io.change_streams.source import WithIdentity
from penstock.io.change_streams.transform import ReadFromChangeStream
from penstock.io.spanner.initial_scan import plan
from penstock.io.spanner.initial_scan.frontier import ScanFrontier, Table
from penstock.io.spanner.initial_scan.read import (
    ScanKind,
    ScanOptions,
    SpannerSettings,
    plan_with_retries,
    scan_client,
)
from penstock.io.spanner.initial_scan.snapshot import begin_snapshot, ranges_of
from penstock.io.spanner.metrics import SpannerMetrics
from penstock.io.spanner.options import SpannerTableOptions, Tables
from penstock.io.spanner.prefetch import Limits
from penstock.io.spanner.record import DataChangeRecord
from penstock.io.spanner.source import Connection
from penstock.io.spanner.tracker import FrontierCoder, SpannerTracker
from penstock.timestamps import format_timestamp, nanoseconds

if TYPE_CHECKING:
    from penstock.io.spanner.client import Client


@dataclass(frozen=True, slots=True)
class TableRead(WithIdentity):
    """Tables of one database as of `at` (nanoseconds; None: the time when the read begins).

    `tables` has the name of each table and the columns to read; no columns means all.
    """

    project: str
    instance: str
    database: str
    tables: tuple[tuple[str, tuple[str, ...]], ...]
    at: int | None

    @property
    def database_path(self) -> str:
        """The database's resource name."""
        return f"projects/{self.project}/instances/{self.instance}/databases/{self.database}"

    @property
    def start(self) -> int | None:
        """The time of the snapshot."""
        return self.at

    @property
    def end(self) -> int | None:  # type: ignore[override]
        """The time of the snapshot: a snapshot has no changes after it."""
        return self.at

    @property
    def identity(self) -> str:
        """The tables and their time. A checkpoint with another identity is rejected."""
        return f"{self}, at {'its beginning' if self.at is None else format_timestamp(self.at)}"

    def __str__(self) -> str:
        named_ = (f"{name} ({', '.join(columns)})" if columns else name for name, columns in self.tables)
        return f"tables {', '.join(named_)} of {self.database_path}"


class TableReadCoder(ChangeStreamCoder):
    """Encodes a `TableRead`."""

    value_type = TableRead
    what = "a table snapshot"

    def stream(self, fields: list[Any]) -> TableRead:
        project, instance, database, tables, at = fields
        return TableRead(
            project, instance, database, tuple((name, tuple(columns)) for name, columns in tables), at
        )


class ReadSpannerTableFn(ReadChangeStreamFn):
    """Turns `TableRead` elements into records of rows."""

    tracker_type = SpannerTracker
    frontier_type = ScanFrontier
    frontier_coder = FrontierCoder
    metrics_type = SpannerMetrics

    def kinds(self) -> tuple[StreamKind, ...]:
        return (ScanKind(self),)

    def connect(self, snapshot: TableRead) -> Client:
        # The client imports google-cloud-spanner, which only a running pipeline needs.
        with extra_packages("spanner"):
            from penstock.io.spanner.client import client_for

        return client_for(snapshot, self._settings.connection)

    def check_start(self, snapshot: TableRead) -> None:
        """Do nothing: whether the time can be read is checked with the tables, see `ask_service`."""

    def ask_service(self, client: Client, snapshot: TableRead) -> tuple[Table, ...]:
        reads = scan_client(self, snapshot)
        if snapshot.at is not None:
            begin_snapshot(reads, snapshot.at, snapshot.database_path, emulated=False)
        return self._tables(reads, snapshot, snapshot.at)

    def first_frontier(self, snapshot: TableRead, said: Any) -> ScanFrontier:
        def plan_ranges(client: Any) -> ScanFrontier:
            transaction = begin_snapshot(
                client,
                snapshot.at,
                snapshot.database_path,
                emulated=self._settings.connection.emulated,
            )
            tables = self._tables(client, snapshot, transaction.timestamp)
            ranges = ranges_of(client, tables, transaction, self._settings.snapshot.max_ranges)
            return ScanFrontier(transaction.timestamp, tables, ranges)

        return plan_with_retries(self, snapshot, plan_ranges)

    def read_on(self, element: TableRead) -> None:
        """Return None: nothing follows a snapshot."""

    def split(self, element: TableRead, restriction: ScanFrontier) -> list[ScanFrontier]:
        """Return one restriction for each range, for runners that cannot rebalance; a runner that can joins them."""
        return restriction.deal(max(1, len(restriction.ranges)))

    @staticmethod
    def _tables(client: Any, snapshot: TableRead, timestamp: int | None) -> tuple[Table, ...]:
        found = plan.tables_of(lambda sql: client.query(sql, timestamp))
        return plan.chosen_tables(found, snapshot.tables, snapshot.database_path)


class ReadFromSpannerTable(SpannerTableOptions, ReadFromChangeStream):
    """Read every row of tables as of one timestamp, in parallel, as records with the mod_type READ.

    For both dialects and every column type. Rows are read at one exact timestamp, also by workers that start later and
    after a restart. The docstring of this module says what is promised about order, repeats and the watermark.

    Raises:
        UsageError: an argument is missing, malformed or out of range. `check()` asks the service whether the tables
            exist and can be read at that time, and the pipeline does so before it reads.
    """

    bounded_fn = unbounded_fn = ReadSpannerTableFn
    record_type = DataChangeRecord

    def __post_init__(self) -> None:
        snapshot = TableRead(
            named("project", self.project),
            named("instance", self.instance),
            named("database", self.database),
            checked_tables(self.tables),
            None if self.at is None else nanoseconds("at", self.at),
        )
        settings = SpannerSettings(
            connection=Connection.checked(self),
            heartbeat_ms=0,
            limits=Limits.checked(self, poll_seconds=0.2),
            identity=snapshot.identity,
            end=snapshot.end,
            snapshot=ScanOptions(
                max_ranges=whole_in_range("max_ranges", self.max_ranges, 1, 10_000),
                data_boost=self.data_boost,
            ),
        )
        ReadFromChangeStream.__init__(self, snapshot, settings)


def checked_tables(tables: Tables) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return names of tables with their columns.

    Raises:
        UsageError: there is none, one is named twice, or a name is no text.
    """
    if isinstance(tables, str):
        tables = [tables]
    pairs = tables.items() if isinstance(tables, Mapping) else [(name, ()) for name in tables]
    found = tuple((name, tuple(columns)) for name, columns in pairs)
    if not found:
        raise UsageError("tables is empty: pass the name of at least one table")
    for name, columns in found:
        if not isinstance(name, str) or not name:
            raise UsageError(f"tables must be names of tables, not {name!r}")
        if sum(other == name for other, _ in found) > 1 or len(set(columns)) < len(columns):
            raise UsageError(f"tables names {name}, or a column of it, twice: leave one out")
    return found


beam.coders.registry.register_coder(TableRead, TableReadCoder)
