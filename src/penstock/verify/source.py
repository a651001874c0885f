"""Rows of one table of a source, as the events that the pipeline makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from penstock.errors import UsageError
from penstock.event.model import NO_COLUMNS, ChangeEvent, TableSchema, Version
from penstock.io.change_streams.incremental.engine import Chunk, ChunkRequest
from penstock.io.columnar.table_rows import key_text
from penstock.verify.budget import RowBudget
from penstock.verify.keys import key_values
from penstock.verify.rounds import Snapshot, SourceRow

CHUNK_ROWS = 5_000
_KEYS_IN_CHUNK = 500

ToEvents = Callable[[Any], list[tuple[ChangeEvent, ChangeEvent | None]]]
"""From a record to its events: each as the source gives it, and after the steps of the pipeline."""


class Reader(Protocol):
    """Reads chunks of tables; see `ChunkReader` of the sources."""

    def read(self, request: ChunkRequest) -> Chunk: ...

    def null_row(self, name: str) -> Any: ...


class System(Protocol):
    """What differs between the sources."""

    def records(self, chunk: Chunk) -> Sequence[Any]:
        """Return the records of a chunk's rows."""

    def snapshot(self, chunk: Chunk, reader: Any) -> Snapshot:
        """Return when a chunk was read; `reader` has just read it."""

    def request_key(self, schema: TableSchema, values: Sequence[Any]) -> str:
        """Return a key as `ChunkRequest.keys` has it."""

    def read_at(self, reader: Any, request: ChunkRequest, version: Version) -> Chunk | None:
        """Read rows as of the change with a version; None: the source cannot read the past."""


def _by_version(versions: Mapping[str, Version]) -> dict[Version, list[str]]:
    keys: dict[Version, list[str]] = {}
    for key, version in versions.items():
        keys.setdefault(version, []).append(key)
    return keys


class SourceChunk(NamedTuple):
    """Rows of a table, by key, and when they were read. The next chunk begins after `cursor`."""

    events: dict[str, ChangeEvent]
    snapshot: Snapshot
    cursor: str
    is_last: bool


@dataclass(slots=True)
class SourceTable:
    """One table. It reads in one thread, through one connection, as fast as the budget allows."""

    name: str
    reader: Reader
    system: System
    to_events: ToEvents
    budget: RowBudget = field(default_factory=RowBudget)
    null_row: Any = field(default=None, init=False)
    """The record of a row that is NULL in all columns, when the table is open."""
    _schema: TableSchema = field(default=NO_COLUMNS, init=False)

    def open(self) -> TableSchema | None:
        """Ask for the columns; return those that the sink gets, or None if the pipeline leaves the table out."""
        self.null_row = self.reader.null_row(self.name)
        ((event, after),) = self.to_events(self.null_row)
        self._schema = event.schema
        return None if after is None else after.schema

    def event_of(self, record: Any) -> ChangeEvent:
        """Return the event of a record of the table, before the steps of the pipeline."""
        ((event, _),) = self.to_events(record)
        return event

    def chunks(self, cursor: str = "") -> Iterator[SourceChunk]:
        """Yield all rows, or those after a cursor, in the order of the primary key."""
        while True:
            chunk, found, snapshot = self._read(cursor=cursor)
            cursor = chunk.rows[-1].cursor if chunk.rows else cursor
            yield SourceChunk(found, snapshot, cursor, chunk.is_last)
            if chunk.is_last:
                return

    def rows(self, keys: Sequence[str]) -> Mapping[str, SourceRow]:
        """See `penstock.verify.rounds.Source`."""
        rows: dict[str, SourceRow] = {}
        for start in range(0, len(keys), _KEYS_IN_CHUNK):
            part = keys[start : start + _KEYS_IN_CHUNK]
            names = tuple(self.request_keys(part))
            # Without a name no row has the key. Any read tells a snapshot.
            _, found, snapshot = self._read(keys=names)
            rows |= {key: SourceRow(found.get(key), snapshot) for key in part}
        return rows

    def rows_at(self, versions: Mapping[str, Version]) -> Mapping[str, SourceRow]:
        """See `penstock.verify.rounds.Source`."""
        rows: dict[str, SourceRow] = {}
        for version, keys in _by_version(versions).items():
            self.budget.begin(len(keys))
            request = ChunkRequest(0, self.name, "", (), CHUNK_ROWS, keys=tuple(self.request_keys(keys)))
            if (chunk := self.system.read_at(self.reader, request, version)) is None:
                return {}
            self.budget.end(len(keys))
            found = dict(self._events(self.system.records(chunk)))
            snapshot = self.system.snapshot(chunk, self.reader)
            rows |= {key: SourceRow(found.get(key), snapshot) for key in keys}
        return rows

    def request_keys(self, keys: Sequence[str]) -> list[str]:
        """Return keys as `ChunkRequest.keys` has them, without those that no row of the source can have."""
        return [name for key in keys if (name := self._request_key(key))]

    def _request_key(self, key: str) -> str:
        try:
            return self.system.request_key(self._schema, key_values(self._schema, key))
        except (
            ValueError,
            TypeError,
            AttributeError,
        ):  # not of the types of the key: no row of the source has it
            return ""

    def _read(self, **what: Any) -> tuple[Chunk, dict[str, ChangeEvent], Snapshot]:
        size = self.budget.begin(CHUNK_ROWS)
        chunk = self.reader.read(ChunkRequest(0, self.name, "", (), size, **what))
        snapshot = self.system.snapshot(chunk, self.reader)
        found = dict(self._events(self.system.records(chunk)))
        self.budget.end(len(chunk.rows))
        return chunk, found, snapshot

    def _events(self, records: Iterable[Any]) -> Iterator[tuple[str, ChangeEvent]]:
        for record in records:
            for event, after in self.to_events(record):
                if after is None:
                    continue
                if list((event.key or {}).values()) != list((after.key or {}).values()):
                    raise UsageError(
                        f"{self.name}: a mask hides a column of the primary key, so rows of the target cannot be found "
                        "in the source. Leave the table out with --table"
                    )
                yield key_text(after.key or {}), after


class PostgresSystem:
    """Snapshots tell transactions, and positions in the log."""

    def records(self, chunk: Chunk) -> Sequence[Any]:
        from penstock.io.postgres.record import read_record

        return [read_record(row.value.table, row.value.row) for row in chunk.rows]

    def snapshot(self, chunk: Chunk, reader: Any) -> Snapshot:
        def sees(version: Version) -> bool | None:
            # A row of a snapshot has no transaction.
            return bool(chunk.sees(int(version.transaction))) if version.transaction else None

        # The clock is asked after the rows: no change that they contain was committed later. The reader has asked for
        # the position while it held the table's lock, so no TRUNCATE comes between its snapshot and the position.
        return Snapshot(sees, reader.now() + 1, chunk.position)

    def request_key(self, schema: TableSchema, values: Sequence[Any]) -> str:
        from penstock.io.postgres.incremental.chunks import key_name
        from penstock.io.sql.values import text_writer

        pairs = zip(schema.key_columns, values, strict=True)
        return key_name([text_writer(column.type, "")(value) for column, value in pairs])

    def read_at(self, reader: Any, request: ChunkRequest, version: Version) -> Chunk | None:
        return None


class SpannerSystem:
    """Snapshots are timestamps, and a version is the commit timestamp, or the time at which a row was read."""

    def records(self, chunk: Chunk) -> Sequence[Any]:
        from penstock.io.spanner.incremental.chunks import records

        return records([row.value for row in chunk.rows])

    def snapshot(self, chunk: Chunk, reader: Any) -> Snapshot:
        return Snapshot(lambda version: bool(chunk.sees(version.order)), chunk.position)

    def request_key(self, schema: TableSchema, values: Sequence[Any]) -> str:
        from penstock.io.spanner.sink.values import spanner_value

        pairs = zip(schema.key_columns, values, strict=True)
        return json.dumps({column.name: spanner_value(column.type, value) for column, value in pairs})

    def read_at(self, reader: Any, request: ChunkRequest, version: Version) -> Chunk | None:
        # All changes of one commit have its timestamp, so a read at this time has exactly those up to the version.
        chunk: Chunk = reader.read_at(request, version.order)
        return chunk
