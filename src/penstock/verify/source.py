"""Rows of one table of a source, as the events that the pipeline makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from typing_extensions import Self

from penstock.errors import UsageError
from penstock.event.model import NO_COLUMNS, ChangeEvent, TableSchema, Version
from penstock.io.change_streams.incremental.engine import Chunk, ChunkRequest
from penstock.io.columnar.table_rows import key_text
from penstock.verify.budget import RowBudget
from penstock.verify.keys import key_values
from penstock.verify.rounds import Snapshot, SourceRow

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.io.postgres.record import Table

CHUNK_ROWS = 10_000
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

    has_texts: bool
    """Whether rows in columns are texts of PostgreSQL too."""

    def in_columns(self, chunk: Chunk, events: Callable[[], dict[str, ChangeEvent]]) -> SourceRows | None:
        """Return the rows of a chunk in columns, if no step of the pipeline changes them; None: it is not possible."""

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


class Texts(NamedTuple):
    """Rows of PostgreSQL: the table, and its columns as arrays of the texts that the server writes."""

    table: Table
    columns: Sequence[pa.Array]


class SourceRows:
    """The rows of a chunk in the form that a target can use.

    - `events`: by key.
    - `whole`: the rows that the pipeline would write to a table; see `penstock.io.columnar.whole_rows`.
    - `texts`, `whole`: None if only events have these rows. Without it no event is made.
    """

    def __init__(
        self,
        size: int,
        events: Callable[[], dict[str, ChangeEvent]],
        texts: Callable[[], Texts | None] = lambda: None,
        whole: Callable[[], pa.Table | None] = lambda: None,
    ) -> None:
        self._size, self._events, self._texts, self._whole = size, events, texts, whole

    @classmethod
    def of_events(cls, events: dict[str, ChangeEvent]) -> Self:
        """Return rows that have events only."""
        return cls(len(events), lambda: events)

    def __len__(self) -> int:
        return self._size

    @cached_property
    def events(self) -> dict[str, ChangeEvent]:
        return self._events()

    @property
    def texts(self) -> Texts | None:
        return self._texts()

    @property
    def whole(self) -> pa.Table | None:
        return self._whole()


class SourceChunk(NamedTuple):
    """Rows of a table, and when they were read. The next chunk begins after `cursor`."""

    rows: SourceRows
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
    has_steps: bool = True
    """Whether the pipeline filters or changes events."""
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
            chunk, snapshot = self._read(cursor=cursor)
            cursor = chunk.rows[-1].cursor if len(chunk.rows) else cursor
            yield SourceChunk(self._rows(chunk), snapshot, cursor, chunk.is_last)
            if chunk.is_last:
                return

    def rows(self, keys: Sequence[str]) -> Mapping[str, SourceRow]:
        """See `penstock.verify.rounds.Source`."""
        rows: dict[str, SourceRow] = {}
        for start in range(0, len(keys), _KEYS_IN_CHUNK):
            part = keys[start : start + _KEYS_IN_CHUNK]
            names = tuple(self.request_keys(part))
            # Without a name no row has the key. Any read tells a snapshot.
            chunk, snapshot = self._read(keys=names)
            found = self._events(chunk)
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
            found = self._events(chunk)
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

    def _read(self, **what: Any) -> tuple[Chunk, Snapshot]:
        size = self.budget.begin(CHUNK_ROWS)
        chunk = self.reader.read(ChunkRequest(0, self.name, "", (), size, **what))
        snapshot = self.system.snapshot(chunk, self.reader)
        self.budget.end(len(chunk.rows))
        return chunk, snapshot

    def _rows(self, chunk: Chunk) -> SourceRows:
        rows = None if self.has_steps else self.system.in_columns(chunk, partial(self._events, chunk))
        return SourceRows.of_events(self._events(chunk)) if rows is None else rows

    def _events(self, chunk: Chunk) -> dict[str, ChangeEvent]:
        found = {}
        for record in self.system.records(chunk):
            for event, after in self.to_events(record):
                if after is None:
                    continue
                if list((event.key or {}).values()) != list((after.key or {}).values()):
                    raise UsageError(
                        f"{self.name}: a mask hides a column of the primary key, so rows of the target cannot be found "
                        "in the source. Leave the table out with --table"
                    )
                found[key_text(after.key or {})] = after
        return found


class PostgresSystem:
    """Snapshots tell transactions, and positions in the log."""

    has_texts = True

    def __init__(self) -> None:
        from penstock.io.postgres.arrow_runs import RowsOfTables

        self._tables = RowsOfTables(whole=True)

    def in_columns(self, chunk: Chunk, events: Callable[[], dict[str, ChangeEvent]]) -> SourceRows | None:
        from penstock.io.postgres.arrow_rows import columns_of
        from penstock.io.postgres.incremental.chunks import ChunkLines
        from penstock.io.postgres.initial_scan.copied_rows import CopiedRows

        rows = chunk.rows
        if not rows or not isinstance(rows, ChunkLines) or rows.statement.selects_more:
            return None
        # As rows that were read at the beginning: time and position are not compared.
        copied = CopiedRows(rows.statement.table, rows.lines, range(1, len(rows) + 1), 0, 0)

        def whole() -> pa.Table | None:
            made = self._tables.rows(copied.table, copied)
            return None if made is None else made.rows

        return SourceRows(len(rows), events, lambda: Texts(copied.table, columns_of(copied)), whole)

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

    has_texts = False

    def in_columns(self, chunk: Chunk, events: Callable[[], dict[str, ChangeEvent]]) -> SourceRows | None:
        return None

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
