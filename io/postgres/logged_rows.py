"""Rows of transactions as the server has sent them: a sequence of records that are made when they are asked for. Pure.

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
    """Inserts, updates and deletes of one transaction, or of several that follow each other. In order; never empty.

    Each sequence has one entry for each row; a slice is `LoggedRows` too.

    messages: the position and the message.
    transactions: the transaction, one object for all of its rows.
    timestamps: `LogRecord.event_timestamp`, nanoseconds. They never fall.
    sequences: the place in the transaction, from 1.
    lasts: whether no record of the transaction follows.
    tables: not for each row, but the tables as they were described then, by the four bytes of the object id in a
        message.
    """

    is_batch = False
    __slots__ = ("_records", "lasts", "messages", "sequences", "tables", "timestamps", "transactions")

    def __init__(
        self,
        tables: Mapping[bytes, Table],
        messages: Sequence[tuple[int, bytes]],
        transactions: Sequence[LogTransaction],
        timestamps: Sequence[int],
        sequences: Sequence[int],
        lasts: Sequence[bool],
    ) -> None:
        self.tables, self.messages = tables, messages
        self.transactions, self.timestamps = transactions, timestamps
        self.sequences, self.lasts = sequences, lasts
        self._records: list[LogRecord] | None = None

    @classmethod
    def of_one(
        cls,
        transaction: LogTransaction,
        timestamp: int,
        tables: Mapping[bytes, Table],
        messages: Sequence[tuple[int, bytes]],
        sequences: Sequence[int],
        *,
        ended: bool = False,
    ) -> LoggedRows:
        """Return rows of one transaction. `ended`: no record of it follows."""
        size = len(messages)
        lasts = [False] * size
        lasts[-1] = ended
        return cls(tables, messages, [transaction] * size, [timestamp] * size, sequences, lasts)

    @property
    def newest(self) -> int:
        return self.timestamps[-1]

    @property
    def times_us(self) -> list[int]:
        return [timestamp // 1000 for timestamp in self.timestamps]

    @property
    def size(self) -> int:
        """The size of the messages in bytes."""
        return sum([len(payload) for _, payload in self.messages])

    def ended(self) -> LoggedRows:
        """Return the same rows as the last ones of their transaction."""
        lasts = [*self.lasts[:-1], True]
        return LoggedRows(
            self.tables, self.messages, self.transactions, self.timestamps, self.sequences, lasts
        )

    def after(self, lsn: int, claimed: int) -> LoggedRows | None:
        """Return the rows that were not read; None if there are none.

        Transactions that were committed before `lsn` were read, and so were the first `claimed` records of the one that
        follows them.
        """
        first = 0
        # `lsn` is at or after the end of the last transaction that was read, and the next one commits after it.
        while first < len(self) and self.transactions[first].commit_lsn < lsn:
            first += 1
        if claimed and first < len(self):
            partly = self.transactions[first]
            while (
                first < len(self) and self.transactions[first] is partly and self.sequences[first] <= claimed
            ):
                first += 1
        return self if not first else self[first:] if first < len(self) else None

    def chosen(self, wanted: Callable[[LogTransaction, Table], bool]) -> LoggedRows | None:
        """Return the rows of some transactions and tables; None if there are none."""
        transaction = self.transactions[0]
        # Within one transaction the answer depends on the table alone: one call for each table instead of each row.
        if self.transactions[-1] is transaction:
            some = {oid for oid, table in self.tables.items() if wanted(transaction, table)}
            if len(some) == len(self.tables):
                return self
            kept = [number for number, (_, payload) in enumerate(self.messages) if payload[1:5] in some]
        else:
            tables = self.tables
            kept = [
                number
                for number, (of, (_, payload)) in enumerate(
                    zip(self.transactions, self.messages, strict=True)
                )
                if wanted(of, tables[payload[1:5]])
            ]
            if len(kept) == len(self):
                return self
        return self._only(kept) if kept else None

    def by_transaction(self) -> Iterator[LoggedRows]:
        """Yield the rows of each transaction."""
        start = 0
        for number, transaction in enumerate(self.transactions):
            if transaction is not self.transactions[start]:
                yield self[start:number]
                start = number
        yield self[start:]

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
            return LoggedRows(
                self.tables,
                self.messages[index],
                self.transactions[index],
                self.timestamps[index],
                self.sequences[index],
                self.lasts[index],
            )
        # Counters ask for the first record of a batch alone, to learn its size.
        return self._record(index) if self._records is None else self._records[index]

    def __iter__(self) -> Iterator[LogRecord]:
        if self._records is None:
            self._records = [self._record(number) for number in range(len(self))]
        return iter(self._records)

    def __reduce__(self) -> Any:
        return LoggedRows, (
            self.tables_of_rows(),
            self.messages,
            self.transactions,
            self.timestamps,
            self.sequences,
            self.lasts,
        )

    def tables_of_rows(self) -> dict[bytes, Table]:
        """Return the tables of these rows. A slice may have fewer than `tables`."""
        return {oid: self.tables[oid] for oid in {payload[1:5] for _, payload in self.messages}}

    def _only(self, kept: Sequence[int]) -> LoggedRows:
        rows = LoggedRows(
            self.tables,
            [self.messages[number] for number in kept],
            [self.transactions[number] for number in kept],
            [self.timestamps[number] for number in kept],
            [self.sequences[number] for number in kept],
            [self.lasts[number] for number in kept],
        )
        # Without the tables of rows that are left out, which metrics would name otherwise.
        rows.tables = rows.tables_of_rows()
        return rows

    def _record(self, number: int) -> LogRecord:
        lsn, payload = self.messages[number]
        row: Any = decode(payload)
        kind = KINDS[payload[0]]
        # The messages of inserts have no field for an old row, and those of deletions none for a new one.
        new = None if kind is ChangeKind.DELETE else row.row if kind is ChangeKind.UPDATE else row.new
        old, old_is_full = (None, False) if kind is ChangeKind.INSERT else (row.old, row.old_is_full)
        return LogRecord(
            kind,
            self.timestamps[number],
            self.transactions[number],
            self.sequences[number],
            lsn,
            self.lasts[number],
            self.tables[payload[1:5]],
            new,
            old,
            old_is_full,
        )


def chosen_records(
    records: Sequence[LogRecord], wanted: Callable[[LogTransaction | None, Table | None], bool]
) -> Sequence[LogRecord] | None:
    """Return the records of some transactions and tables; None if there are none. `LoggedRows` stay such."""
    kept: list[Sequence[LogRecord]] = []
    for part in parts_of(records):
        if isinstance(part, LoggedRows):
            chosen: Sequence[LogRecord] | None = part.chosen(wanted)
        else:
            chosen = [record for record in part if wanted(record.transaction, record.table)]
        if chosen:
            kept.append(chosen)
    return joined(kept) if kept else None


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
