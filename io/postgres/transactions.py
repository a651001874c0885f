"""From messages of the log to records with their transactions. Pure.

    reader = TransactionReader(describe_table, near_xid=…)
    for lsn, message in messages:
        for step in reader.read(lsn, message):
            …

A record is handed out one message later than it was read, because only the next message says whether it was the last of
its transaction. So a transaction's steps are its records and then `TransactionEnd`.

Only version 1 of the protocol is read: the server sends a transaction after its commit, and keeps a large one on its
own disk until then. Newer versions send parts of transactions that may still be rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from penstock.errors import DecodeError
from penstock.io.postgres import messages as log
from penstock.io.postgres.record import (
    ChangeKind,
    LogRecord,
    LogTransaction,
    Table,
    nanoseconds,
    widen_transaction_id,
)


class TransactionEnd(NamedTuple):
    """All records of a transaction were handed out. The reader continues at `lsn`."""

    lsn: int
    event_timestamp: int


Step = LogRecord | TransactionEnd

DescribeTable = Callable[[log.Relation, dict[int, log.Type]], Table]
"""Adds what the catalogue knows of a table to the description that the log has."""


class TransactionReader:
    """Reads the messages of one connection, in order."""

    def __init__(
        self, describe_table: DescribeTable, near_xid: int, watermark: int, previous_end_lsn: int = 0
    ) -> None:
        """`near_xid`: a 64-bit transaction id of about now. `watermark`: the event timestamp so far, nanoseconds.

        `previous_end_lsn`: where the last transaction ended that was read before; 0 if none was read.
        """
        self._describe_table = describe_table
        self._near_xid = near_xid
        self._event_timestamp = watermark
        self._previous_end_lsn = previous_end_lsn
        self._tables: dict[int, Table] = {}
        self._types: dict[int, log.Type] = {}
        self._begin: log.Begin | None = None
        self._transaction: LogTransaction | None = None
        self._sequence = 0
        self._held: LogRecord | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether the end of a transaction is still to come."""
        return self._begin is not None

    def read(self, lsn: int, message: log.Message) -> Iterator[Step]:
        """Yield the steps that this message completes. `lsn`: the position that came with it.

        Raises:
            DecodeError: the message does not fit the ones before it.
        """
        # Rows first: nearly all messages are rows.
        if isinstance(message, log.Insert):
            yield from self._record(ChangeKind.INSERT, lsn, self._table(message), new=message.new)
        elif isinstance(message, log.Update):
            yield from self._record(
                ChangeKind.UPDATE,
                lsn,
                self._table(message),
                new=message.new,
                old=message.old,
                old_is_full=message.old_is_full,
            )
        elif isinstance(message, log.Delete):
            yield from self._record(
                ChangeKind.DELETE, lsn, self._table(message), old=message.old, old_is_full=message.old_is_full
            )
        else:
            yield from self._rare(lsn, message)

    def _rare(self, lsn: int, message: log.Message) -> Iterator[Step]:
        match message:
            case log.Begin():
                self._start(message)
            case log.Commit():
                yield from self._end(message)
            case log.Relation():
                self._tables[message.oid] = self._describe_table(message, self._types)
            case log.Type():
                self._types[message.oid] = message
            case log.Origin():
                self._set_origin(message)
            case log.Truncate():
                for oid in message.relation_oids:
                    yield from self._record(
                        ChangeKind.TRUNCATE,
                        lsn,
                        self._known_table(oid),
                        cascade=message.cascade,
                        restart_identity=message.restart_identity,
                    )
            case log.LogicalMessage():
                yield from self._message(message)
            case _:
                raise DecodeError(
                    f"the server sent a {type(message).__name__}, which belongs to streamed or prepared transactions. "
                    "The slot must have been created without two_phase; drop it and create it again"
                )

    def _start(self, begin: log.Begin) -> None:
        if self._begin is not None:
            raise DecodeError("the server began a transaction inside of another one")
        self._begin = begin
        self._near_xid = widen_transaction_id(begin.xid, self._near_xid)
        commit = nanoseconds(begin.commit_us)
        self._event_timestamp = max(self._event_timestamp, commit)
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

    def _end(self, commit: log.Commit) -> Iterator[Step]:
        if self._begin is None:
            raise DecodeError("the server ended a transaction that it did not begin")
        held, self._held = self._held, None
        if held is not None:
            yield msgspec.structs.replace(held, last=True)
        yield TransactionEnd(commit.end_lsn, self._event_timestamp)
        self._begin = self._transaction = None
        self._previous_end_lsn = max(self._previous_end_lsn, commit.end_lsn)

    def _record(self, kind: ChangeKind, lsn: int, table: Table, **values: object) -> Iterator[LogRecord]:
        if self._transaction is None:
            raise DecodeError("the server sent a change outside of a transaction")
        held = self._held
        self._sequence += 1
        self._held = LogRecord(
            kind,
            self._event_timestamp,
            self._transaction,
            self._sequence,
            lsn,
            False,
            table,
            **values,  # type: ignore[arg-type]
        )
        if held is not None:
            yield held

    def _message(self, message: log.LogicalMessage) -> Iterator[Step]:
        held = self._held
        if message.transactional:
            if self._transaction is None:
                raise DecodeError("the server sent a message outside of its transaction")
            self._sequence += 1
            self._held = LogRecord(
                ChangeKind.MESSAGE,
                self._event_timestamp,
                self._transaction,
                self._sequence,
                message.lsn,
                False,
                prefix=message.prefix,
                content=message.content,
            )
            if held is not None:
                yield held
            return
        # It was written at once, between two transactions, and is not rolled back.
        yield LogRecord(
            ChangeKind.MESSAGE,
            self._event_timestamp,
            None,
            1,
            message.lsn,
            True,
            prefix=message.prefix,
            content=message.content,
        )
        yield TransactionEnd(message.lsn + 1, self._event_timestamp)
        self._previous_end_lsn = max(self._previous_end_lsn, message.lsn)

    def _table(self, message: log.Insert | log.Update | log.Delete) -> Table:
        return self._known_table(message.relation_oid)

    def _known_table(self, oid: int) -> Table:
        try:
            return self._tables[oid]
        except KeyError:
            raise DecodeError(
                f"the server sent a change of the table {oid}, which it did not describe"
            ) from None
