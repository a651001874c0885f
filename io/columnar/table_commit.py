"""`TableCommit`: one commit of one table, in any format. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import InvariantError
from penstock.event.column_numbers import ColumnMoves, Numbers
from penstock.event.model import Source, TableSchema, Version
from penstock.event.replica import TableChanges, fold
from penstock.event.schema_changes import SchemaChange
from penstock.event.schema_policies import ChangePolicies, Entries, policies_of
from penstock.io.columnar.replica import TableEvents
from penstock.io.columnar.table_rows import (
    KEY,
    PREFIX,
    History,
    StoredRow,
    current_rows,
    forget_before,
    table_schema,
)
from penstock.io.staging.delivery import LedgerEntry
from penstock.io.staging.epochs import EpochDelivery

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TableCommit(ABC):
    """One commit: the snapshot that it begins at, and what it must write besides the rows.

    `are_new`: the table has no row with a key of the epoch. Then nothing is read, and the rows are appended.
    """

    table: Any
    name: str
    delivery: EpochDelivery
    schema_changes: Entries
    tombstone_seconds: float
    are_new: bool = False

    @property
    @abstractmethod
    def snapshot(self) -> int | None:
        """The number of the newest snapshot of the table that is known here."""

    def committed(self, before: int | None) -> int | None:
        """Return the snapshot that the commit has made, if it began at `before`."""
        return self.snapshot

    @abstractmethod
    def columns(self) -> TableSchema:
        """Return the columns of the table."""

    @abstractmethod
    def ledger(self) -> LedgerEntry | None:
        """Return the entry of the writer in the table."""

    @abstractmethod
    def stored(self, what: str) -> int | None:
        """Return a number that the writer has stored in the table: *truncated* or *forgotten*."""

    def numbers(self, source: Source) -> Numbers:
        """Return the columns of a table of the source that the table has, by number."""
        raise _cannot_follow(self.name)

    def move_columns(self, moves: ColumnMoves, source: Source) -> None:
        """Rename and drop columns, and remember their numbers, in one commit without rows."""
        raise _cannot_follow(self.name)

    def read_keys(self) -> Iterator[list[str]]:
        """Yield the keys of all rows, as text."""
        for part in self.read_columns([KEY]):
            yield part.column(0).to_pylist()

    @abstractmethod
    def read_columns(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows, tombstones included, in parts and in no order."""

    @abstractmethod
    def fit(self, wanted: TableSchema, source: Source) -> tuple[TableSchema, SchemaChange]:
        """Return the columns of the table after the commit; `source` decides which policies hold."""

    def policies(self, source: Source) -> ChangePolicies:
        """Return the policies of a table of the source."""
        return policies_of(self.schema_changes, source.schema, source.table)

    @abstractmethod
    def rows_with(self, keys: list[str]) -> list[StoredRow]:
        """Return the rows with one of the keys."""

    @abstractmethod
    def rows_that_may_change(self, keys: list[str]) -> list[StoredRow]:
        """Return the versions with one of the keys that are valid, and the deletions, which a late change must meet."""

    @abstractmethod
    def valid_rows(self) -> list[StoredRow]:
        """Return the versions that are valid."""

    @abstractmethod
    def write_rows(
        self,
        rows: list[StoredRow],
        changes: TableChanges,
        after: TableSchema,
        change: SchemaChange,
        source: Source,
    ) -> None:
        """Replace the rows with the keys of `rows`; remove what a TRUNCATE and the age of tombstones remove."""

    @abstractmethod
    def write_versions(
        self, rows: list[StoredRow], after: TableSchema, change: SchemaChange, source: Source
    ) -> None:
        """Replace the versions of `rows`, each of one key."""

    @abstractmethod
    def maintain(self) -> None:
        """Keep the table fast to read and to search, after the commit. Its rows stay the same."""

    @property
    def compares_versions(self) -> bool:
        """Whether `write_rows` compares versions when it writes."""
        return False

    @property
    def truncated(self) -> Version | None:
        """The newest TRUNCATE of earlier epochs; its transaction is not kept, so all of it counts as later."""
        order = self.stored("truncated")
        return None if order is None else Version(order)

    def forget_before(self, newest: int) -> int | None:
        """Return the time before which tombstones are to be removed now, in nanoseconds; None: not in this commit."""
        # Tombstones stay until a commit that reads the table anyway.
        if self.are_new:
            return None
        return forget_before(newest, self.stored("forgotten"), self.tombstone_seconds)

    def takes_whole(self, schema: TableSchema) -> bool:
        """Return whether `write_whole` can write rows of events with the columns `schema`."""
        return False

    def write_whole(self, rows: Any) -> None:
        """Write whole rows (`penstock.io.columnar.whole_rows`) as `write_current` writes their events.

        `rows` is an Arrow table with one row for each key.
        """
        raise InvariantError(f"table {self.name} takes no whole rows")

    def write_current(self, events: TableEvents) -> None:
        """Write the newest version of each row."""
        for changes in fold(events.events).values():
            after, change = self.fit(table_schema(changes.schema, "current"), events.source)
            data = frozenset(column.name for column in after if not column.name.startswith(PREFIX))
            guarded = data if self.compares_versions else None
            rows = current_rows(changes, self.rows_with, self.truncated, guarded=guarded)
            self.write_rows(rows, changes, after, change, events.source)

    def write_history(self, events: TableEvents) -> None:
        """Write the versions that are new or end."""
        history = History(self.rows_that_may_change, self.valid_rows, self.rows_with)
        rows = history.add(events.events)
        after, change = self.fit(table_schema(history.schema, "history"), events.source)
        self.write_versions(rows, after, change, events.source)


def _cannot_follow(name: str) -> InvariantError:
    return InvariantError(f"table {name}: a policy for rename or drop was not refused before the start")
