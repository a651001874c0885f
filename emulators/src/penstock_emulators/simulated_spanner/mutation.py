"""Mutations, and the net effect of a transaction's mutations on each row.

    changes = net_changes(schema, mutations, read=…, scan=…)

Source: google/spanner/v1/mutation.proto (the kinds of mutation and their errors). A replace of a row that exists is a
deletion and an insertion; so is a deletion followed by an insertion. A row that one transaction inserts and
deletes is no change. Source for the last three: the conformance tests of Google's emulator that are marked as
gaps of the emulator against the service (change_streams_read_write.cc), and measurements on the emulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock_emulators.simulated_spanner.errors import ServiceError, failed, invalid, not_found
from penstock_emulators.simulated_spanner.key_set import KeySet
from penstock_emulators.simulated_spanner.rows import Key, Row, SortKey, order_of
from penstock_emulators.simulated_spanner.schema import Column, Schema, Table
from penstock_emulators.simulated_spanner.value import Value, canonical, check_length

INSERT, UPDATE, UPSERT, REPLACE, DELETE = "insert", "update", "insert_or_update", "replace", "delete"
"""The kinds of mutation, by their names in the protocol."""


@dataclass(frozen=True, slots=True)
class Write:
    """Rows to insert, update, insert or update, or replace: `columns` names the values of each row."""

    kind: str
    table: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Rows to delete; those that do not exist are no error."""

    table: str
    keys: KeySet


Mutation: TypeAlias = Write | Delete


@dataclass(slots=True)
class Change:
    """The effect of a transaction on one row.

    `before` and `after` are the row's values, None if there is no row. `written` are the names of the columns
    that the transaction set, whether or not their values changed. `recreated` says that a row which existed
    was deleted and inserted again in between.
    """

    table: Table
    key: Key
    order: SortKey
    before: Row | None
    after: Row | None
    written: set[str] = field(default_factory=set)
    recreated: bool = False

    @property
    def is_effect(self) -> bool:
        """Whether the row was touched at all, as readers see it."""
        # A row that is inserted and deleted within a transaction never existed for readers.
        return self.before is not None or self.after is not None


class Transaction:
    """Applies mutations one after the other over what the database holds."""

    def __init__(
        self,
        schema: Schema,
        read: Callable[[Table, SortKey], Row | None],
        scan: Callable[[Table], Iterable[tuple[SortKey, Row]]],
    ) -> None:
        self._schema = schema
        self._read = read
        self._scan = scan
        self._changes: dict[tuple[str, SortKey], Change] = {}

    def apply(self, mutation: Mutation) -> None:
        """Apply one mutation.

        Raises:
            ServiceError: the service would refuse the transaction.
        """
        table = self._schema.table(mutation.table)
        if isinstance(mutation, Delete):
            for key in self._keys(table, mutation.keys):
                self._delete(self._change(table, key))
            return
        columns = [table.columns[table.index(name)] for name in mutation.columns]
        for values in mutation.rows:
            self._write(table, mutation.kind, _checked_row(table, columns, values))

    def changes(self) -> list[Change]:
        """Return the net effect, in the order in which rows were first touched.

        Raises:
            ServiceError: a NOT NULL column has no value.
        """
        effects = [each for each in self._changes.values() if each.is_effect and _is_touched(each)]
        # Checked at the end: a later mutation of the transaction may set the column.
        for change in effects:
            if change.after is not None:
                _check_not_null(change.table, change.after)
        return effects

    def row(self, table: Table, order: SortKey) -> Row | None:
        """Return a row as the mutations leave it."""
        found = self._changes.get((table.name, order))
        return self._read(table, order) if found is None else found.after

    def scan(self, table: Table) -> list[tuple[SortKey, Row]]:
        """Return the rows of a table as the mutations leave them, in key order."""
        changes = [each for each in self._changes.values() if each.table.name == table.name]
        # Without changes the database's own order is used.
        rows = list(self._scan(table))
        if not changes:
            return rows
        merged = dict(rows)
        for change in changes:
            merged.pop(change.order, None)
            if change.after is not None:
                merged[change.order] = change.after
        return sorted(merged.items(), key=lambda item: item[0])

    def _change(self, table: Table, key: Key) -> Change:
        order = order_of(table, key)
        found = self._changes.get((table.name, order))
        if found is None:
            before = self._read(table, order)
            # Read once; all later mutations of the row work on this change.
            found = self._changes[table.name, order] = Change(table, key, order, before, before)
        return found

    def _write(self, table: Table, kind: str, row: Row) -> None:
        key = tuple(row.get(table.columns[number].name) for number in table.key)
        change = self._change(table, key)
        if kind == INSERT and change.after is not None:
            raise ServiceError("ALREADY_EXISTS", f"Row [{_shown(key)}] in table {table.name} already exists")
        if kind == UPDATE and change.after is None:
            raise not_found(f"Row [{_shown(key)}] in table {table.name} is missing. Row cannot be updated.")
        if kind == REPLACE:
            # A replace is a deletion and an insertion, also for the change stream.
            self._delete(change)
        if change.after is None:
            change.recreated = change.before is not None
            # Columns that an insert does not name have their defaults, else NULL.
            change.after = {**_defaults(table), **row}
        else:
            # Columns that an update does not name keep their values.
            change.after = {**change.after, **row}
        change.written |= row.keys()

    def _delete(self, change: Change) -> None:
        change.after = None
        # After a deletion every column counts as written: an insertion that follows sets all of them.
        change.written = {each.name for each in change.table.columns} if change.before is not None else set()

    def _keys(self, table: Table, keys: KeySet) -> list[Key]:
        found = [_checked_key(table, key) for key in keys.keys]
        if keys.scans:
            names = [table.columns[number].name for number in table.key]
            # The rows as the transaction sees them: an earlier mutation may have added some.
            found += [tuple(row.get(n) for n in names) for row in keys.matching(self.scan(table))]
        return found


def _is_touched(change: Change) -> bool:
    return change.after is None or bool(change.written)


def _checked_row(table: Table, columns: Sequence[Column], values: Sequence[Value]) -> Row:
    if len(values) != len(columns):
        raise invalid(f"Mutation for {table.name} has {len(values)} values for {len(columns)} columns.")
    row: Row = {}
    for column, value in zip(columns, values, strict=True):
        row[column.name] = checked = canonical(value, column.kind)
        if column.length is not None:
            kind = column.kind.element or column.kind
            check_length(checked, kind, column.length, f"{table.name}.{column.name}")
    return row


def _checked_key(table: Table, key: Key) -> Key:
    return tuple(
        canonical(value, table.columns[column].kind) for value, column in zip(key, table.key, strict=True)
    )


def _defaults(table: Table) -> Row:
    return {
        each.name: each.default if each.default is None else canonical(each.default, each.kind)
        for each in table.columns
    }


def _check_not_null(table: Table, row: Row) -> None:
    for column in table.columns:
        if column.not_null and row.get(column.name) is None:
            raise failed(f"{column.name} must not be NULL in table {table.name}.")


def _shown(key: Key) -> str:
    return ",".join("NULL" if each is None else str(each) for each in key)
