"""The splittable DoFn and the transform that read a change stream.

    changes = pipeline | ReadFromBigtableChangeStream(
        project="my-project", instance="my-instance", table="my-table")

The restriction is a `Frontier`; `process` reads its open partitions side by side, claims their steps, emits,
and sets the watermark. It ends when it is cut, when the stream is read to `end`, or when nothing of its part
may be read before other parts have been.

- **Order**: changes of one row made in one cluster come in commit order, as long as one bundle after another
  reads the restriction. Nothing is promised between rows.
- **After a crash**: reading goes on at the last checkpoint, behind the last record that it holds; what the
  checkpoint holds is not emitted again, what a lost bundle had emitted is.
- **Watermark**: the lowest of the service's *estimates* over all key ranges, waiting ones too; released by
  records and heartbeats. The service may send a record below its estimate: it comes out with its own
  timestamp, as late data.
- **State**: one entry per live partition in the restriction; nothing outside the pipeline, no metadata table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam import coders
from apache_beam.io.iobase import RestrictionTracker
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from penstock.errors import SetupError
from penstock.io.bigtable.filter import Column, Selection
from penstock.io.bigtable.frontier import Frontier, Reopened
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.metrics import ReaderMetrics
from penstock.io.bigtable.pool import Limits, Prefetcher, StreamPool, pools
from penstock.io.bigtable.preflight import check_source
from penstock.io.bigtable.record import ChangeStreamMutation
from penstock.io.bigtable.source import ChangeStream, Connection
from penstock.io.bigtable.tracker import BigtableTracker, FrontierCoder
from penstock.io.change_streams.arguments import check_times, in_range, named, require_same, whole_in_range
from penstock.io.change_streams.status import UnreachableError
from penstock.io.change_streams.tracker import (
    FrontierWatermarkEstimatorProvider,
    Poll,
    beam_watermark,
    rebalanced,
)
from penstock.timestamps import Timelike, nanoseconds

if TYPE_CHECKING:
    from penstock.io.bigtable.client import Client

EMULATOR_VARIABLE = "BIGTABLE_EMULATOR_HOST"
_TICK_SECONDS = 0.05
"""How often an idle reader claims a tick, and how often a busy one reports its watermark."""
_PATIENCE_SECONDS = 5.0
"""How long a reader that lies behind may keep a runner that wants to cut waiting for the first message."""
_DEFER_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Settings:
    """How to read, as opposed to what: it belongs to the running program and is in no checkpoint."""

    connection: Connection
    heartbeat_ms: int
    limits: Limits
    selection: Selection
    identity: str
    """What the program names, as `ChangeStream.identity`: a checkpoint of something else is not gone on with."""


class ReadChangeStreamFn(beam.DoFn, RestrictionProvider):  # type: ignore[misc, unused-ignore]
    """Turns `ChangeStream` elements into timestamped `ChangeStreamMutation`s; its own restriction provider."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self._left_open: Prefetcher | None = None

    def process(
        self,
        element: ChangeStream,
        tracker: Any = beam.DoFn.RestrictionParam(),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(FrontierWatermarkEstimatorProvider()),
    ) -> Iterator[TimestampedValue]:
        """Read until the stream's end, until cut, or until only keys of other parts are waited for."""
        frontier: Frontier = tracker.current_restriction()
        watermark.set_watermark(beam_watermark(frontier.watermark))
        patience = time.monotonic() + _PATIENCE_SECONDS
        pool = self._pool(element)
        self._left_open = Prefetcher(pool)
        with self._left_open as readers, ReaderMetrics(readers) as metrics:
            while (ready := frontier.openings) or frontier.waiting:
                readers.read(ready)
                metrics.frontier(frontier)
                emits = frontier.key_filter()
                due = time.monotonic() + _TICK_SECONDS
                for part in pool.reopen_schedule.due(frontier.waiting):
                    due = 0.0
                    if part in tracker.current_restriction().waiting:
                        if not tracker.try_claim(Reopened(part)):
                            return
                        metrics.claimed(Reopened(part))
                while time.monotonic() < due:
                    batch = readers.take(_TICK_SECONDS)
                    if batch is None:
                        expecting = time.monotonic() < patience and readers.data_expected
                        if not tracker.try_claim(Poll(expecting)):
                            return
                        break
                    for run, step in batch.runs():
                        if not tracker.try_claim(step):
                            return
                        batch.claimed += len(run)
                        records = [record for record, _ in run if record is not None]
                        if emits is not None:
                            records = [record for record in records if emits(record.row_key)]
                        metrics.emitted(records)
                        for record in records:
                            yield TimestampedValue(record, Timestamp(micros=record.commit_timestamp // 1000))
                    if batch.ends_stream:
                        metrics.claimed(batch.step(-1))
                        break
                frontier = tracker.current_restriction()
                watermark.set_watermark(beam_watermark(frontier.watermark))
        if not frontier.done:
            tracker.defer_remainder(Duration(seconds=_DEFER_SECONDS))

    def start_bundle(self) -> None:
        self._close_left_open()

    def teardown(self) -> None:
        self._close_left_open()

    def _close_left_open(self) -> None:
        """End readers whose `process` was given up in mid-flight by an error further down the pipeline."""
        if self._left_open is not None:
            self._left_open.close()
            self._left_open = None

    def _pool(self, stream: ChangeStream) -> StreamPool:
        settings = self._settings
        select = None if settings.selection.everything else settings.selection.of

        def make() -> StreamPool:
            return StreamPool(self._client(stream), settings.limits, select, stream.end is not None)

        return pools.get((stream, settings), make)

    def _client(self, stream: ChangeStream) -> Client:
        from penstock.io.bigtable.client import client_for  # google-cloud is needed from here on

        require_same(stream.identity, self._settings.identity, SetupError)
        return client_for(stream, self._settings.connection, self._settings.heartbeat_ms)

    def check(self, stream: ChangeStream) -> list[KeyRange]:
        """Return the present partitions, after the checks that come before any reading.

        Raises:
            ChangeStreamError: the stream cannot be read; the message says why and what to do.
        """
        from penstock.io.bigtable.admin import Admin

        client, connection = self._client(stream), self._settings.connection
        admin = Admin(stream, connection)
        try:
            while True:
                try:
                    check_source(
                        stream, connection.app_profile, admin.routing, admin.retention, time.time_ns()
                    )
                    partitions = client.partitions()
                    client.backoff.answered()
                    return partitions
                except UnreachableError as error:
                    client.backoff.failed(str(error), self._settings.limits.unavailable_seconds)
                    time.sleep(client.backoff.remaining_pause())
        finally:
            admin.close()

    # The restriction provider.

    def initial_restriction(self, element: ChangeStream) -> Frontier:
        """Return the present partitions, to be read from the start: after `check`, before anything is read."""
        return Frontier.starting_at(element.start, self.check(element), element.row_range, element.end)

    def create_tracker(self, restriction: Frontier) -> RestrictionTracker:
        return BigtableTracker(restriction)

    def restriction_coder(self) -> coders.Coder:
        return FrontierCoder()

    def restriction_size(self, element: ChangeStream, restriction: Frontier) -> float:
        """Return the number of segments."""
        return float(len(restriction.segments))

    def rebalance(
        self, element: ChangeStream, residuals: Sequence[tuple[Frontier, Timestamp]], n: int
    ) -> list[tuple[Frontier, Timestamp]]:
        """Join all residuals of one element and deal them out over `n` slots; see `rebalanced`."""
        return rebalanced(Frontier.join, residuals, n)


class _ReadForEverFn(ReadChangeStreamFn):
    """The same without end: what makes the output an unbounded PCollection."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: ChangeStream,
        tracker: Any = beam.DoFn.RestrictionParam(),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(FrontierWatermarkEstimatorProvider()),
    ) -> Iterator[TimestampedValue]:
        return super().process(element, tracker, watermark)


class ReadFromBigtableChangeStream(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Read the changes of a table, timestamped with their commit timestamps.

    The table needs a change stream, the app profile single-cluster routing. Nothing is written to the table, and
    there is no metadata table. `ReadChangeStreamFn` says what is promised about order, repeats and the watermark.

    Args:
        project, instance, table: bare names.
        app_profile: name of an app profile with single-cluster routing.
        start: the first commit timestamp to read, inclusive. None means now: the moment when this transform
            is made. A pipeline that resumes from a checkpoint ignores it.
        end: the last commit timestamp to read, inclusive. None means for ever. A checkpoint with
            another end is refused.
        row_range: (first row key, inclusive; row key to end before, ``b""`` for none). None: all rows. Kept in
            the checkpoint; partitions that hold none of the rows are not read.
        families, columns: allow-lists: names of families, and columns as ``"family:qualifier"`` or
            ``(family, qualifier as bytes)``. An entry passes when either names it. Empty: all.
        ignored_families, ignored_columns: what never passes. See `selection.Selection` for deletions.
        garbage_collection: whether the removal of old cells by garbage collection comes out too.
        source_clusters: names of clusters; changes made in others are left out. Empty: all.
        heartbeat_seconds: interval of the service's heartbeats on an idle partition; 0.1 to 60.
        unavailable_seconds: seconds that the service may stay away before the pipeline fails.
        max_concurrent_partitions: streams that one worker process runs at once; partitions beyond that take turns.
        buffer_bytes: how much one worker process may read ahead, as sent by the service.
        idle_stream_seconds: how long a stream waits for the next bundle that goes on at its position; 0: not at all.
        merge_wait_seconds: seconds until a partition that waits for a merge asks the service whether it still comes.
        credentials: a picklable google.auth credentials object; None: application default credentials, found
            by each worker.
        emulator_host: ``host:port`` of an emulator; None: BIGTABLE_EMULATOR_HOST of this process, if set.
        api_endpoint: ``host:port`` of a private endpoint of the data API.

    Raises:
        ValueError: an argument is missing, malformed or out of range. Whether the stream exists and can be
            read is known only to the service: `check()` asks it, and so does the pipeline before it reads.
    """

    def __init__(
        self,
        *,
        project: str,
        instance: str,
        table: str,
        app_profile: str = "default",
        start: Timelike | None = None,
        end: Timelike | None = None,
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
        super().__init__()
        now = time.time_ns()
        self._stream = ChangeStream(
            named("project", project),
            named("instance", instance),
            named("table", table),
            now if start is None else nanoseconds("start", start),
            None if end is None else nanoseconds("end", end),
            KeyRange(*(row_range or (b"", b""))).checked(),
        )
        check_times(self._stream.start, self._stream.end, now, ahead_seconds=1)
        connection = Connection.with_credentials(
            credentials,
            app_profile=named("app_profile", app_profile),
            emulator_host=emulator_host or (None if api_endpoint else os.environ.get(EMULATOR_VARIABLE)),
            api_endpoint=api_endpoint,
        )
        limits = Limits(
            in_range("unavailable_seconds", unavailable_seconds, 0, 86_400),
            whole_in_range("max_concurrent_partitions", max_concurrent_partitions, 1, 1000),
            whole_in_range("buffer_bytes", buffer_bytes, 1 << 20, 1 << 34),
            in_range("idle_stream_seconds", idle_stream_seconds, 0, 3600),
            in_range("merge_wait_seconds", merge_wait_seconds, 0.001, 3600),
        )
        selection = Selection(
            _names("families", families),
            _columns(columns),
            _names("ignored_families", ignored_families),
            _columns(ignored_columns),
            garbage_collection,
            _names("source_clusters", source_clusters),
        )
        heartbeat_ms = round(1000 * in_range("heartbeat_seconds", heartbeat_seconds, 0.1, 60))
        self._settings = Settings(connection, heartbeat_ms, limits, selection, self._stream.identity)

    @property
    def stream(self) -> ChangeStream:
        """What is read, with the start as the moment that "now" was."""
        return self._stream

    def check(self) -> list[KeyRange]:
        """Ask the service, from this process, whether the stream can be read; return its present partitions.

        Raises:
            ChangeStreamError: it cannot; the message says why and what to do.
        """
        return ReadChangeStreamFn(self._settings).check(self._stream)

    def expand(self, pbegin: beam.pvalue.PBegin) -> beam.PCollection[ChangeStreamMutation]:
        fn = ReadChangeStreamFn if self._stream.end is not None else _ReadForEverFn
        read = beam.ParDo(fn(self._settings)).with_output_types(ChangeStreamMutation)
        return pbegin | "Stream" >> beam.Create([self._stream], reshuffle=False) | "Read" >> read


def _names(name: str, values: Iterable[str]) -> frozenset[str]:
    if isinstance(values, str):
        raise ValueError(f"{name} must be a list of names, not {values!r}: pass [{values!r}]")
    return frozenset(values)


def _columns(values: Iterable[str | Column]) -> frozenset[Column]:
    return frozenset([_column(value) for value in _names("columns", values)])  # type: ignore[arg-type]


def _column(value: str | Column) -> Column:
    if not isinstance(value, str):
        return value
    family, colon, qualifier = value.partition(":")
    if not colon:
        raise ValueError(f"column {value!r} has no family: pass 'family:qualifier' or (family, b'qualifier')")
    return family, qualifier.encode()
