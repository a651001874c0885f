"""Converts a `LogRecord` to `ChangeEvent`s. Pure.

| replica identity | `before` of an UPDATE | `after` of an UPDATE | `before` of a DELETE |
|---|---|---|---|
| DEFAULT (primary key) | the old key, if it changed | all columns, without unchanged large values | the key |
| INDEX | the old columns of the index, if they changed | the same | the columns of the index |
| FULL | all columns | all columns | all columns |
| NOTHING | the server refuses the statement | | |

A column of the table that an image lacks was not sent: a large value (TOAST) that did not change, or a column
outside of the replica identity.

Source: PostgreSQL documentation, "ALTER TABLE" (REPLICA IDENTITY) and "Logical Replication Message Formats".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from penstock.event.keys import canonical_key, key_rules
from penstock.event.model import (
    NO_COLUMNS,
    ChangeEvent,
    Column,
    Image,
    Message,
    Op,
    Source,
    TableSchema,
    Transaction,
    Version,
)
from penstock.io.postgres.column_types import text_reader
from penstock.io.postgres.record import UNCHANGED, ChangeKind, LogRecord, LogTransaction, Row, Table
from penstock.io.postgres.text_values import Convert

OPS = {
    ChangeKind.INSERT: Op.CREATE,
    ChangeKind.UPDATE: Op.UPDATE,
    ChangeKind.DELETE: Op.DELETE,
    ChangeKind.TRUNCATE: Op.TRUNCATE,
    ChangeKind.MESSAGE: Op.MESSAGE,
    ChangeKind.READ: Op.READ,
}


class EventConverter:
    """Converts the records of one database. Each event's source has its `server`, `database` and `stream`."""

    def __init__(self, server: str = "", database: str = "", stream: str = "") -> None:
        self._server, self._database, self._stream = server, database, stream
        self._tables: dict[Table, _Table] = {}
        # Neighbours share their table, and its hash walks all columns.
        self._last_table: Table | None = None
        self._last: _Table | None = None

    def __call__(self, record: LogRecord) -> list[ChangeEvent]:
        """Return the one event of a record.

        Raises:
            ValueError: a value does not have the form of its type; the message names table and column, not the value.
        """
        if record.table is None:
            return [self._message(record)]
        if record.table is not self._last_table or self._last is None:
            self._last_table, self._last = record.table, self._find_table(record.table)
        return [self._last.event(record)]

    def source_and_schema(self, table: Table) -> tuple[Source, TableSchema]:
        """Return the source and the schema of the events of a table."""
        found = self._find_table(table)
        return found.source, found.schema

    def key_of(self, table: Table) -> Callable[[Row], Image | None]:
        """Return the function from a row of a table, with the values of all key columns, to the key of its event.

        It raises a ValueError if a value does not have the form of its type.
        """
        return self._find_table(table).key_of

    def _find_table(self, table: Table) -> _Table:
        found = self._tables.get(table)
        if found is None:
            source = Source(
                "postgresql",
                self._server,
                self._database,
                table.schema,
                table.name,
                self._stream,
                table.replica_identity,
            )
            found = self._tables[table] = _Table(source, table)
        return found

    def _message(self, record: LogRecord) -> ChangeEvent:
        source = Source("postgresql", self._server, self._database, stream=self._stream)
        message = Message(record.prefix, record.content, record.transaction is not None)
        return ChangeEvent(
            source,
            Op.MESSAGE,
            record.event_timestamp,
            None,
            None,
            None,
            version_of(record),
            NO_COLUMNS,
            _transaction(record),
            message,
        )


class _Table:
    """The part that is the same for all records of a table with the same columns."""

    def __init__(self, source: Source, table: Table) -> None:
        self.source, self.schema = source, table_schema(table)
        self._name = str(table)
        self._columns: list[tuple[str, Convert | None]] = [
            (column.name, text_reader(column.type)) for column in table.columns
        ]
        self._identity = [column.in_identity for column in table.columns]
        self._key = [column.name for column in self.schema.key_columns]
        self._key_numbers = [self.schema.names.index(name) for name in self._key]
        self._has_key_rules = bool(key_rules(self.schema))

    def event(self, record: LogRecord) -> ChangeEvent:
        before = after = key = None
        if record.new is not None:
            after = self._image(record.new)
        if record.old is not None:
            before = self._image(record.old) if record.old_is_full else self._identity_image(record.old)
        if after is not None and before is not None and record.old_is_full:
            # The server does not repeat an unchanged large value in the new row when the old row has it.
            for name in before.keys() - after.keys():
                after[name] = before[name]
        image = after if after is not None else before
        if image is not None and self._key:
            key = {name: image[name] for name in self._key if name in image}
            if self._has_key_rules:
                key = canonical_key(self.schema, key)
        return ChangeEvent(
            self.source,
            OPS[record.kind],
            record.event_timestamp,
            key,
            before,
            after,
            version_of(record),
            self.schema,
            _transaction(record),
            incremental=record.incremental,
        )

    def key_of(self, row: Row) -> Image | None:
        if not self._key:
            return None
        columns = [self._columns[number] + (row[number],) for number in self._key_numbers]
        key = {name: value if convert is None else convert(value) for name, convert, value in columns}  # type: ignore[arg-type]
        return canonical_key(self.schema, key) if self._has_key_rules else key

    def _image(self, row: Row) -> Image:
        image: Image = {}
        try:
            for (name, convert), value in zip(self._columns, row, strict=True):
                if value is UNCHANGED:
                    continue
                image[name] = value if value is None or convert is None else convert(value)  # type: ignore[arg-type]
        # `Decimal` refuses a text with an ArithmeticError, and an array that ends too early raises an IndexError.
        except (ValueError, ArithmeticError, IndexError):
            raise self._not_readable(row) from None
        return image

    def _identity_image(self, row: Row) -> Image:
        # The server fills the columns outside of the identity with NULL, which says nothing of their values.
        known = tuple(value if part else UNCHANGED for value, part in zip(row, self._identity, strict=True))
        return self._image(known)

    def _not_readable(self, row: Row) -> ValueError:
        if len(row) != len(self._columns):
            return ValueError(f"a row of {self._name} has {len(row)} columns and not {len(self._columns)}")
        # Converted once more, because the fast loop does not know at which column it failed.
        for (name, convert), value in zip(self._columns, row, strict=True):
            try:
                if isinstance(value, str) and convert is not None:
                    convert(value)
            except (ValueError, ArithmeticError, IndexError):
                return ValueError(
                    f"column {name} of {self._name}: the value does not have the form of its type"
                )
        return ValueError(f"a row of {self._name} cannot be read")


@lru_cache(maxsize=1024)
def _transaction_of(transaction: LogTransaction, last: bool, timestamp: int) -> Transaction:
    # PostgreSQL has one partition, and the number of records is known only at the end.
    committed = transaction.commit_timestamp
    return Transaction(
        str(transaction.id),
        None,
        1,
        last,
        "",
        transaction.origin,
        False,
        transaction.origin_lsn or None,
        transaction.previous_end_lsn or None,
        None if committed == timestamp else committed,
    )


def _transaction(record: LogRecord) -> Transaction | None:
    if record.transaction is None:
        return None
    return _transaction_of(record.transaction, record.last, record.event_timestamp)


def version_of(record: LogRecord) -> Version:
    """Return the place of a change in the log."""
    sequence = f"{sequence_of(record):020d}"
    if record.transaction is None:
        return Version(record.lsn, "", sequence, record.sequence)
    transaction = record.transaction
    return Version(transaction.commit_lsn, str(transaction.id), sequence, record.sequence)


def sequence_of(record: LogRecord) -> int:
    """Return the number in `Version.sequence`."""
    # A server that is idle writes no log. A row that is read twice then has one position, and the second READ must have
    # a higher version.
    return record.event_timestamp if record.kind is ChangeKind.READ else record.lsn


def table_schema(table: Table) -> TableSchema:
    """Return the columns of a table for the event model."""
    return TableSchema(
        tuple(
            Column(
                column.name, column.type, column.nullable, column.key_position, column.default, column.number
            )
            for column in table.columns
        )
    )
