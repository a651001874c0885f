"""Rows of a transaction as the server has sent them: a sequence of records that are made when they are asked for. Pure.

A consumer that reads the texts of the values alone takes `messages`, and no record is made at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, overload

from penstock.io.change_streams.lazy_records import LazyRecords, joined, parts_of
from penstock.io.postgres.decode import decode
from penstock.io.postgres.record import ChangeKind, LogRecord, LogTransaction, Table

KINDS = {b"I"[0]: ChangeKind.INSERT, b"U"[0]: ChangeKind.UPDATE, b"D"[0]: ChangeKind.DELETE}
"""The first bytes of messages of rows."""


class LoggedRows(LazyRecords[LogRecord]):
    """Inserts, updates and deletes of one transaction, in order. Never empty; a slice of it is one, too.

    messages: the position and the message of each row.
    sequences: the place of each row in the transaction, from 1.
    tables: the tables as they were described then, by the four bytes of the object id in a message.
    has_last: no record of the transaction follows the last one.
    """

    is_batch = False
    __slots__ = ("_records", "has_last", "messages", "sequences", "tables", "transaction")

    def __init__(
        self,
        transaction: LogTransaction,
        commit_timestamp: int,
        tables: Mapping[bytes, Table],
        messages: Sequence[tuple[int, bytes]],
        sequences: Sequence[int],
        has_last: bool = False,
    ) -> None:
        """`commit_timestamp`: `LogRecord.event_timestamp` of the records, nanoseconds."""
        self.transaction, self.commit_timestamp = transaction, commit_timestamp
        self.tables, self.messages, self.sequences = tables, messages, sequences
        self.has_last = has_last
        self._records: list[LogRecord] | None = None

    @property
    def size(self) -> int:
        """The size of the messages in bytes."""
        return sum([len(payload) for _, payload in self.messages])

    def ended(self) -> LoggedRows:
        """Return the same rows as the last ones of their transaction."""
        return self._with(self.messages, self.sequences, has_last=True)

    def after(self, sequence: int) -> LoggedRows | None:
        """Return the rows after a place in the transaction; None if there are none. All rows must be here still."""
        first = sequence + 1 - self.sequences[0]
        return self if first <= 0 else self[first:] if first < len(self) else None

    def of_tables(self, wanted: Callable[[Table], bool]) -> LoggedRows | None:
        """Return the rows of some of the tables; None if there are none."""
        chosen = {oid for oid, table in self.tables.items() if wanted(table)}
        if len(chosen) == len(self.tables):
            return self
        kept = [number for number, (_, payload) in enumerate(self.messages) if payload[1:5] in chosen]
        if not kept:
            return None
        return LoggedRows(
            self.transaction,
            self.commit_timestamp,
            {oid: self.tables[oid] for oid in chosen},
            [self.messages[number] for number in kept],
            [self.sequences[number] for number in kept],
            self.has_last and kept[-1] == len(self) - 1,
        )

    def tables_read(self) -> Collection[Table]:
        return self.tables.values()

    def by_table(self) -> Iterator[tuple[Table, LoggedRows]]:
        """Yield neighbours of one table together."""
        if len(self.tables) == 1:
            yield next(iter(self.tables.values())), self
            return
        start, oid = 0, self.messages[0][1][1:5]
        for number, (_, payload) in enumerate(self.messages):
            if payload[1:5] != oid:
                yield self.tables[oid], self[start:number]
                start, oid = number, payload[1:5]
        yield self.tables[oid], self[start:]

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> LogRecord: ...
    @overload
    def __getitem__(self, index: slice) -> LoggedRows: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            has_last = self.has_last and stop == len(self)
            return self._with(self.messages[start:stop], self.sequences[start:stop], has_last=has_last)
        return self._record(index) if self._records is None else self._records[index]

    def __iter__(self) -> Iterator[LogRecord]:
        if self._records is None:
            self._records = [self._record(number) for number in range(len(self))]
        return iter(self._records)

    def __reduce__(self) -> Any:
        # The tables of a slice may be fewer.
        oids = {payload[1:5] for _, payload in self.messages}
        tables = {oid: self.tables[oid] for oid in oids}
        parts = self.transaction, self.commit_timestamp, tables, self.messages, self.sequences, self.has_last
        return LoggedRows, parts

    def _with(
        self, messages: Sequence[tuple[int, bytes]], sequences: Sequence[int], *, has_last: bool
    ) -> LoggedRows:
        return LoggedRows(self.transaction, self.commit_timestamp, self.tables, messages, sequences, has_last)

    def _record(self, number: int) -> LogRecord:
        lsn, payload = self.messages[number]
        row: Any = decode(payload)
        kind = KINDS[payload[0]]
        new = None if kind is ChangeKind.DELETE else row.new
        old, old_is_full = (None, False) if kind is ChangeKind.INSERT else (row.old, row.old_is_full)
        last = self.has_last and number in (-1, len(self) - 1)
        return LogRecord(
            kind,
            self.commit_timestamp,
            self.transaction,
            self.sequences[number],
            lsn,
            last,
            self.tables[payload[1:5]],
            new,
            old,
            old_is_full,
        )


def neighbours_by_table(
    records: Sequence[LogRecord],
) -> Iterator[tuple[Table | None, Sequence[LogRecord]]]:
    """Yield neighbours of one table together, also across the parts of joined sequences."""
    table: Table | None = None
    met: list[Sequence[LogRecord]] = []
    for part in parts_of(records):
        for own, neighbours in part.by_table() if isinstance(part, LoggedRows) else _by_table(part):
            # By identity: a table that was described again may have other columns.
            if met and own is not table:
                yield table, joined(met)
                met = []
            table = own
            met.append(neighbours)
    if met:
        yield table, joined(met)


def _by_table(records: Sequence[LogRecord]) -> Iterator[tuple[Table | None, Sequence[LogRecord]]]:
    start = 0
    while start < len(records):
        table, end = records[start].table, start + 1
        while end < len(records) and records[end].table is table:
            end += 1
        yield table, records[start:end]
        start = end
