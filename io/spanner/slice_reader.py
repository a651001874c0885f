"""Reads closed slices of a change stream: where they can end, which parts they have, and the records of a part.
Reads the rows of a table at one time, too.

The rules are in `slice`. A part is read with the threads of `prefetch`, so it has the same limits, retries and errors
as the Beam source. Any process can plan a slice and any other can read its parts; they share only the service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import DecodeError, LineageError, SetupError
from penstock.extras import extra_packages
from penstock.io.change_streams.prefetch import ReadAhead
from penstock.io.change_streams.status import UnreachableError
from penstock.io.change_streams.undecodable import UndecodableRecord
from penstock.io.spanner.filter import Selection
from penstock.io.spanner.frontier import abbreviate
from penstock.io.spanner.initial_scan import plan
from penstock.io.spanner.initial_scan.frontier import KeyRange, Table
from penstock.io.spanner.initial_scan.rows import RowReader
from penstock.io.spanner.initial_scan.snapshot import begin_snapshot
from penstock.io.spanner.prefetch import Limits, Prefetcher
from penstock.io.spanner.preflight import StreamFacts, check_source, check_tables
from penstock.io.spanner.query import (
    GOOGLESQL,
    change_stream_query,
    function_of,
    read_functions,
    token_of,
)
from penstock.io.spanner.record import ColumnType, DataChangeRecord
from penstock.io.spanner.slice import SlicePart, live_partitions, slice_parts
from penstock.io.spanner.source import ChangeStream, Connection
from penstock.io.spanner.state import Call
from penstock.suggestions import did_you_mean
from penstock.tables import EVERY_TABLE
from penstock.timestamps import NANOS, format_timestamp

if TYPE_CHECKING:
    from penstock.io.spanner.client import Client
    from penstock.io.spanner.initial_scan.client import ScanClient

Answer = TypeVar("Answer")
_MICRO = 1000
_POLL_SECONDS = 0.5
"""How long `read` waits for rows before it looks again whether work remains."""


@dataclass(frozen=True, slots=True)
class RowsPart:
    """The rows of a key range of a table at `timestamp`, in nanoseconds. Picklable."""

    table: Table
    range: KeyRange
    timestamp: int


@dataclass(frozen=True, slots=True)
class SliceReader:
    """One change stream, its connection and the selection of records. Picklable; each process has its own client.

    The start and the end of `stream` are not used: a slice has its own.
    """

    stream: ChangeStream
    connection: Connection
    limits: Limits
    heartbeat_ms: int
    selection: Selection
    dialect: str | None = None

    def check(self) -> StreamFacts:
        """Return what the service says about the stream.

        Raises:
            SetupError: there is no such stream or table, or a stream that cannot be read in slices.
            UnavailableError: the service did not answer for `unavailable_seconds`.
        """
        client = self._client()
        facts = client.backoff.ask(
            lambda: check_source(self.stream, client.rows, self.dialect), self.limits.unavailable_seconds
        )
        if facts.placements_of is not None:
            raise SetupError(
                f"{self.stream} has one read function for each placement (per_placement_tvf). Placements are added "
                "while it is read, and no query names those that a slice had. Read it with "
                "ReadFromSpannerChangeStream, whose checkpoint knows them"
            )
        if self.selection.tables != EVERY_TABLE:
            client.backoff.ask(
                lambda: check_tables(self.stream, client.rows, self.selection.tables),
                self.limits.unavailable_seconds,
            )
        return facts

    def now(self) -> int:
        """Return an end for a slice: just after the service's present time, in nanoseconds.

        Commit timestamps are whole microseconds, and the end is not one. So nothing can begin, end or commit at it.
        """
        client = self._client()
        client.clock.synchronize()
        return client.clock.now() // _MICRO * _MICRO + 1

    def parts(self, start: int, end: int, most: int) -> list[SlicePart]:
        """Return the parts of the slice from `start` (inclusive) to `end` (exclusive), at most `most`.

        A slice that is planned again has equal parts.

        Raises:
            PositionLostError: the change stream no longer has the changes after `start`.
            ChangeStreamError: the stream cannot be read; the message says what to do.
        """
        if start >= end:
            return []
        client, facts = self._client(), self.check()
        live: list[str] = []
        for root in facts.roots(self.stream.change_stream):
            live += client.backoff.ask(partial(self._live, root, start), self.limits.unavailable_seconds)
        return slice_parts(live, start, end, most, mutable=facts.mutable)

    def _live(self, root: str, start: int) -> list[str]:
        from penstock.io.spanner.decode import Decoder

        decoder, records = Decoder(), []
        # From one time to the same time: only the partitions at it are wanted.
        for message in self._open(root, start, start):
            records += decoder.feed(message)
        decoder.finish()
        live = live_partitions(root, start, records)
        if not live:
            raise LineageError(f"{self.stream} has no partitions at {format_timestamp(start)}")
        return live

    def read(self, part: SlicePart) -> Iterator[Sequence[DataChangeRecord]]:
        """Yield the records of a part, in the order of a frontier.

        Raises:
            DecodeError: a record cannot be decoded.
            ChangeStreamError: the stream cannot be read; the message says what to do.
        """
        client, frontier = self._client(), part.frontier()
        client.clock.synchronize()
        wanted = None if self.selection.everything else self.selection.passes
        prefetcher = Prefetcher(
            self._open,
            client.backoff,
            self.limits,
            frontier.end,
            client.clock.now,
            ReadAhead(self.limits.buffer_bytes),
            wanted,
        )
        try:
            while not frontier.done:
                # Otherwise this would wait without an end for partitions that nothing opens.
                if not frontier.can_progress:
                    raise LineageError(f"{self.stream}: {frontier.summary} after the end of a slice")
                prefetcher.serve(frontier)
                batch = prefetcher.take(_POLL_SECONDS)
                if batch is None:
                    continue
                for count, records, step in batch.claims():
                    frontier = frontier.apply(part.owned(step))
                    batch.claimed += count
                    if records:
                        yield self._checked(records)
        finally:
            prefetcher.close()

    def _checked(self, records: Sequence[DataChangeRecord | UndecodableRecord]) -> Sequence[DataChangeRecord]:
        for record in records:
            if isinstance(record, UndecodableRecord):
                raise DecodeError(
                    f"{self.stream}: a record at {record.position} cannot be decoded: {record.reason}. To continue "
                    "without such records, read the stream with ReadFromSpannerChangeStream and its error output"
                )
        return records  # type: ignore[return-value]

    def _open(self, key: str, start: int, end: int) -> Call:
        client = self._client()
        function = function_of(key) or read_functions(self.stream.change_stream, GOOGLESQL, mutable=False)
        query = change_stream_query(function, token_of(key), start, end, self.heartbeat_ms)
        ahead = max(0, end - client.clock.now()) / NANOS
        return client.open(query, f"{format_timestamp(start)} in {abbreviate(key)}", ahead)

    def columns(self, table: str, timestamp: int | None = None) -> tuple[ColumnType, ...]:
        """Return the columns of a table that the change stream watches, as they are at a time (None: now).

        Raises:
            SetupError: the stream watches no such table, or the database no longer has the rows of that time.
        """

        def ask(client: ScanClient) -> tuple[ColumnType, ...]:
            at = begin_snapshot(client, timestamp, self.stream.database_path, emulated=False).timestamp
            watched = self._watched(client, table, timestamp)
            # Only a read tells the types as change records have them.
            reader = RowReader(watched, at)
            for message in client.read(watched, KeyRange(0), at, limit=1):
                reader.feed(message)
            return reader.columns

        return self._scan(ask)

    def row_parts(self, table: str, timestamp: int, most: int) -> list[RowsPart]:
        """Return at most `most` key ranges with all rows of a table at a time. Raises what `columns` raises."""

        def ask(client: ScanClient) -> list[RowsPart]:
            path = self.stream.database_path
            transaction = begin_snapshot(client, timestamp, path, emulated=False)
            watched = self._watched(client, table, timestamp)
            ranges = plan.ranges_between(0, client.sample_keys(watched, transaction, most))
            return [RowsPart(watched, each, timestamp) for each in ranges]

        return self._scan(ask)

    def rows(self, part: RowsPart) -> Iterator[DataChangeRecord]:
        """Return the rows of a part in the order of the primary key, as records with the mod_type READ.

        Raises:
            PositionLostError: the database no longer has the rows of that time.
            ChangeStreamError: the table cannot be read; the message says what to do.
        """
        from penstock.io.spanner.initial_scan.client import ScanClient

        return read_rows(ScanClient(self._client()), part, self.limits.unavailable_seconds)

    def _watched(self, client: ScanClient, table: str, timestamp: int | None) -> Table:
        tables = plan.watched_tables(lambda sql: client.query(sql, timestamp), self.stream.change_stream)
        watched = {each.name: each for each in tables}
        if table not in watched:
            at = "" if timestamp is None else f" at {format_timestamp(timestamp)}"
            raise SetupError(
                f"{self.stream} does not watch a table {table!r}{at}{did_you_mean(table, watched)}; it watches "
                f"{', '.join(watched) or 'none'}. Letter case matters, and a table in a named schema is "
                "schema.table"
            )
        return watched[table]

    def _scan(self, question: Callable[[ScanClient], Answer]) -> Answer:
        from penstock.io.spanner.initial_scan.client import ScanClient

        client = ScanClient(self._client())
        return client.backoff.ask(lambda: question(client), self.limits.unavailable_seconds)

    def _client(self) -> Client:
        with extra_packages("spanner"):
            from penstock.io.spanner.client import client_for

        return client_for(self.stream, self.connection)


def read_rows(client: ScanClient, part: RowsPart, unavailable_seconds: float) -> Iterator[DataChangeRecord]:
    """Yield the rows of a part. A read that breaks off is continued after the last row. See `SliceReader.rows`."""
    rest = part.range
    while True:
        reader = RowReader(part.table, part.timestamp)
        try:
            for message in client.read(part.table, rest, part.timestamp):
                client.backoff.answered()
                for rows in reader.feed(message):
                    # Before the yield: if the read breaks off, it continues behind the rows that the caller has.
                    rest = rest.after(rows.last_key)
                    yield rows.record
            reader.finish()
            return
        except UnreachableError as error:
            client.backoff.failed(str(error), unavailable_seconds)
            time.sleep(client.backoff.remaining_pause())
