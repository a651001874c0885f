"""Change rows of PostgreSQL's log records in Arrow, without an event in between. Pure; part of the hot path.

`EventConverter` and then `penstock.event.change_rows` make the same rows, in four times the time: the log has the text
of each value, and Arrow reads the texts of a column at once. Needs the extra `arrow`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UnwritableError
from penstock.event.arrow import arrow_array, arrow_type
from penstock.event.change_rows import IMAGES, METADATA, change_row_schema
from penstock.event.column_types import ColumnType, Kind
from penstock.event.keys import key_rules
from penstock.event.model import Source, TableSchema
from penstock.event.plain_types import plain_schema, plain_value
from penstock.io.columnar.row_runs import MIN_ROWS, TableRows, runs_of_rows
from penstock.io.postgres.column_types import text_reader
from penstock.io.postgres.events import OPS, EventConverter, sequence_of
from penstock.io.postgres.record import UNCHANGED, ChangeKind, LogRecord, Row, Table

Output = tuple[list[Any], list[int]]
"""`BucketRun`s and events in order, and the event time of each in µs since 1970: of a run the earliest of its rows."""

Texts = Sequence[Any]
"""The values of a column: texts, None for NULL, `UNCHANGED`."""

_ROWS = (ChangeKind.INSERT, ChangeKind.UPDATE, ChangeKind.DELETE, ChangeKind.READ)
_TEXT, _NUMBER, _FLAG = pa.string(), pa.int64(), pa.bool_()
_PARSED = (
    Kind.INT16,
    Kind.INT32,
    Kind.INT64,
    Kind.UINT32,
    Kind.FLOAT64,
    Kind.DECIMAL,
    Kind.DATE,
    Kind.TIMESTAMP,
    Kind.LOCAL_TIMESTAMP,
)
"""Kinds whose texts Arrow reads as `text_values` does, or refuses: infinite times, and years outside of 1 to 9999."""

_BOOLEANS = {"t": True, "f": False, None: None}


class LogRows:
    """Converts batches of the records of one database. Picklable.

    `bucket` is a function from a source, columns and an event time, in µs since 1970, to the bucket of the rows.
    """

    def __init__(
        self, bucket: Callable[[Source, TableSchema, int], str], *, database: str = "", stream: str = ""
    ) -> None:
        self._bucket, self._database, self._stream = bucket, database, stream
        self._convert = EventConverter("", database, stream)
        self._tables: dict[Table, _TableRows | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        # What is known of the tables is made again in the worker.
        return {**self.__dict__, "_convert": EventConverter("", self._database, self._stream), "_tables": {}}

    def __call__(self, records: Sequence[LogRecord], times_us: Sequence[int]) -> Output:
        """Return the records as `BucketRun`s, and as events where they are few or have no short way.

        Raises:
            ValueError: a value does not have the form of its type; the message names table and column, not the value.
        """
        made: Output = [], []
        start = 0
        while start < len(records):
            table, end = records[start].table, start + 1
            while end < len(records) and records[end].table is table:
                end += 1
            self._add(made, table, records[start:end], times_us[start:end])
            start = end
        return made

    def _add(
        self, made: Output, table: Table | None, records: Sequence[LogRecord], times_us: Sequence[int]
    ) -> None:
        elements, event_times = made
        plan = self._find(table) if table is not None and len(records) >= MIN_ROWS else None
        if plan is not None and (rows := plan.rows(records)) is not None:
            table_rows = TableRows(plan.source, rows)
            for run in runs_of_rows(table_rows, times_us, partial(self._bucket, plan.source, plan.schema)):
                elements.append(run)
                event_times.append(min(run.times_us))
            return
        for record, time_us in zip(records, times_us, strict=True):
            for event in self._convert(record):
                elements.append(event)
                event_times.append(time_us)

    def _find(self, table: Table) -> _TableRows | None:
        if table not in self._tables:
            source, schema = self._convert.source_and_schema(table)
            # A key with rules is written in one form, and so its columns differ from those of the row.
            self._tables[table] = None if key_rules(schema) else _TableRows(source, schema, table)
        return self._tables[table]


class _TableRows:
    """The rows of one table."""

    def __init__(self, source: Source, schema: TableSchema, table: Table) -> None:
        self.source, self.schema = source, schema
        self._shape = change_row_schema(schema)
        plain = plain_schema(schema)
        self._fields = [pa.field(each.name, arrow_type(each.type, "us")) for each in plain]
        self._read = [
            _column(source, column.name, column.type, held.type)
            for column, held in zip(schema, plain, strict=True)
        ]
        self._key = [schema.names.index(column.name) for column in schema.key_columns]
        names = ("system", "server", "database", "schema", "table", "stream")
        values = {**{name: getattr(source, name) for name in names}, "user": ""}
        self._constants = {field.name: pa.scalar(values.get(field.name), field.type) for field in METADATA}
        self._no_row: Row = (None,) * len(self._fields)
        self._not_in_identity = [column.name for column in table.columns if not column.in_identity]

    def rows(self, records: Sequence[LogRecord]) -> pa.Table | None:
        """Return the rows of records of this table; None if they must be made from events."""
        new, old = [record.new for record in records], [record.old for record in records]
        if not all(
            record.kind in _ROWS and (row or before) is not None
            for record, row, before in zip(records, new, old, strict=True)
        ):
            return None
        try:
            images = self._images(new, old)
            metadata = self._metadata(records)
        except (TypeError, ValueError, ArithmeticError, LookupError, UnwritableError):
            # A large value that was not sent, or one that Arrow does not read; `pa.ArrowInvalid` is a ValueError. The
            # long way names the column.
            return None
        arrays = {
            "op": pa.array([str(OPS[record.kind]) for record in records], _TEXT),
            "timestamp": pa.array([record.event_timestamp // 1000 for record in records], _NUMBER).cast(
                self._shape.field("timestamp").type
            ),
            **images,
            "metadata": metadata,
        }
        return pa.Table.from_arrays([arrays[name] for name in self._shape.names], schema=self._shape)

    def _images(self, new: list[Row | None], old: list[Row | None]) -> dict[str, pa.Array]:
        after, before = self._columns(new), self._columns(old)
        if None not in new:
            key = after
        elif not any(new):
            key = before
        else:
            key = self._columns([row or other for row, other in zip(new, old, strict=True)])
        wanted = [(key, self._key), (before, range(len(self._fields))), (after, range(len(self._fields)))]
        absent = [None, [row is None for row in old], [row is None for row in new]]
        return {
            name: pa.StructArray.from_arrays(
                [columns[number] for number in numbers],
                fields=[self._fields[number] for number in numbers],
                mask=None if mask is None else pa.array(mask, _FLAG),
            )
            for name, (columns, numbers), mask in zip(IMAGES, wanted, absent, strict=True)
            if numbers
        }

    def _columns(self, rows: list[Row | None]) -> list[pa.Array]:
        if not any(rows):
            return [pa.nulls(len(rows), field.type) for field in self._fields]
        values = zip(*(row or self._no_row for row in rows), strict=True)
        return [read(texts) for read, texts in zip(self._read, values, strict=True)]

    def _metadata(self, records: Sequence[LogRecord]) -> pa.Array:
        rows = len(records)
        transactions = [record.transaction for record in records]
        order = pa.array(
            [
                record.lsn if each is None else each.commit_lsn
                for record, each in zip(records, transactions, strict=True)
            ],
            _NUMBER,
        )
        id_ = pa.array([each and each.id for each in transactions], _NUMBER)
        index = pa.array([record.sequence for record in records], _NUMBER)
        has_transaction, transaction = pc.is_valid(id_), pc.fill_null(id_.cast(_TEXT), "")
        sequence = _digits(pa.array(list(map(sequence_of, records)), _NUMBER), 20)
        # As `penstock.event.replica.encode_version` writes them; to call it for each row would cost as much as all
        # columns.
        version = pc.binary_join_element_wise(
            _digits(order, 24), transaction, sequence, _digits(index, 10), " "
        )
        columns = {
            **{name: pa.repeat(value, rows) for name, value in self._constants.items()},
            "version": version,
            "order": order,
            "transaction": transaction,
            "sequence": sequence,
            "index": index,
            "not_sent": self._not_sent(records),
            "transaction_tag": pc.if_else(has_transaction, pa.scalar(""), pa.scalar(None, _TEXT)),
            "system_transaction": pc.if_else(has_transaction, pa.scalar(False), pa.scalar(None, _FLAG)),
        }
        return pa.StructArray.from_arrays([columns[field.name] for field in METADATA], fields=list(METADATA))

    def _not_sent(self, records: Sequence[LogRecord]) -> pa.Array:
        """Return the columns that a deletion lacks, because they are outside of the identity."""
        lacking = [record.new is None and not record.old_is_full for record in records]
        if self._not_in_identity and any(lacking):
            return pa.array(
                [self._not_in_identity if each else () for each in lacking], METADATA.field("not_sent").type
            )
        return pa.ListArray.from_arrays(
            pa.repeat(pa.scalar(0, pa.int32()), len(records) + 1), pa.array([], _TEXT)
        )


def _digits(numbers: pa.Array, width: int) -> pa.Array:
    return pc.ascii_lpad(numbers.cast(_TEXT), width, "0")


def _column(source: Source, name: str, type_: ColumnType, plain: ColumnType) -> Callable[[Texts], pa.Array]:
    """Return the function from the texts of a column to its Arrow array."""
    held_as, read, convert = arrow_type(plain, "us"), text_reader(type_), plain_value(type_)

    def parsed(texts: Texts) -> pa.Array:
        return pa.array(texts, _TEXT).cast(held_as)

    def from_values(texts: Texts) -> pa.Array:
        if UNCHANGED in texts:  # pyarrow finds it in texts, but a reader may take it for one
            raise TypeError("a large value that was not sent")
        values = [None if text is None else text if read is None else read(text) for text in texts]
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        return arrow_array(name, plain, values, "us", source)

    if type_.kind is Kind.BOOL:
        return lambda texts: pa.array([_BOOLEANS[text] for text in texts], _FLAG)
    if read is None and convert is None:
        return lambda texts: pa.array(texts, _TEXT)
    # Text in place of a decimal number has Python's form, and not that of the server.
    return parsed if type_.kind in _PARSED and plain.kind is not Kind.STRING else from_values
