"""A closed part of a slot's log. Pure.

    for records in records_of(LogSlice(start, end), client.pull(…), TransactionReader(…)):
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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.errors import DecodeError
from penstock.io.change_streams.lazy_records import joined
from penstock.io.postgres import messages as log
from penstock.io.postgres.decode import decode
from penstock.io.postgres.log_decoder import LogDecoder
from penstock.io.postgres.logged_rows import LoggedRows
from penstock.io.postgres.record import LogRecord
from penstock.io.postgres.spool import Spool
from penstock.io.postgres.transactions import TransactionReader

_BEGIN, _COMMIT = b"BC"
_DESCRIBES = frozenset(b"RY")
_OTHERS = frozenset(b"SEcAbPKpr")
"""First bytes of the messages of streamed and prepared transactions, which no slice asks for."""
GROUP_MESSAGES, GROUP_BYTES = 5_000, 8 << 20
"""The most messages that are decoded together, and their size in bytes, besides one large message."""
_Message = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class LogSlice:
    """The transactions that end after `start` and at or before `end`, both positions of the log."""

    start: int
    end: int

    def has(self, end_of_transaction: int) -> bool:
        """Return whether a transaction that ends at this position belongs to the slice."""
        return self.start < end_of_transaction <= self.end


def records_of(
    part: LogSlice, messages: Iterable[_Message], reader: TransactionReader
) -> Iterator[Sequence[LogRecord]]:
    """Yield the records of a slice in groups, in the order of the log. No group is empty.

    `messages`: messages of a slot in version 1 of the protocol, from a position at or before the slice's start. Rows
    are not decoded before the records are asked for; see `LoggedRows`.

    Raises:
        DecodeError: a message is damaged, or belongs to a streamed or prepared transaction.
    """
    decoder = LogDecoder(reader)
    for group in _groups(_messages_of(part, messages)):
        parts: list[Sequence[LogRecord]] = []
        for step, _ in decoder.read_all(group):
            # The ends of transactions are dropped, because a slice is read as a whole and has no position inside.
            if isinstance(step, LoggedRows):
                parts.append(step)
            elif isinstance(step, LogRecord):
                parts.append([step])
        if parts:
            yield joined(parts)


def _messages_of(part: LogSlice, messages: Iterable[_Message]) -> Iterator[_Message]:
    """Yield the messages of the slice's transactions, and the descriptions of tables in earlier ones."""
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
                is_inside = part.has(commit.end_lsn)
                for message in kept.messages():
                    if is_inside or message[1][0] in _DESCRIBES:
                        yield message
                kept.close()
                kept = None
                # Transactions come in the order of their commits.
                if commit.end_lsn >= part.end:
                    return
    finally:
        if kept is not None:
            kept.close()


def _groups(messages: Iterable[_Message]) -> Iterator[list[_Message]]:
    """Divide messages into groups of at most `GROUP_MESSAGES` and about `GROUP_BYTES`."""
    group: list[_Message] = []
    size = 0
    for message in messages:
        group.append(message)
        size += len(message[1])
        if len(group) == GROUP_MESSAGES or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
