"""Reads chunks of tables at exact times, and the list of tables. One thread uses it.

A chunk has its own read time: now by the clock of the service, but not before a change that was claimed. Columns are
those that the change stream watches at this time. A column that was added a moment ago would otherwise be missing in
rows that follow a change of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from penstock.io.change_streams.incremental.engine import Chunk, ChunkRequest, ChunkRow, TableGoneError
from penstock.io.change_streams.incremental.notifications import ScanStatus
from penstock.io.change_streams.incremental.progress import INITIAL, Snapshot
from penstock.io.change_streams.incremental.signals import matches
from penstock.io.change_streams.incremental.worker import Problems
from penstock.io.spanner.incremental import chunks
from penstock.io.spanner.initial_scan import plan
from penstock.io.spanner.initial_scan.frontier import KeyRange, Table
from penstock.io.spanner.initial_scan.rows import RowReader
from penstock.io.spanner.record import DataChangeRecord

_SETTLE_SECONDS = 0.1
"""Google's emulator may show half of a commit that is being written."""


class ChunkReader:
    """Reads the tables that one change stream watches."""

    def __init__(
        self,
        client: Any,
        change_stream: str,
        reads_table: Callable[[str], bool],
        *,
        dialect: str | None = None,
        emulated: bool = False,
    ) -> None:
        """`client`: a `ScanClient`. `reads_table`: whether the pipeline reads changes of a table."""
        self._client, self._change_stream, self._reads_table = client, change_stream, reads_table
        self._dialect, self._emulated = dialect, emulated

    def tables(self, snapshot: Snapshot) -> tuple[list[str], Problems]:
        """Return the tables that a request means, and the names that match no table."""
        watched = self._watched(self._now())
        found: list[str] = []
        problems: Problems = {}
        for pattern in snapshot.request.tables:
            named = [name for name in watched if matches([pattern], name)]
            if not named and snapshot.kind != INITIAL:
                problems[pattern] = (
                    ScanStatus.UNKNOWN_SCHEMA,
                    "the change stream watches no table of this name that the pipeline reads",
                )
            found += named
        return list(dict.fromkeys(found)), problems

    def null_row(self, name: str) -> DataChangeRecord:
        """Return the record of a row of a watched table that is NULL in all columns. Raises as `read` does."""
        timestamp = self._now()
        table = self._table(name, timestamp)
        reader = RowReader(table, timestamp)
        for message in self._client.read(table, KeyRange(0), timestamp, limit=1):
            reader.feed(message)
        return reader.null_row()

    def _table(self, name: str, timestamp: int) -> Table:
        table = self._watched(timestamp).get(name)
        if table is None:
            raise TableGoneError(f"the change stream {self._change_stream} does not watch {name} any more")
        return table

    def read(self, request: ChunkRequest) -> Chunk:
        """Return a chunk.

        Raises:
            UnreachableError: ask again later.
            ChangeStreamError: the service refused it; the message says what to do.
        """
        return self.read_at(request, max([self._now(), *request.after]))

    def read_at(self, request: ChunkRequest, timestamp: int) -> Chunk:
        """Return a chunk as of a time, in nanoseconds. Raises as `read` does, also if the time is too long ago."""
        table = self._table(request.table, timestamp)
        if chunks.is_query(request):
            found, restarted = self._queried(table, request, timestamp)
        else:
            found, restarted = self._read(table, request, timestamp), False
        is_last = not request.keys and len(found) < request.size
        # Rows are emitted when nothing up to and including their time is unread.
        return Chunk(request, found, timestamp.__ge__, timestamp + 1, is_last, restarted)

    def _read(self, table: Table, request: ChunkRequest, timestamp: int) -> list[ChunkRow]:
        if request.keys:
            keys = [chunks.key_values(table, each) for each in request.keys]
            return self._rows(self._client.read_keys(table, keys, timestamp), table, timestamp)
        each = chunks.key_range(table, request)
        return self._rows(self._client.read(table, each, timestamp, limit=request.size), table, timestamp)

    def _queried(self, table: Table, request: ChunkRequest, timestamp: int) -> tuple[list[ChunkRow], bool]:
        query = chunks.ChunkQuery(table, request, postgresql=self._is_postgresql())
        statements = [query.rows_after()]
        if request.keys:
            size = chunks.MAX_KEYS_IN_QUERY
            statements = [
                query.rows_of_keys(request.keys[start : start + size])
                for start in range(0, len(request.keys), size)
            ]
        found: list[ChunkRow] = []
        for statement in statements:
            call = self._client.select(statement, table, timestamp)
            found += self._rows(call, table, timestamp, query.order)
        return found, query.restarted

    def _rows(
        self, call: Iterable[bytes], table: Table, timestamp: int, order: list[str] | None = None
    ) -> list[ChunkRow]:
        reader = RowReader(table, timestamp)
        found: list[ChunkRow] = []
        for message in call:
            for rows in reader.feed(message):
                found += chunks.chunk_rows(rows.record, order or ())
        reader.finish()
        return found

    def _watched(self, timestamp: int) -> dict[str, Table]:
        def query(sql: str) -> list[list[Any]]:
            rows: list[list[Any]] = self._client.query(sql, timestamp)
            return rows

        watched = plan.watched_tables(query, self._change_stream)
        return {table.name: table for table in watched if self._reads_table(table.name)}

    def _now(self) -> int:
        # A strong read: it sees every commit that was acknowledged before.
        timestamp: int = self._client.begin(None).timestamp
        if self._emulated:
            time.sleep(_SETTLE_SECONDS)
        return timestamp

    def _is_postgresql(self) -> bool:
        if self._dialect is None:
            self._dialect = plan.dialect_of(lambda sql: self._client.query(sql, None))
        return self._dialect != plan.GOOGLESQL

    def close(self) -> None:
        """Do nothing: the client belongs to the process."""
