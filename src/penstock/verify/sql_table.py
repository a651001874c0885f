"""A replica in a table of PostgreSQL.

The exact comparison is the server's: the sink's own rows are copied into the sink's temporary table, and both sides are
compared as the server writes their values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import psycopg
import pyarrow as pa

from penstock.event.column_types import ColumnType
from penstock.event.keys import canonical_key
from penstock.event.model import ChangeEvent, Image, Source, TableSchema, Version
from penstock.event.replica import RowChange, TableChanges, decode_version
from penstock.io.columnar.table_rows import key_text
from penstock.io.columnar.whole_rows import has_plain_key, key_texts
from penstock.io.postgres.arrow_rows import columns_of_lines
from penstock.io.postgres.column_types import text_reader
from penstock.io.postgres.initial_scan.copied_rows import rows_of
from penstock.io.sql.catalog import columns_of
from penstock.io.sql.sender import RowFaultError, TargetErrors, batch_rows
from penstock.io.sql.statements import (
    DELETED,
    META,
    TRUNCATIONS,
    VERSION,
    TableName,
    TargetTable,
    copy_batch,
    create_batch,
    quote,
)
from penstock.io.sql.target import SqlTarget
from penstock.verify.digests import digests_of_columns, digests_of_values
from penstock.verify.keys import key_values
from penstock.verify.rounds import REFUSED, ColumnDifference, Look, StoredRow, stored_version
from penstock.verify.source import SourceRows

_PART = 10_000
_BATCH = "penstock_verify"
_NO_SOURCE = Source("")
_LIMITS = re.compile(r"\([-0-9, ]+\)")


@dataclass(slots=True)
class SqlTable:
    """One table, through a session with `SESSION_SETTINGS`.

    `has_texts`: the source gives the texts of its rows (`SourceRows.texts`).
    """

    target: SqlTarget
    session: psycopg.Connection[Any]
    name: TableName
    has_texts: bool
    left_out: list[str] = field(default_factory=list, init=False)
    """Columns of the source that the table does not have."""
    is_open: bool = field(default=False, init=False)
    _schema: TableSchema = field(default=TableSchema(()), init=False)
    _table: TargetTable | None = field(default=None, init=False)
    _as_texts: bool = field(default=False, init=False)
    """Whether equal rows have equal texts on both servers."""

    def open(self, schema: TableSchema) -> bool:
        """Look for the table, and choose the columns that are compared; return whether it exists."""
        with TargetErrors(self.target.name):
            found = columns_of(self.session, self.name)
        known = [each for name, each in found.items() if name in schema.names]
        self._schema, self.left_out = schema, [name for name in schema.names if name not in found]
        # Else the values are compared that the texts stand for.
        types = {column.name: column.type for column in schema}
        self._as_texts = self.has_texts and all(_has_same_text(types[each.name], each.sql) for each in known)
        key = tuple(column.name for column in schema.key_columns)
        self._table = TargetTable(self.name, tuple(known), key)
        self.is_open = {each for each, _ in META} <= found.keys()
        return self.is_open

    @property
    def _names(self) -> list[str]:
        assert self._table is not None, "open comes first"
        return [column.name for column in (*self._table.key_columns, *self._table.data)]

    @property
    def shape(self) -> str:
        """The columns that are compared, with the types of the source."""
        return repr([(column.name, column.type) for column in self._schema if column.name in self._names])

    def expected(self, rows: SourceRows) -> pa.RecordBatch:
        """Return the digests of the rows that the sink would store."""
        texts = rows.texts if self._as_texts else None
        if texts is not None:
            columns = dict(zip((column.name for column in texts.table.columns), texts.columns, strict=True))
            if columns.keys() >= set(self._names):
                return self._digests([columns[name] for name in self._names])
        events = rows.events.values()
        return digests_of_values(
            self._values({**(event.after or {}), **(event.key or {})}) for event in events
        )

    def fingerprints(self) -> Iterator[pa.RecordBatch]:
        """Yield the digests of all rows, in parts. Tombstones are left out."""
        for lines, size in self._parts():
            if self._as_texts:
                yield self._digests(columns_of_lines(lines, size, len(self._names)))
            else:
                yield digests_of_values(self._values(self._image(self._names, row)) for row in rows_of(lines))

    def _parts(self) -> Iterator[tuple[bytes, int]]:
        """Yield the lines of all rows in the text format of COPY, and their number, in parts."""
        selected = ", ".join(map(quote, self._names))
        query = f"copy (select {selected} from {self.name} where not {quote(DELETED)}) to stdout"
        with TargetErrors(self.target.name), self.session.cursor() as cursor, cursor.copy(query) as copy:
            # The server sends each row as one message.
            messages = iter(copy)
            while lines := list(islice(messages, _PART)):
                yield b"".join(lines), len(lines)

    def _digests(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return the digests of rows, whose columns `_names` are texts."""
        names = [column.name for column in self._schema.key_columns]
        key = [columns[self._names.index(name)] for name in names]
        keys = key_texts(self._schema, key) if has_plain_key(self._schema) else None
        if keys is None:
            rows = zip(*(column.to_pylist() for column in key), strict=True)
            keys = [self._key(self._image(names, row)) for row in rows]
        return digests_of_columns(pa.array(keys, pa.string()), columns)

    def _image(self, names: Sequence[str], texts: Sequence[Any]) -> Image:
        """Return the values of columns of a row."""
        types = {column.name: column.type for column in self._schema}
        return {
            name: None if text is None else _value(text_reader(types[name]) or str, text)
            for name, text in zip(names, texts, strict=True)
        }

    def _values(self, row: Image) -> list[Any]:
        """Return the key of a row, and the values that are compared."""
        return [self._key(row), *(row.get(name) for name in self._names)]

    def _key(self, row: Image) -> str:
        return key_text(
            canonical_key(self._schema, {each.name: row[each.name] for each in self._schema.key_columns})
        )

    def look(self, rows: Mapping[str, ChangeEvent | None]) -> Look:
        """See `penstock.verify.rounds.Target`."""
        assert self._table is not None, "open comes first"
        keys = list(rows)
        found: dict[str, StoredRow] = {}
        with TargetErrors(self.target.name), self.session.transaction(force_rollback=True):
            self.session.execute(create_batch(_BATCH, self._table))
            refused = self._copy(rows)
            for version, found_version, deleted, *values in self.session.execute(self._comparison()):
                key = keys[decode_version(version).order]
                pairs = zip(self._names, values[::2], values[1::2], strict=True)
                event = rows[key]
                sent = (event.after or {}) if event is not None else {}
                # A column that the source has dropped was not sent, and keeps its value.
                different = [
                    ColumnDifference(*each) for each in pairs if each[1] != each[2] and each[0] in sent
                ]
                if key in refused:
                    different = [REFUSED]
                found[key] = StoredRow(stored_version(found_version), deleted, different)
            return Look(found, self._truncated())

    def _copy(self, rows: Mapping[str, ChangeEvent | None]) -> set[str]:
        """Fill the temporary table with the rows that the sink would write, numbered; return those that it refuses."""
        assert self._table is not None, "open comes first"
        refused: set[str] = set()
        with self.session.cursor() as cursor, cursor.copy(copy_batch(_BATCH, self._table)) as copy:
            for number, (key, event) in enumerate(rows.items()):
                if event is None or event.key is None:
                    values = key_values(self._schema, key)
                    image = {c.name: value for c, value in zip(self._schema.key_columns, values, strict=True)}
                    change = RowChange(image, Version(number), 0, deleted=True)
                else:
                    sent = {name: each for name, each in (event.after or {}).items() if name not in event.key}
                    change = RowChange(event.key, Version(number), 0, values=sent)
                try:
                    for row in self._batch_rows(change):
                        copy.write_row(row)
                except RowFaultError:
                    refused.add(key)
                    for row in self._batch_rows(RowChange(change.key, Version(number), 0, deleted=True)):
                        copy.write_row(row)
        return refused

    def _batch_rows(self, change: RowChange) -> list[list[str | None]]:
        assert self._table is not None, "open comes first"
        changes = TableChanges(_NO_SOURCE, self._schema, rows={(): change})
        return [row for row, _ in batch_rows(self._table, changes, one_shard=True)]

    def _comparison(self) -> str:
        assert self._table is not None, "open comes first"
        pairs = [f"b.{quote(name)}::text, t.{quote(name)}::text" for name in self._names]
        joined = " and ".join(f"t.{quote(name)} = b.{quote(name)}" for name in self._table.key)
        return (
            f"select b.{quote(VERSION)}, t.{quote(VERSION)}, t.{quote(DELETED)}, {', '.join(pairs)} "
            f"from {quote(_BATCH)} b join {self.name} t on {joined}"
        )

    def _truncated(self) -> int | None:
        table = TableName(self.name.schema, TRUNCATIONS)
        query = f"select version from {table} where table_name = %s"
        versions = [stored_version(text) for (text,) in self.session.execute(query, (self.name.table,))]
        return max((each.order for each in versions if each is not None), default=None)


def _has_same_text(type_: ColumnType, sql: str) -> bool:
    """Return whether a value has the same text in a column of the source and in the target's one, which has the type
    `sql`.
    """
    if sql == "text":
        return text_reader(type_) is None
    # A value has been stored, so a limit of its length or its digits does not change its text.
    return _LIMITS.sub("", type_.native) == _LIMITS.sub("", sql)


def _value(read: Callable[[str], Any], text: str) -> Any:
    """Return a value; the text itself if it is none of the source's type, because the target's column has another."""
    try:
        return read(text)
    except (ValueError, ArithmeticError):
        return text
