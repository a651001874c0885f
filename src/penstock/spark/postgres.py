"""The data source `penstock-postgres`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.event.model import ChangeEvent, Op, TableSchema
from penstock.io.change_streams.arguments import in_range
from penstock.io.postgres.arrow_rows import TablesInArrow
from penstock.io.postgres.events import EventConverter, table_schema
from penstock.io.postgres.logged_rows import neighbours_by_table
from penstock.io.postgres.names import checked_slot, database_of
from penstock.io.postgres.options import PostgresStreamOptions
from penstock.io.postgres.record import LogRecord, Table, format_lsn, parse_lsn
from penstock.io.postgres.slice import LogSlice
from penstock.io.postgres.slice_reader import SliceReader
from penstock.io.postgres.source import ChangeStream, Connection
from penstock.options import Accepts, options
from penstock.spark.arrow_events import ArrowEvents
from penstock.spark.options import REFUSED, SNAPSHOTS, SliceOptions, read_options
from penstock.spark.source import Offset, PenstockDataSource, require_same_stream
from penstock.tables import TableSelection
from penstock.timestamps import nanoseconds

FORMAT = "penstock-postgres"
_LEFT_OUT = (
    {"end", "further_slots", "create_slot", "protocol", "streaming", "binary", "heartbeat_seconds"}
    | {
        "buffer_bytes",
        "idle_stream_seconds",
        "max_tasks",
        "max_slice_seconds",
        "timestampasof",
        "new_columns",
    }
    | (SNAPSHOTS - {"snapshot"})
    | REFUSED
)
_MIN_ROWS = 32
"""Fewer rows are not worth an Arrow batch of their own."""


@options
class PostgresSourceOptions(SliceOptions, PostgresStreamOptions):
    """The options of `penstock-postgres`: its own, and the options of `ReadFromPostgresChangeStream` for slices."""

    snapshot: Annotated[str, Accepts(choices=("never", "initial_only"), example="initial_only")] = "never"
    """With initial_only, ``spark.read`` reads the rows of `table` as they are now, and no changes."""


class PostgresDataSource(PenstockDataSource):
    """Changes of a PostgreSQL slot, in closed slices of its log.

    - **Order**: the order of the log. A batch is one task, because a slot has one reader.
    - **After a crash**: Spark repeats the last batch; its rows are equal. The slot moves when the next batch begins.
    - **State**: one position in Spark's checkpoint. The server keeps its log since the slot's position.
    """

    format: ClassVar[str] = FORMAT
    rows_option: ClassVar[str] = "snapshot=initial_only"

    def stream(self) -> PostgresSlices:
        """Return the stream that the options describe; see the base class."""
        return slices_of(self._options())

    def rows(self) -> PostgresRows | None:
        """Return the rows that the options ask for; see the base class."""
        chosen = self._options()
        if chosen.snapshot == "never":
            return None
        if chosen.table is None or chosen.start is not None:
            raise UsageError(
                "snapshot=initial_only gives the rows of one table as they are now: pass table, and no start"
            )
        return PostgresRows(slices_of(chosen).reader, chosen.table)

    def _options(self) -> PostgresSourceOptions:
        if self.options.get("snapshot") in ("initial", "when_needed"):
            raise UsageError(
                f"{self.format}: a stream cannot begin with the rows, because Spark repeats a batch after a crash, and "
                "the server holds a snapshot no longer than the connection that made it. Create the slot, read the "
                "rows with spark.read and snapshot=initial_only, then the changes of the slot, and merge both by key"
            )
        return read_options(
            PostgresSourceOptions, self.options, name=self.format, left_out=_LEFT_OUT, dsns=("dsn",)
        )


@dataclass(frozen=True, slots=True)
class PostgresRows:
    """See `penstock.spark.source.TableRows`. One part, because the server holds a snapshot for one connection."""

    reader: SliceReader
    table: str

    def columns(self) -> TableSchema:
        # Also that the slot exists: changes after the rows must be in its log.
        self.reader.check()
        return table_schema(self.reader.columns(self.table))

    def parts(self) -> Sequence[str]:
        return [self.table]

    def read(self, part: str) -> Iterator[Sequence[ChangeEvent]]:
        stream = self.reader.stream
        convert = EventConverter("", stream.database, stream.publication)
        in_arrow = TablesInArrow(convert)
        for rows in self.reader.rows(part):
            yield _RowsOfTable(rows.table, rows, convert, in_arrow)


@dataclass(frozen=True, slots=True)
class PostgresSlices:
    """See `penstock.spark.source.SlicedStream`. `start`: changes of transactions before it are left out; nanoseconds.

    An offset is the stream, the system identifier of the server, and a position of the log.
    """

    reader: SliceReader
    table: str | None
    start: int

    max_rows = None
    has_limit = False

    @property
    def _identity(self) -> str:
        return str(self.reader.stream)

    def _offset(self, lsn: int) -> Offset:
        return {"stream": self._identity, "lsn": format_lsn(lsn)}

    def _lsn(self, offset: Offset) -> int:
        require_same_stream(offset, self._identity, FORMAT)
        return parse_lsn(offset["lsn"])

    def columns(self) -> TableSchema | None:
        self.reader.check()
        return None if self.table is None else table_schema(self.reader.columns(self.table))

    def first(self, target: Offset | None) -> Offset:
        # The slot keeps this position, so a query that ran no batch begins there again.
        return self._offset(self.reader.check().confirmed_lsn)

    def last(self) -> Offset:
        return self._offset(self.reader.now())

    def slice_end(self, start: Offset | None, target: Offset, most_rows: int | None) -> Offset:
        return target if start is None else max(start, target, key=self._lsn)

    def parts(self, start: Offset, end: Offset) -> Sequence[LogSlice]:
        part = LogSlice(self._lsn(start), self._lsn(end))
        if part.start >= part.end:
            return []
        self.reader.check_position(part.start)
        return [part]

    def read(self, part: LogSlice) -> Iterator[Sequence[ChangeEvent]]:
        stream = self.reader.stream
        convert = EventConverter("", stream.database, stream.publication)
        in_arrow = TablesInArrow(convert)
        for records in self.reader.read(part, self.start):
            for table, neighbours in neighbours_by_table(records):
                if table is None and self.table is None:  # messages of applications
                    yield _events(convert, neighbours)
                elif table is not None and self.table in (None, str(table)):
                    yield _RowsOfTable(table, neighbours, convert, in_arrow)

    def commit(self, end: Offset) -> None:
        self.reader.commit(self._lsn(end))

    def bounds(self) -> tuple[Offset, Offset]:
        return self.first(None), self.last()


class _RowsOfTable(ArrowEvents):
    """Neighbours of one table in the log."""

    def __init__(
        self, table: Table, records: Sequence[LogRecord], convert: EventConverter, in_arrow: TablesInArrow
    ) -> None:
        self._table, self._records = table, records
        self._convert, self._in_arrow = convert, in_arrow

    def change_rows(self) -> pa.Table | None:
        if len(self._records) < _MIN_ROWS:
            return None
        rows = self._in_arrow.rows(self._table, self._records)
        # Otherwise the old row of an update has the columns of the identity only.
        if rows is None or self._table.replica_identity == "FULL":
            return rows
        has_old = pc.and_(pc.equal(rows.column("op"), str(Op.UPDATE)), pc.is_valid(rows.column("before")))
        return None if pc.any(has_old).as_py() else rows

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[ChangeEvent]:
        return iter(_events(self._convert, self._records))

    def __getitem__(self, index: Any) -> Any:
        return _events(self._convert, self._records)[index]


def _events(convert: EventConverter, records: Sequence[LogRecord]) -> list[ChangeEvent]:
    return [event for record in records for event in convert(record)]


def slices_of(options: PostgresSourceOptions) -> PostgresSlices:
    """Return the stream that options describe.

    Raises:
        UsageError: an option is malformed or out of range.
    """
    if options.table is not None and "." not in options.table:
        raise UsageError(f"table: {options.table!r} has no schema; write public.{options.table}")
    tables = options.selected_tables(options.tables)
    stream = ChangeStream(database_of(options.dsn), options.publication, checked_slot(options.slot), 0, None)
    connection = Connection(
        dsn=options.dsn, protocol="pull", reader_name=f"penstock-spark-{uuid4().hex[:12]}"
    )
    selection = TableSelection.checked(tables, options.without_tables)
    limit = in_range("unavailable_seconds", options.unavailable_seconds, 0, 86_400)
    start = 0 if options.start is None else nanoseconds("start", options.start)
    return PostgresSlices(SliceReader(stream, connection, limit, selection), options.table, start)
