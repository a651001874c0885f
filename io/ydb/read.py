"""The splittable DoFn and the transform that read a YDB changefeed.

    changes = pipeline | ReadFromYdbChangefeed(
        endpoint="grpcs://ydb.example.org:2135", database="/prod/shop", table="orders", changefeed="feed")

- **Order**: changes of one primary key come in commit order, also when topic partitions split and merge. There is no
  order between keys.
- **After a crash**: the read continues at the last checkpoint, after the last record that it holds. Records before it
  are not emitted again. Records that a lost bundle had emitted are emitted again.
- **Watermark**: with barriers, the last barrier of the slowest partition. Without them, the time at which YDB writes,
  minus `delivery_seconds`. A record that is below the watermark gets the watermark as its event time, so none is late.
- **State**: one entry per open or waiting topic partition in the restriction. Nothing is written to YDB, except the
  offsets of `consumer`, if one is given.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from typing_extensions import Self

from penstock.datasets import Dataset, ReadTable, host_and_port
from penstock.event.model import Source
from penstock.extras import extra_packages
from penstock.io.change_streams.arguments import in_range, named, period
from penstock.io.change_streams.incremental.options import NEVER
from penstock.io.change_streams.lineage import LineageEvent
from penstock.io.change_streams.read_fn import ReadChangeStreamFn, Unbounded
from penstock.io.change_streams.retention import retention
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.transform import ReadFromChangeStream
from penstock.io.ydb import coder  # noqa: F401 - registers the coders of streams and records
from penstock.io.ydb.description import Description
from penstock.io.ydb.frontier import Frontier
from penstock.io.ydb.lineage import lineage_events
from penstock.io.ydb.metrics import YdbMetrics
from penstock.io.ydb.options import YdbChangefeedOptions
from penstock.io.ydb.pool import StreamPool
from penstock.io.ydb.preflight import (
    check_changefeed,
    check_positions,
    check_retention,
    check_scan_is_whole,
    check_snapshot,
    first_frontier,
)
from penstock.io.ydb.record import ChangefeedRecord
from penstock.io.ydb.source import ChangeStream, Connection, Settings, checked_path, checked_scan
from penstock.io.ydb.steps import Rules
from penstock.io.ydb.tables import Tables
from penstock.io.ydb.tracker import FrontierCoder, YdbTracker
from penstock.measurement import Measurement

if TYPE_CHECKING:
    from penstock.io.ydb.client import Client

_LOGGER = logging.getLogger(__name__)


class ReadYdbFn(ReadChangeStreamFn):
    """Turns `ChangeStream` elements into timestamped `ChangefeedRecord`s."""

    frontier_type = Frontier
    tracker_type = YdbTracker
    frontier_coder = FrontierCoder
    metrics_type = YdbMetrics
    no_rewind = (
        "positions in a topic of YDB are offsets, and do not follow the commit times. Restore the target by its own "
        "means, and start a new job with another checkpoint folder and a start before the time"
    )

    def connect(self, stream: ChangeStream) -> Client:
        # The client imports the SDK, which only a running pipeline needs.
        with extra_packages("ydb"):
            from penstock.io.ydb.client import client_for

        return client_for(stream, self._settings.connection)

    def open_pool(self, stream: ChangeStream) -> StreamPool:
        client, settings = self._client(stream), self._settings
        limit = settings.limits.unavailable_seconds
        found = client.backoff.ask(lambda: self.ask_service(client, stream), limit)
        tables = Tables(found.table)
        rules = Rules.of(
            stream, found, settings.delivery_seconds, tables.at, skips_scan=settings.snapshot == NEVER
        )

        def check(frontier: Frontier) -> None:
            check_positions(stream, frontier, found, time.time_ns())

        def refresh() -> None:
            columns, key = client.describe_columns()
            tables.described = msgspec.structs.replace(found.table, columns=columns, key=key)

        return StreamPool(
            client,
            rules,
            settings.limits,
            settings.heartbeat_ms / 1000,
            consumer=settings.consumer,
            check=check,
            # A changefeed with schema changes tells new columns itself, at their place between the records.
            refresh=None if found.schema_changes else refresh,
        )

    def ask_service(self, client: Client, stream: ChangeStream) -> Description:
        found, names = client.describe()
        check_changefeed(stream, found, names, self._settings.consumer)
        assert found is not None, "check_changefeed raises"
        check_snapshot(stream, found, self._settings.snapshot)
        return found

    def check_start(self, stream: ChangeStream) -> None:
        super().check_start(stream)
        found = self.check(stream)
        check_retention(stream, found, time.time_ns())
        check_scan_is_whole(stream, found, self._settings.snapshot)

    def first_frontier(self, stream: ChangeStream, said: Description) -> Frontier:
        """Return the partitions of the topic, to be read from the start."""
        return first_frontier(stream, said)

    def lineage_events(self, step: Any, frontier: Any) -> Iterable[LineageEvent]:
        return lineage_events(step, frontier)


class ReadYdbUnboundedFn(Unbounded, ReadYdbFn):
    """The same for a stream without end."""


class ReadFromYdbChangefeed(YdbChangefeedOptions, ReadFromChangeStream):
    """Read the changes of a table from its changefeed, timestamped with their commit times.

    For YDB 23.1 and later; auto-partitioned topics from 24.3. All modes and the formats JSON, DEBEZIUM_JSON and
    DYNAMODB_STREAMS_JSON are read. The docstring of this module says what is promised about order, repeats and the
    watermark. At most one kind of credentials may be given. Without any, the SDK takes them from the YDB_* environment
    variables of the workers, or else access is anonymous.

    Raises:
        UsageError: an argument is missing, malformed or out of range. Whether the changefeed exists is known only to
            the server: `check()` asks it, and the pipeline does so before it reads.
    """

    bounded_fn = ReadYdbFn
    unbounded_fn = ReadYdbUnboundedFn
    record_type = ChangefeedRecord
    _settings: Settings

    def __post_init__(self) -> None:
        stream = ChangeStream(
            checked_path("database", self.database, absolute=True),
            checked_path("table", self.table, absolute=False),
            named("changefeed", self.changefeed),
            *period(0 if self.start is None else self.start, self.end, ahead_seconds=600),
        )
        settings = Settings(
            connection=Connection.checked(self),  # type: ignore[arg-type]
            limits=Limits.checked(self, max_concurrent_partitions=self.max_concurrent_partitions),
            heartbeat_ms=round(1000 * in_range("heartbeat_seconds", self.heartbeat_seconds, 0.05, 60)),
            identity=stream.identity,
            end=stream.end,
            consumer=self.consumer or "",
            delivery_seconds=in_range("delivery_seconds", self.delivery_seconds, 0, 86_400),
            snapshot="" if self.snapshot is None else checked_scan(self.snapshot),
        )
        ReadFromChangeStream.__init__(self, stream, settings)

    def for_preview(self) -> Self:
        """Return a copy that leaves no trace: it commits no offset of a consumer; see the base class."""
        changed = super().for_preview()
        changed._settings = replace(changed._settings, consumer="")
        return changed

    def measure(self) -> list[Measurement]:
        """Return the retention period of the changefeed; see `penstock.measurement`. Asks once, without retries.

        Raises:
            UnreachableError: YDB does not answer now.
            ChangeStreamError: it refused to answer.
        """
        found, _ = self.bounded_fn(self._settings).connect(self._stream).describe()
        return [] if found is None else retention(self._stream.changefeed, found.retention_seconds)

    def check(self) -> Description:
        """Ask YDB whether the changefeed can be read; return its description, and log its limitations.

        Raises:
            ChangeStreamError: it cannot be read; the message says why and what to do.
            UnavailableError: YDB did not answer for `unavailable_seconds`.
        """
        found: Description = super().check()
        for limitation in found.limitations:
            _LOGGER.info("%s: %s", self._stream, limitation)
        return found

    def tables_read(self) -> list[ReadTable]:
        """Return the tables as datasets; see `penstock.datasets`. It asks and raises as `capture_type` does."""
        # OpenLineage has no rule for YDB. The name is the path of the table, as for files.
        at, namespace = self._stream, f"ydb://{host_and_port(self.endpoint, 2136)}"
        found: Description = self.bounded_fn(self._settings).check(at)
        columns = tuple(each.name for each in found.table.columns)
        source = Source("ydb", database=at.database, table=at.table)
        return [ReadTable(source, Dataset(namespace, at.table_path, columns))]

    def capture_type(self) -> str:
        """Return the mode of the changefeed. It asks the server; raises what `check` raises."""
        found: Description = self.bounded_fn(self._settings).check(self._stream)
        return found.table.mode
