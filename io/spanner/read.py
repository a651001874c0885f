"""The splittable DoFn and the transform that read a change stream.

    changes = pipeline | ReadFromSpannerChangeStream(
        project="my-project", instance="my-instance", database="bank", change_stream="AllChanges")

The restriction is a `Frontier`; `process` reads its open partitions side by side, claims each step, emits,
and sets the watermark. It ends when it is cut, when the stream is read to `end`, or when nothing of its part
may be read before other parts have been.

- **Order**: changes of one primary key come in commit order, as long as one bundle after another reads the
  restriction. Nothing is promised between keys.
- **After a crash**: reading goes on at the last checkpoint, even between two records of one timestamp; what
  the checkpoint holds is not emitted again, what a lost bundle had emitted is.
- **Watermark**: held by the slowest open partition and by the start of every waiting one; released as records
  and heartbeats arrive, also while nothing changes.
- **State**: one entry per live partition in the restriction; nothing outside the pipeline, no metadata table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam import coders
from apache_beam.io.iobase import RestrictionTracker
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from penstock.errors import SetupError
from penstock.io.change_streams.arguments import check_times, in_range, named, require_same, whole_in_range
from penstock.io.change_streams.status import UnreachableError
from penstock.io.change_streams.tracker import (
    FrontierWatermarkEstimatorProvider,
    Poll,
    beam_watermark,
    rebalanced,
)
from penstock.io.spanner.frontier import Advanced, Frontier, Step, abbreviate
from penstock.io.spanner.metrics import ReaderMetrics
from penstock.io.spanner.pool import StreamPool, pools
from penstock.io.spanner.prefetch import Limits, Prefetcher, Window
from penstock.io.spanner.preflight import check_source
from penstock.io.spanner.query import change_stream_query, checked_name
from penstock.io.spanner.record import DataChangeRecord
from penstock.io.spanner.source import ChangeStream, Connection
from penstock.io.spanner.tracker import FrontierCoder, SpannerTracker
from penstock.timestamps import NANOS, Timelike, format_timestamp, nanoseconds

if TYPE_CHECKING:
    from penstock.io.spanner.client import Client

EMULATOR_VARIABLE = "SPANNER_EMULATOR_HOST"
_TICK_SECONDS = 0.05
"""How often an idle reader claims a tick, and how often a busy one reports its watermark."""
_PATIENCE_SECONDS = 10.0
"""How long a reader that lies behind may keep a runner that wants to cut waiting for the first row."""
_DEFER_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Settings:
    """How to read, as opposed to what: it belongs to the running program and is in no checkpoint."""

    connection: Connection
    heartbeat_ms: int
    limits: Limits
    identity: str
    """What the program names, as `ChangeStream.identity`: a checkpoint of something else is not gone on with."""


class ReadChangeStreamFn(beam.DoFn, RestrictionProvider):  # type: ignore[misc, unused-ignore]
    """Turns `ChangeStream` elements into timestamped `DataChangeRecord`s; its own restriction provider."""

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
        """Read until the stream's end, until cut, or until only partitions of other parts are waited for."""
        frontier: Frontier = tracker.current_restriction()
        watermark.set_watermark(beam_watermark(frontier.watermark))
        patience = time.monotonic() + _PATIENCE_SECONDS
        with self._borrowed(element, frontier) as readers, ReaderMetrics(readers) as metrics:
            while frontier.open:
                readers.read(frontier.open)
                for record, step in _steps(readers, patience):
                    if not tracker.try_claim(step):
                        return
                    metrics.claimed(record, step)
                    if record is not None:
                        yield TimestampedValue(record, Timestamp(micros=record.commit_timestamp // 1000))
                frontier = tracker.current_restriction()
                metrics.waiting(len(frontier.waiting))
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

    @contextmanager
    def _borrowed(self, stream: ChangeStream, frontier: Frontier) -> Iterator[Prefetcher]:
        pool = pools.get((stream, self._settings, frontier.end), lambda: self._pool(stream, frontier.end))
        with pool.checkout(frontier.open) as self._left_open:
            yield self._left_open
            self._left_open = None

    def _pool(self, stream: ChangeStream, end: int | None) -> StreamPool:
        client = self._client(stream)

        def ask(token: str, start_timestamp: int, end_timestamp: int) -> Window:
            query = change_stream_query(
                stream.change_stream, token, start_timestamp, end_timestamp, self._settings.heartbeat_ms
            )
            ahead = max(0, end_timestamp - client.clock.now()) / NANOS
            return client.ask(query, f"{format_timestamp(start_timestamp)} in {abbreviate(token)}", ahead)

        def prefetcher() -> Prefetcher:
            return Prefetcher(ask, client.backoff, self._settings.limits, end, client.clock.now)

        return StreamPool(prefetcher, client.clock.synchronize)

    def _client(self, stream: ChangeStream) -> Client:
        from penstock.io.spanner.client import client_for  # google-cloud is needed from here on

        require_same(stream.identity, self._settings.identity, SetupError)
        return client_for(stream, self._settings.connection)

    def check(self, stream: ChangeStream) -> dict[str, str]:
        """Return the change stream's options after the checks that come before any reading.

        Raises:
            SetupError: the stream cannot be read; the message says why and what to do.
            UnavailableError: nobody answered for `unavailable_seconds` seconds.
        """
        client = self._client(stream)
        while True:
            try:
                return check_source(stream, client.rows)
            except UnreachableError as error:
                client.backoff.failed(str(error), self._settings.limits.unavailable_seconds)
                time.sleep(client.backoff.remaining_pause())

    # The restriction provider.

    def initial_restriction(self, element: ChangeStream) -> Frontier:
        """Return the root partition alone, after `check`: an error is raised before anything is read."""
        self.check(element)
        emulated = self._settings.connection.emulator_host is not None
        return Frontier.starting_at(element.start, element.end, globally_ordered=emulated)

    def create_tracker(self, restriction: Frontier) -> RestrictionTracker:
        return SpannerTracker(restriction)

    def restriction_coder(self) -> coders.Coder:
        return FrontierCoder()

    def restriction_size(self, element: ChangeStream, restriction: Frontier) -> float:
        """Return the number of partitions that are open or waiting."""
        return float(len(restriction.open) + len(restriction.waiting))

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


class ReadFromSpannerChangeStream(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Read the data change records of a change stream, timestamped with their commit timestamps.

    GoogleSQL databases; every value capture type (OLD_AND_NEW_VALUES is what the rest of Penstock is made
    for). Nothing is written to the database. `ReadChangeStreamFn` says what is promised about order, repeats
    and the watermark.

    Args:
        project, instance, database, change_stream: names; the change stream's without READ_.
        start: the first commit timestamp to read, inclusive. None means now: the moment when this transform
            is made. A pipeline that resumes from a checkpoint ignores it.
        end: the last commit timestamp to read, inclusive. None means for ever. A checkpoint with
            another end is refused.
        heartbeat_seconds: interval of the service's heartbeats in a long idle query; 1 to 300.
        poll_seconds: length of the time window of one query; 0.01 to 60. A shorter window delivers sooner where the
            service sends rows only at the end of a query, and needs more queries.
        unavailable_seconds: seconds that the service may stay away before the pipeline fails.
        max_concurrent_partitions: queries that one worker process runs at once; partitions beyond that take turns.
        buffer_bytes: how much a bundle may read ahead, as sent by the service.
        idle_stream_seconds: how long a reading goes on for the next bundle that continues at its positions; 0: not at
            all, and a bundle ends when its queries have.
        credentials: a picklable google.auth credentials object; None: application default credentials, found
            by each worker.
        database_role: for fine-grained access control.
        emulator_host: ``host:port`` of an emulator; None: SPANNER_EMULATOR_HOST of this process, if set.
        api_endpoint: ``host:port`` of a regional or private endpoint, or of a self-managed one.
        plain_text: speak to `api_endpoint` without TLS and credentials.

    Raises:
        ValueError: an argument is missing, malformed or out of range. Whether the stream exists and can be
            read is known only to the service: `check()` asks it, and so does the pipeline before it reads.
    """

    def __init__(
        self,
        *,
        project: str,
        instance: str,
        database: str,
        change_stream: str,
        start: Timelike | None = None,
        end: Timelike | None = None,
        heartbeat_seconds: float = 1.0,
        poll_seconds: float = 0.2,
        unavailable_seconds: float = 60.0,
        max_concurrent_partitions: int = 32,
        buffer_bytes: int = 32 << 20,
        idle_stream_seconds: float = 3.0,
        credentials: Any = None,
        database_role: str | None = None,
        emulator_host: str | None = None,
        api_endpoint: str | None = None,
        plain_text: bool = False,
    ) -> None:
        super().__init__()
        now = time.time_ns()
        self._stream = ChangeStream(
            named("project", project),
            named("instance", instance),
            named("database", database),
            checked_name(named("change_stream", change_stream)),
            now if start is None else nanoseconds("start", start),
            None if end is None else nanoseconds("end", end),
        )
        check_times(self._stream.start, self._stream.end, now, ahead_seconds=600)
        if plain_text and not api_endpoint:
            raise ValueError("plain_text is for an api_endpoint: pass one, or leave plain_text out")
        connection = Connection.with_credentials(
            credentials,
            emulator_host=emulator_host or (None if api_endpoint else os.environ.get(EMULATOR_VARIABLE)),
            api_endpoint=api_endpoint,
            plain_text=plain_text,
            database_role=database_role,
        )
        limits = Limits(
            in_range("poll_seconds", poll_seconds, 0.01, 60),
            in_range("unavailable_seconds", unavailable_seconds, 0, 86_400),
            whole_in_range("max_concurrent_partitions", max_concurrent_partitions, 1, 1000),
            whole_in_range("buffer_bytes", buffer_bytes, 1 << 20, 1 << 34),
            in_range("idle_stream_seconds", idle_stream_seconds, 0, 3600),
        )
        heartbeat_ms = round(1000 * in_range("heartbeat_seconds", heartbeat_seconds, 1, 300))
        self._settings = Settings(connection, heartbeat_ms, limits, self._stream.identity)

    @property
    def stream(self) -> ChangeStream:
        """What is read, with the start as the moment that "now" was."""
        return self._stream

    def check(self) -> dict[str, str]:
        """Ask the service, from this process, whether the stream can be read; return the stream's options.

        Raises:
            ChangeStreamError: it cannot; the message says why and what to do.
        """
        return ReadChangeStreamFn(self._settings).check(self._stream)

    def expand(self, pbegin: beam.pvalue.PBegin) -> beam.PCollection[DataChangeRecord]:
        fn = ReadChangeStreamFn if self._stream.end is not None else _ReadForEverFn
        read = beam.ParDo(fn(self._settings)).with_output_types(DataChangeRecord)
        return pbegin | "Stream" >> beam.Create([self._stream], reshuffle=False) | "Read" >> read


def _steps(readers: Prefetcher, patience: float) -> Iterator[tuple[DataChangeRecord | None, Step | Poll]]:
    """Yield steps to claim until lineage moves, nothing comes, or a watermark report is due.

    After the moment `patience` nothing is expected any more, and the runner may cut an empty bundle.
    """
    due = time.monotonic() + _TICK_SECONDS
    while time.monotonic() < due:
        batch = readers.take(_TICK_SECONDS)
        if batch is None:
            break
        for taken in batch.steps:
            yield taken
            batch.claimed += 1  # asked for the next one: this one was granted
        if not isinstance(batch.steps[-1][1], Advanced):
            return
    patient = time.monotonic() < patience
    yield (
        None,
        Poll(
            data_expected=patient and readers.data_expected,
            first_record_pending=patient and readers.first_record_pending,
        ),
    )
