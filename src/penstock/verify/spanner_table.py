"""A replica in a table of Spanner. Needs pyarrow and google-cloud-spanner.

Rows and their versions are in two tables, which one transaction of the sink writes. So both are read at one time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from penstock.errors import UsageError
from penstock.event.keys import canonical_key
from penstock.event.model import ChangeEvent, Image, TableSchema
from penstock.io.columnar.table_rows import key_text
from penstock.io.spanner.client import Client
from penstock.io.spanner.events import EventConverter, table_schema
from penstock.io.spanner.initial_scan import plan
from penstock.io.spanner.initial_scan.client import ScanClient
from penstock.io.spanner.initial_scan.frontier import KeyRange, Table
from penstock.io.spanner.initial_scan.rows import RowReader
from penstock.io.spanner.sink.target import SpannerTarget
from penstock.io.spanner.sink.values import VERSION_COLUMNS, VERSIONS, spanner_value
from penstock.io.spanner.sink.values import key_text as key_of_version
from penstock.io.spanner.source import EMULATOR_VARIABLE, Connection
from penstock.io.staging.options import UNAVAILABLE_SECONDS
from penstock.verify.digests import digests_of_values, no_rows
from penstock.verify.keys import NO_KEY, key_values
from penstock.verify.rounds import ColumnDifference, Look, StoredRow, column_differences, stored_version
from penstock.verify.source import SourceRows
from penstock.verify.spanner_values import form_of, key_value, stored_value

_PART = 10_000
_KEYS_IN_READ = 500
_VERSIONS = Table(VERSIONS, VERSION_COLUMNS, (1, 2, 3, 4), 2)
_UNFIT = (ValueError, TypeError, ArithmeticError)
"""Raised for values that a type does not have."""

_Answer = TypeVar("_Answer")


def client_of(target: SpannerTarget) -> ScanClient:
    """Return a client of the database that the sink writes to."""
    connection = Connection.from_arguments(
        EMULATOR_VARIABLE, credentials=None, emulator_host=target.emulator_host, api_endpoint=None
    )
    return ScanClient(Client(target, connection))


@dataclass(slots=True)
class SpannerTable:
    """One table."""

    client: ScanClient
    name: str
    left_out: list[str] = field(default_factory=list, init=False)
    """Columns of the source that the table does not have."""
    is_open: bool = field(default=False, init=False)
    _schema: TableSchema = field(default=TableSchema(()), init=False)
    """Of the source's events."""
    _columns: TableSchema = field(default=TableSchema(()), init=False)
    """Those of the target that are compared."""
    _table: Table = field(default=Table("", (), (), 0), init=False)
    _forms: list[tuple[str, Callable[[Any], Any]]] = field(default_factory=list, init=False)

    def open(self, schema: TableSchema) -> bool:
        """Look for the table, and choose the columns that are compared; return whether it exists.

        Raises:
            UsageError: its primary key has other columns.
        """
        found = self._ask(partial(self._found, schema))
        if found is None:
            return False
        key, wanted = found.columns[: found.key_size], [column.name for column in schema.key_columns]
        if set(key) != set(wanted):
            raise UsageError(
                f"{self.name}: the primary key of the target is ({', '.join(key)}), and that of the source is "
                f"({', '.join(wanted)}). Leave the table out with --table"
            )
        self._schema, self._table = schema, found
        self.left_out = [name for name in schema.names if name not in found.columns]
        # The first message tells the types, also if there is no row.
        self._columns = self._ask(lambda: self._read(found, KeyRange(0), limit=1)).columns
        self._forms = [(each.name, form) for each in self._columns if (form := form_of(each.type))]
        self.is_open = True
        return True

    def _found(self, schema: TableSchema) -> Table | None:
        tables = plan.tables_of(lambda sql: self.client.query(sql, None))
        table = tables.get(self.name)
        return None if table is None else table.read(lambda column: column.name in schema.names)

    @property
    def shape(self) -> str:
        """The columns that are compared, with their types."""
        return repr(self._columns)

    def expected(self, rows: SourceRows) -> pa.RecordBatch:
        """Return the digests of the rows that the sink would store."""
        wanted = {key: self._stored(event) for key, event in rows.events.items()}
        refused = sorted(key for key, row in wanted.items() if row is None)
        made = digests_of_values(self._values(key, row) for key, row in wanted.items() if row is not None)
        return pa.concat_batches([made, no_rows(refused)])

    def _stored(self, event: ChangeEvent) -> Image | None:
        """Return what a read gives after the sink has written an event; None: the sink refuses the row.

        A column that the event does not have is absent.
        """
        row = {**(event.after or {}), **(event.key or {})}
        types = {column.name: column.type for column in event.schema}
        try:
            return {
                column.name: stored_value(types[column.name], column.type, row[column.name])
                for column in self._columns
                if column.name in row
            }
        except _UNFIT:
            return None

    def _values(self, key: str, row: Image) -> list[Any]:
        return [key, *(row.get(column.name) for column in self._columns)]

    def fingerprints(self) -> Iterator[pa.RecordBatch]:
        """Yield the digests of all rows, in parts."""
        rest = KeyRange(0)
        while (part := self._ask(partial(self._read, self._table, rest, limit=_PART))).rows:
            yield digests_of_values(self._values(self._key(row), row) for row in map(self._formed, part.rows))
            rest = rest.after(part.last_key)

    def _formed(self, row: Image) -> Image:
        return row | {name: form(row[name]) for name, form in self._forms if row[name] is not None}

    def _key(self, row: Image) -> str:
        """Return the key of a row of the target, as the events of the source have it."""
        types = {column.name: column.type for column in self._columns}
        try:
            key = {
                column.name: key_value(column.type, types[column.name], row[column.name])
                for column in self._schema.key_columns
            }
        except _UNFIT:
            return NO_KEY
        return key_text(canonical_key(self._schema, key))

    def look(self, rows: Mapping[str, ChangeEvent | None]) -> Look:
        """See `penstock.verify.rounds.Target`."""
        written = {key: self._written_key(key, event) for key, event in rows.items() if key != NO_KEY}
        keys = {key: values for key, values in written.items() if values is not None}
        # They cannot be told apart, so they are not read again: all of them are extra.
        found = {NO_KEY: StoredRow(None, False)} if NO_KEY in rows else {}
        parts = iter(keys.items())
        while part := dict(islice(parts, _KEYS_IN_READ)):
            found |= self._ask(partial(self._look, part, rows))
        return Look(found)

    def _written_key(self, key: str, event: ChangeEvent | None) -> Image | None:
        """Return the values that the sink writes for a key, in its order; None: it is not one of the source's type."""
        columns = self._schema.key_columns
        try:
            if event is not None and event.key is not None:
                values = [event.key[column.name] for column in columns]
            else:
                values = key_values(self._schema, key)
            return {
                column.name: spanner_value(column.type, value)
                for column, value in zip(columns, values, strict=True)
            }
        except _UNFIT:
            return None

    def _look(
        self, keys: Mapping[str, Image], rows: Mapping[str, ChangeEvent | None]
    ) -> dict[str, StoredRow]:
        timestamp = self._now()
        names = self._table.columns[: self._table.key_size]
        wanted = [json.dumps([values[name] for name in names]) for values in keys.values()]
        stored = _rows(self._table, self.client.read_keys(self._table, wanted, timestamp)).rows
        present = {self._key(row): row for row in map(self._formed, stored)}
        of_versions = {key_of_version(list(values.values())): key for key, values in keys.items()}
        wanted = [json.dumps([self.name, each]) for each in of_versions]
        entries = _rows(_VERSIONS, self.client.read_keys(_VERSIONS, wanted, timestamp)).rows
        versions = {of_versions[entry["RowKey"]]: stored_version(entry["Version"]) for entry in entries}
        return {
            key: StoredRow(
                versions.get(key), key not in present, self._differences(rows[key], present.get(key))
            )
            for key in keys
            if key in present or key in versions
        }

    def _differences(self, event: ChangeEvent | None, found: Image | None) -> list[ColumnDifference]:
        return [] if event is None or found is None else column_differences(self._stored(event), found)

    def _read(self, table: Table, rest: KeyRange, *, limit: int) -> _Rows:
        return _rows(table, self.client.read(table, rest, self._now(), limit=limit))

    def _now(self) -> int:
        # A strong read: it sees every commit that was acknowledged before.
        return self.client.begin(None).timestamp

    def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        return self.client.backoff.ask(question, UNAVAILABLE_SECONDS)


class _Rows(NamedTuple):
    """Rows that were read. `last_key`: as `KeyRange.after` has it."""

    columns: TableSchema
    rows: list[Image]
    last_key: str


def _rows(table: Table, call: Iterable[bytes]) -> _Rows:
    reader, convert, last_key = RowReader(table, 0), EventConverter(), ""
    rows: list[Image] = []
    for message in call:
        for part in reader.feed(message):
            rows += [event.after or {} for event in convert(part.record)]
            last_key = part.last_key
    reader.finish()
    return _Rows(table_schema(reader.columns), rows, last_key)
