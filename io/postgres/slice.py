"""A closed part of a slot's log. Pure.

    for record in records_of(LogSlice(start, end), client.pull(…), TransactionReader(…)):
        …

A transaction belongs to the slice in which it *ends*: `start` < end of its commit record <= `end`. The server names the
end of its log in the middle of a record too, and such a record may still be lost in a crash. A transaction that ends at
or before the end of the log is final.

A slot is peeked from its confirmed position, which may be before `start`: transactions of earlier slices are skipped.
Of them only the descriptions of tables count, which the server sends once for each connection. So the records of a
slice do not depend on where the slot is, and a slice that is read again has equal records.

The begin of a transaction names the start of its commit record, and only the commit names its end. So the messages of
one transaction are kept until its commit; a large transaction is in a temporary file.

Messages of applications that belong to no transaction (`pg_logical_emit_message` with false) are left out: they have no
commit, so nothing says whether the end of a slice is before or in their record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.errors import DecodeError
from penstock.io.postgres import messages as log
from penstock.io.postgres.decode import decode
from penstock.io.postgres.record import LogRecord
from penstock.io.postgres.spool import Spool
from penstock.io.postgres.transactions import TransactionReader

_BEGIN, _COMMIT = b"BC"
_DESCRIBES = frozenset(b"RY")
_OTHERS = frozenset(b"SEcAbPKpr")
"""First bytes of the messages of streamed and prepared transactions, which no slice asks for."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """The transactions that end after `start` and at or before `end`, both positions of the log."""

    start: int
    end: int

    def has(self, end_of_transaction: int) -> bool:
        """Return whether a transaction that ends at this position belongs to the slice."""
        return self.start < end_of_transaction <= self.end


def records_of(
    part: LogSlice, messages: Iterable[tuple[int, bytes]], reader: TransactionReader
) -> Iterator[LogRecord]:
    """Yield the records of a slice, in the order of the log.

    `messages`: messages of a slot in version 1 of the protocol, from a position at or before the slice's start.

    Raises:
        DecodeError: a message is damaged, or belongs to a streamed or prepared transaction.
    """
    kept: Spool | None = None
    try:
        for lsn, payload in messages:
            kind = payload[0] if payload else 0
            if kind in _OTHERS:
                raise DecodeError("the server sent a part of a streamed or prepared transaction")
            if kind == _BEGIN:
                kept = Spool(in_stream=False, tables={})
            if kept is None:
                continue  # a message that belongs to no transaction
            kept.add(lsn, payload)
            if kind == _COMMIT:
                commit = decode(payload)
                assert isinstance(commit, log.Commit)
                yield from _transaction(reader, kept, is_inside=part.has(commit.end_lsn))
                kept.close()
                kept = None
                # Transactions come in the order of their commits.
                if commit.end_lsn >= part.end:
                    return
    finally:
        if kept is not None:
            kept.close()


def _transaction(reader: TransactionReader, kept: Spool, *, is_inside: bool) -> Iterator[LogRecord]:
    for lsn, payload in kept.messages():
        if is_inside or payload[0] in _DESCRIBES:
            yield from _records(reader, lsn, payload)


def _records(reader: TransactionReader, lsn: int, payload: bytes) -> Iterator[LogRecord]:
    for step in reader.read(lsn, decode(payload)):
        if isinstance(step, LogRecord):
            yield step
