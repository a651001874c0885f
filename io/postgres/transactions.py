"""Converts messages of the log to records with their transactions. Pure.

    reader = TransactionReader(describe_table, near_xid=…)
    for lsn, message in messages:
        for step in reader.read(lsn, message):
            …

A record is handed out one message later than it was read, because only the next message says whether it was the last of
its transaction. So a transaction's steps are its records and then `TransactionEnd`.

Only committed transactions are read, one after another. `log_decoder` brings streamed and prepared transactions into
this form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.errors import DecodeError
from penstock.io.postgres import messages as log
from penstock.io.postgres.decode import decode
from penstock.io.postgres.logged_rows import LoggedRows
from penstock.io.postgres.record import (
    ChangeKind,
    LogRecord,
    LogTransaction,
    Table,
    nanoseconds,
    widen_transaction_id,
)


class TransactionEnd(NamedTuple):
    """All records of a transaction were handed out. The reader continues at `lsn`.

    `prepared`: the position of the oldest prepared transaction that is not resolved; 0: there is none.
    """

    lsn: int
    event_timestamp: int
    prepared: int = 0


Step = LogRecord | LoggedRows | TransactionEnd

_BEGIN, _COMMIT = b"BC"

_OUTSIDE = "the server sent a change outside of a transaction"

DescribeTable = Callable[[log.Relation, dict[int, log.Type]], Table]
"""Adds what the catalogue knows of a table to the description that the log has."""


class TransactionReader:
    """Reads the messages of one connection, in order."""

    def __init__(
        self,
        describe_table: DescribeTable,
        near_xid: int,
        watermark: int,
        previous_end_lsn: int = 0,
        to_text: Callable[[Table, log.Row], log.Row] | None = None,
        *,
        has_own_times: bool = False,
    ) -> None:
        """`near_xid`: a 64-bit transaction id of about now. `watermark`: the event timestamp so far, nanoseconds.

        `previous_end_lsn`: where the last transaction ended that was read before; 0 if none was read. `to_text`: turns
        rows in binary form into rows of texts; None: the server sends texts. `has_own_times`: the event timestamp of a
        record is the time of its commit, also if an earlier transaction has a later one.
        """
        self._has_own_times = has_own_times
        self._describe_table, self._to_text = describe_table, to_text
        self._near_xid = near_xid
        self._event_timestamp = watermark
        self._previous_end_lsn = previous_end_lsn
        self.tables: dict[int, Table] = {}
        """The tables as the server described them last, by object id."""
        self._types: dict[int, log.Type] = {}
        self._begin: log.Begin | None = None
        self._transaction: LogTransaction | None = None
        self._sequence = 0
        self._held: LogRecord | LoggedRows | None = None

    @property
    def takes_rows(self) -> bool:
        """Whether `read_rows` may be called."""
        return self._transaction is not None and self._to_text is None

    @property
    def takes_transactions(self) -> bool:
        """Whether `read_transactions` may be called."""
        return self._begin is None and self._to_text is None

    @property
    def in_transaction(self) -> bool:
        """Whether the end of a transaction is still to come."""
        return self._begin is not None

    def read(self, lsn: int, message: log.Message) -> Sequence[Step]:
        """Return the steps that this message completes. `lsn`: the position that came with it.

        Raises:
            DecodeError: the message does not fit the ones before it.
        """
        # Rows first: nearly all messages are rows. A generator or a `match` would cost as much as the record itself.
        kind = type(message)
        if kind is log.Insert:
            return self._row(ChangeKind.INSERT, lsn, message.relation_oid, message.new)  # type: ignore[union-attr]
        if kind is log.Update:
            update: log.Update = message  # type: ignore[assignment]
            return self._row(
                ChangeKind.UPDATE, lsn, update.relation_oid, update.row, update.old, update.old_is_full
            )
        if kind is log.Delete:
            delete: log.Delete = message  # type: ignore[assignment]
            return self._row(
                ChangeKind.DELETE, lsn, delete.relation_oid, None, delete.old, delete.old_is_full
            )
        return self._rare(lsn, message)

    def read_rows(self, messages: Sequence[tuple[int, bytes]]) -> Sequence[Step]:
        """Do the same for several messages of rows in text form, without decoding them. They become one step.

        Raises:
            DecodeError: a message does not fit the ones before them.
        """
        transaction, held = self._transaction, self._held
        if transaction is None:
            raise DecodeError(_OUTSIDE)
        first = self._sequence + 1
        self._sequence += len(messages)
        sequences = range(first, self._sequence + 1)
        tables = self._tables_of(messages)
        self._held = LoggedRows.of_one(transaction, self._event_timestamp, tables, messages, sequences)
        return () if held is None else (held,)

    def read_transactions(self, messages: Sequence[tuple[int, bytes]]) -> Sequence[Step]:
        """Do the same for whole transactions that have rows only. Their rows become one step.

        Raises:
            DecodeError: a message does not fit the ones before it.
        """
        rows: list[tuple[int, bytes]] = []
        transactions: list[LogTransaction] = []
        timestamps: list[int] = []
        sequences: list[int] = []
        lasts: list[bool] = []
        end = 0
        for lsn, payload in messages:
            kind = payload[0]
            if kind == _BEGIN:
                begin: Any = decode(payload)
                self._start(begin)
            elif kind == _COMMIT:
                commit: Any = decode(payload)
                end = commit.end_lsn
                size = len(rows) - len(transactions)
                # At least one row, so the entry for the last row exists: the decoder puts no other transactions here.
                assert self._transaction is not None
                transactions += [self._transaction] * size
                timestamps += [self._event_timestamp] * size
                sequences += range(1, size + 1)
                lasts += [False] * (size - 1)
                lasts.append(True)
                self._begin = self._transaction = None
                self._previous_end_lsn = max(self._previous_end_lsn, end)
            else:
                rows.append((lsn, payload))
        # No message among these describes a table, so one description holds for all rows.
        tables = self._tables_of(rows)
        return (
            LoggedRows(tables, rows, transactions, timestamps, sequences, lasts),
            TransactionEnd(end, self._event_timestamp),
        )

    def _tables_of(self, messages: Sequence[tuple[int, bytes]]) -> dict[bytes, Table]:
        oids = {payload[1:5] for _, payload in messages}
        return {oid: self._table(int.from_bytes(oid, "big")) for oid in oids}

    def _rare(self, lsn: int, message: log.Message) -> Sequence[Step]:
        match message:
            case log.Begin():
                self._start(message)
            case log.Commit():
                return self._end(message)
            case log.Relation():
                # Invariant: a change that follows has these columns. The server describes a table again when they
                # change.
                self.tables[message.oid] = self._describe_table(message, self._types)
            case log.Type():
                self._types[message.oid] = message
            case log.Origin():
                self._set_origin(message)
            case log.Truncate():
                return [
                    step
                    for oid in message.relation_oids
                    for step in self._hold(
                        ChangeKind.TRUNCATE,
                        lsn,
                        table=self._table(oid),
                        cascade=message.cascade,
                        restart_identity=message.restart_identity,
                    )
                ]
            case log.LogicalMessage():
                return self._message(message)
            case _:
                raise DecodeError(
                    f"the server sent a {type(message).__name__}, which belongs to streamed or prepared transactions: "
                    "`LogDecoder` reads these"
                )
        return ()

    def _start(self, begin: log.Begin) -> None:
        if self._begin is not None:
            raise DecodeError("the server began a transaction inside of another one")
        self._begin = begin
        self._near_xid = widen_transaction_id(begin.xid, self._near_xid)
        commit = nanoseconds(begin.commit_us)
        # The server reads its clock before it writes the commit, so times may fall in the order of the log.
        self._event_timestamp = commit if self._has_own_times else max(self._event_timestamp, commit)
        self._transaction = LogTransaction(
            self._near_xid, begin.final_lsn, commit, previous_end_lsn=self._previous_end_lsn
        )
        self._sequence = 0

    def _set_origin(self, origin: log.Origin) -> None:
        if self._transaction is None:
            raise DecodeError("the server named the origin of no transaction")
        self._transaction = msgspec.structs.replace(
            self._transaction, origin=origin.name, origin_lsn=origin.lsn
        )

    def _end(self, commit: log.Commit) -> Sequence[Step]:
        if self._begin is None:
            raise DecodeError("the server ended a transaction that it did not begin")
        held, self._held = self._held, None
        end = TransactionEnd(commit.end_lsn, self._event_timestamp)
        self._begin = self._transaction = None
        # A new connection repeats transactions that end before the position; they must not move it back.
        self._previous_end_lsn = max(self._previous_end_lsn, commit.end_lsn)
        if held is None:
            return (end,)
        if isinstance(held, LoggedRows):
            return held.ended(), end
        return msgspec.structs.replace(held, last=True), end

    def _row(
        self,
        kind: ChangeKind,
        lsn: int,
        oid: int,
        new: log.Row | None,
        old: log.Row | None = None,
        old_is_full: bool = False,
    ) -> Sequence[Step]:
        transaction, held = self._transaction, self._held
        if transaction is None:
            raise DecodeError(_OUTSIDE)
        self._sequence = sequence = self._sequence + 1
        table, to_text = self.tables.get(oid) or self._table(oid), self._to_text
        if to_text is not None:
            new, old = new and to_text(table, new), old and to_text(table, old)
        # Positional arguments: names cost a fifth of the record.
        self._held = LogRecord(
            kind,
            self._event_timestamp,
            transaction,
            sequence,
            lsn,
            False,
            table,
            new,
            old,
            old_is_full,
        )
        return () if held is None else (held,)

    def _hold(self, kind: ChangeKind, lsn: int, **values: Any) -> Sequence[Step]:
        """Keep a record until the next message, and return the one that was kept."""
        if self._transaction is None:
            raise DecodeError(_OUTSIDE)
        held = self._held
        self._sequence += 1
        self._held = LogRecord(
            kind, self._event_timestamp, self._transaction, self._sequence, lsn, False, **values
        )
        return () if held is None else (held,)

    def _message(self, message: log.LogicalMessage) -> Sequence[Step]:
        values = {"prefix": message.prefix, "content": message.content}
        if message.transactional:
            return self._hold(ChangeKind.MESSAGE, message.lsn, **values)
        # It was written at once, between two transactions, and is not rolled back.
        self._previous_end_lsn = max(self._previous_end_lsn, message.lsn)
        return (
            LogRecord(
                ChangeKind.MESSAGE,
                self._event_timestamp,
                None,
                1,
                message.lsn,
                True,
                prefix=message.prefix,
                content=message.content,
            ),
            # One byte further: a message that is sent again must be before the position.
            TransactionEnd(message.lsn + 1, self._event_timestamp),
        )

    def _table(self, oid: int) -> Table:
        try:
            return self.tables[oid]
        except KeyError:
            raise DecodeError(
                f"the server sent a change of the table {oid}, which it did not describe"
            ) from None
