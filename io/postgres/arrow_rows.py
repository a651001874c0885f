"""Change rows of PostgreSQL's log records in Arrow, without an event in between. Pure; part of the hot path.

`EventConverter` and then `penstock.event.change_rows` make the same rows, in four times the time: the log has the text
of each value, and Arrow reads the texts of a column at once. Needs the extra `arrow`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from penstock.errors import UnwritableError
from penstock.event.arrow import arrow_array, arrow_type
from penstock.event.change_rows import IMAGES, METADATA, change_row_schema
from penstock.event.column_types import ColumnType, Kind
from penstock.event.keys import key_rules
from penstock.event.model import Source, TableSchema
from penstock.event.plain_types import plain_schema, plain_value
from penstock.io.change_streams.lazy_records import parts_of
from penstock.io.postgres.column_types import text_reader
from penstock.io.postgres.decode import new_row
from penstock.io.postgres.events import OPS, EventConverter, sequence_of
from penstock.io.postgres.initial_scan.copied_rows import NULL, CopiedRows, unescaped
from penstock.io.postgres.logged_rows import KINDS, LoggedRows
from penstock.io.postgres.record import UNCHANGED, ChangeKind, LogRecord, Row, Table

Texts = Sequence[Any]
"""The values of a column: texts, None for NULL, `UNCHANGED`; or an array of texts."""

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

_OPS = {first: str(OPS[kind]) for first, kind in KINDS.items()}
_NO_PLAIN_ARRAY = r'["\\]|^[^{]|^.+\{'
"""Texts of arrays with quotes, bounds, or more than one dimension."""
_BOOLEANS = {"t": True, "f": False, None: None}


class TablesInArrow:
    """Makes the change rows of records of one table at a time. Remembers each table."""

    def __init__(self, convert: EventConverter) -> None:
        self._convert = convert
        self._tables: dict[Table, _TableRows | None] = {}

    def rows(self, table: Table, records: Sequence[LogRecord]) -> pa.Table | None:
        """Return the records of a table as change rows; None: they must be made from events.

        The old row of an update is whole only with the replica identity FULL: values that the server did not send are
        null in it.
        """
        plan = self._find(table)
        return None if plan is None else plan.rows(records)

    def _find(self, table: Table) -> _TableRows | None:
        if table not in self._tables:
            source, schema = self._convert.source_and_schema(table)
            # A key with rules is written in one form, and so its columns differ from the row's.
            self._tables[table] = None if key_rules(schema) else _TableRows(source, schema, table)
        return self._tables[table]


class _Versions(NamedTuple):
    """The parts of the versions of rows: arrays, or scalars where all rows have the same value."""

    order: pa.Array | pa.Scalar
    transaction: pa.Array | pa.Scalar
    sequence: pa.Array | pa.Scalar
    index: pa.Array


def columns_of(records: CopiedRows) -> list[pa.Array]:
    """Return the columns of a chunk as arrays of texts."""
    return columns_of_lines(records.data, len(records), len(records.table.columns))


def columns_of_lines(lines: bytes, size: int, width: int) -> list[pa.Array]:
    """Return the columns of `size` lines in the text format of COPY, with `width` values each, as arrays of texts."""
    names = [str(number) for number in range(width)]
    table = csv.read_csv(
        pa.py_buffer(lines),
        # One block, so that each column is one array.
        csv.ReadOptions(column_names=names, use_threads=False, block_size=len(lines) + 1),
        # The server escapes what would be taken for the end of a value or of a line.
        csv.ParseOptions(delimiter="\t", quote_char=False, escape_char=False, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, _TEXT), null_values=[NULL], strings_can_be_null=True
        ),
    )
    if table.num_rows != size:
        raise ValueError("the rows of a chunk cannot be divided")
    columns = [column.combine_chunks() for column in table.columns]
    # NULLs have a backslash too, but most chunks have neither.
    return list(map(_unescaped, columns)) if b"\\" in lines else columns


def _unescaped(column: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring(column, "\\")).as_py():
        return column
    return pa.array([None if text is None else unescaped(text) for text in column.to_pylist()], _TEXT)


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
        try:
            if isinstance(records, CopiedRows):
                return self._copied(records)
            parts = [part for part in parts_of(records) if isinstance(part, LoggedRows)]
            logged = self._logged(parts) if sum(map(len, parts)) == len(records) else None
            return self._changed(list(records)) if logged is None else logged
        except (TypeError, ValueError, ArithmeticError, LookupError, UnwritableError):
            # A large value that was not sent, or one that Arrow does not read; `pa.ArrowInvalid` is a ValueError. The
            # long way names the column.
            return None

    def _copied(self, records: CopiedRows) -> pa.Table:
        """Return the rows of a chunk. They differ in their columns and in their index only."""
        size = len(records)
        # As events have them: a READ has no transaction, and its sequence is its time.
        version = _Versions(
            pa.scalar(records.lsn, _NUMBER),
            pa.scalar(None, _NUMBER),
            pa.scalar(records.commit_timestamp, _NUMBER),
            pa.array(records.numbers, _NUMBER),
        )
        columns = [read(texts) for read, texts in zip(self._read, columns_of(records), strict=True)]
        absent = [pa.nulls(size, field.type) for field in self._fields]
        images = self._structs(columns, absent, columns, pa.repeat(True, size), None)
        times = pa.repeat(pa.scalar(records.commit_timestamp // 1000, _NUMBER), size)
        return self._table(
            pa.repeat(str(OPS[ChangeKind.READ]), size), times, images, version, _no_columns(size), size
        )

    def _logged(self, parts: Sequence[LoggedRows]) -> pa.Table | None:
        """Return the rows of records without old rows, which are not decoded one by one; None: there are others."""
        messages = [message for part in parts for message in part.messages]
        new = [new_row(payload) for _, payload in messages]
        # None comes from a deletion, or from an update with an old row. Their images need more than the new row.
        if None in new:
            return None
        size = len(messages)
        transactions = [each for part in parts for each in part.transactions]
        version = _Versions(
            pa.array([each.commit_lsn for each in transactions], _NUMBER),
            pa.array([each.id for each in transactions], _NUMBER),
            pa.array([lsn for lsn, _ in messages], _NUMBER),
            pa.array([number for part in parts for number in part.sequences], _NUMBER),
        )
        columns = self._columns(new)
        absent = [pa.nulls(size, field.type) for field in self._fields]
        images = self._structs(columns, absent, columns, pa.repeat(True, size), None)
        times = pa.array([time for part in parts for time in part.times_us], _NUMBER)
        op = pa.array([_OPS[payload[0]] for _, payload in messages], _TEXT)
        return self._table(op, times, images, version, _no_columns(size), size)

    def _changed(self, records: Sequence[LogRecord]) -> pa.Table | None:
        new, old = [record.new for record in records], [record.old for record in records]
        # Truncations and messages have no row.
        if not all(
            record.kind in _ROWS and (row or before) is not None
            for record, row, before in zip(records, new, old, strict=True)
        ):
            return None
        transactions = [record.transaction for record in records]
        # A row of a snapshot has no transaction: its own position is its place among the commits.
        order = [
            record.lsn if each is None else each.commit_lsn
            for record, each in zip(records, transactions, strict=True)
        ]
        version = _Versions(
            pa.array(order, _NUMBER),
            pa.array([each and each.id for each in transactions], _NUMBER),
            pa.array(list(map(sequence_of, records)), _NUMBER),
            pa.array([record.sequence for record in records], _NUMBER),
        )
        return self._table(
            pa.array([str(OPS[record.kind]) for record in records], _TEXT),
            pa.array([record.event_timestamp // 1000 for record in records], _NUMBER),
            self._images(new, old),
            version,
            self._not_sent(records),
            len(records),
        )

    def _table(
        self,
        op: pa.Array,
        times_us: pa.Array,
        images: dict[str, pa.Array],
        version: _Versions,
        not_sent: pa.Array,
        size: int,
    ) -> pa.Table:
        arrays = {
            "op": op,
            "timestamp": times_us.cast(self._shape.field("timestamp").type),
            **images,
            "metadata": self._metadata(version, not_sent, size),
        }
        return pa.Table.from_arrays([arrays[name] for name in self._shape.names], schema=self._shape)

    def _images(self, new: list[Row | None], old: list[Row | None]) -> dict[str, pa.Array]:
        after, before = self._columns(new), self._columns(old)
        # The key of a change is the one of its new row, and only a deletion has none. As `EventConverter` has it.
        if None not in new:
            key = after
        elif not any(new):
            key = before
        else:
            key = self._columns([row or other for row, other in zip(new, old, strict=True)])
        no_before, no_after = ([row is None for row in rows] for rows in (old, new))
        return self._structs(key, before, after, pa.array(no_before, _FLAG), pa.array(no_after, _FLAG))

    def _structs(
        self,
        key: list[pa.Array],
        before: list[pa.Array],
        after: list[pa.Array],
        no_before: pa.Array,
        no_after: pa.Array | None,
    ) -> dict[str, pa.Array]:
        # Without key columns the schema has no field `key`, because a struct without fields cannot be stored.
        wanted = [(key, self._key), (before, range(len(self._fields))), (after, range(len(self._fields)))]
        return {
            name: pa.StructArray.from_arrays(
                [columns[number] for number in numbers],
                fields=[self._fields[number] for number in numbers],
                mask=mask,
            )
            for name, (columns, numbers), mask in zip(
                IMAGES, wanted, [None, no_before, no_after], strict=True
            )
            if numbers
        }

    def _columns(self, rows: list[Row | None]) -> list[pa.Array]:
        if not any(rows):
            return [pa.nulls(len(rows), field.type) for field in self._fields]
        values = zip(*(row or self._no_row for row in rows), strict=True)
        return [read(texts) for read, texts in zip(self._read, values, strict=True)]

    def _metadata(self, of: _Versions, not_sent: pa.Array, rows: int) -> pa.Array:
        order, id_, numbers, index = of
        has_transaction, transaction = pc.is_valid(id_), pc.fill_null(id_.cast(_TEXT), "")
        sequence = _digits(numbers, 20)
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
            "not_sent": not_sent,
            "transaction_tag": pc.if_else(has_transaction, pa.scalar(""), pa.scalar(None, _TEXT)),
            "system_transaction": pc.if_else(has_transaction, pa.scalar(False), pa.scalar(None, _FLAG)),
        }
        arrays = [columns[field.name] for field in METADATA]
        return pa.StructArray.from_arrays(
            [pa.repeat(each, rows) if isinstance(each, pa.Scalar) else each for each in arrays],
            fields=list(METADATA),
        )

    def _not_sent(self, records: Sequence[LogRecord]) -> pa.Array:
        """Return the columns that a deletion lacks, because they are outside of the identity."""
        lacking = [record.new is None and not record.old_is_full for record in records]
        if self._not_in_identity and any(lacking):
            return pa.array(
                [self._not_in_identity if each else () for each in lacking], METADATA.field("not_sent").type
            )
        return _no_columns(len(records))


def _no_columns(rows: int) -> pa.Array:
    """Return an empty list for each row."""
    return pa.ListArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows + 1), pa.array([], _TEXT))


def _digits(numbers: pa.Array, width: int) -> pa.Array:
    return pc.ascii_lpad(numbers.cast(_TEXT), width, "0")


def _column(source: Source, name: str, type_: ColumnType, plain: ColumnType) -> Callable[[Texts], pa.Array]:
    """Return the function from the texts of a column to its Arrow array."""
    held_as, read, convert = arrow_type(plain, "us"), text_reader(type_), plain_value(type_)

    def parsed(texts: Texts) -> pa.Array:
        return _texts(texts).cast(held_as)

    def from_values(texts: Texts) -> pa.Array:
        texts = texts.to_pylist() if isinstance(texts, pa.Array) else texts
        if UNCHANGED in texts:  # pyarrow finds it in texts, but a reader may take it for one
            raise TypeError("a large value that was not sent")
        values = [None if text is None else text if read is None else read(text) for text in texts]
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        return arrow_array(name, plain, values, "us", source)

    def arrays(texts: Texts) -> pa.Array:
        whole = _texts(texts)
        if pc.any(pc.match_substring_regex(whole, _NO_PLAIN_ARRAY)).as_py():
            return from_values(texts)
        return _lists(whole, read_items).cast(held_as)

    if type_.element is not None and plain.element is not None and type_.element.native != "box":
        read_items = _column(source, name, type_.element, plain.element)
        return arrays
    if type_.kind is Kind.BOOL:
        return _flags
    if read is None and convert is None:
        return _texts
    # Text in place of a decimal number has Python's form, and not the server's.
    return parsed if type_.kind in _PARSED and plain.kind is not Kind.STRING else from_values


def _lists(whole: pa.Array, read_items: Callable[[Texts], pa.Array]) -> pa.Array:
    """Return the arrays that texts without quotes stand for, such as ``{a,NULL}``."""
    items = pc.split_pattern(pc.utf8_slice_codeunits(whole, 1, -1), ",")
    # The server writes an empty text with quotes, so an empty item is that of an empty array.
    texts = items.values.filter(pc.not_equal(items.values, ""))
    sizes = pc.if_else(pc.equal(whole, "{}"), 0, pc.list_value_length(items)).fill_null(0)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes.to_numpy())]), pa.int32())
    values = read_items(pc.if_else(pc.equal(texts, "NULL"), pa.scalar(None, _TEXT), texts))
    return pa.ListArray.from_arrays(offsets, values, mask=whole.is_null())


def _texts(texts: Texts) -> pa.Array:
    return texts if isinstance(texts, pa.Array) else pa.array(texts, _TEXT)


def _flags(texts: Texts) -> pa.Array:
    if isinstance(texts, pa.Array):
        return pc.equal(texts, "t")
    return pa.array([_BOOLEANS[text] for text in texts], _FLAG)
