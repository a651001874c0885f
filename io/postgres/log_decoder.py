"""Decodes payloads of `pgoutput`, protocol versions 1 to 4, to the records of committed transactions.

    decoder = LogDecoder(TransactionReader(describe_table, near_xid=…))
    for step, size in decoder.read_all(arrived):
        …

In version 1 the server sends a transaction after its commit. From version 2 on it may also send parts of transactions
that still run (`streaming`), and from version 3 on transactions that were prepared for a two-phase commit. Both are
kept in a `Spool` until they are committed, and are dropped if they are rolled back. So the same steps come out in every
version: a transaction at its commit, in the order of commits, with the same positions and sequence numbers.

State: one spool for each transaction that is not committed; a large one is in a temporary file of the worker.

Source: PostgreSQL documentation, "Logical Streaming Replication Protocol" and "Streaming of Large Transactions for
Logical Decoding".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.errors import DecodeError
from penstock.io.postgres import messages as log
from penstock.io.postgres.decode import decode
from penstock.io.postgres.logged_rows import LoggedRows
from penstock.io.postgres.spool import MEMORY_BYTES, Spool
from penstock.io.postgres.transactions import Step, TransactionEnd, TransactionReader

_CONTROL = frozenset(b"SEcAbPKpr")
"""First bytes of the messages about streamed and prepared transactions."""
_ENDS_SPOOLING = frozenset(b"EP")
_DESCRIBES = frozenset(b"RY")
_RELATION = ord("R")
_CHANGES = frozenset(b"IUDTM")
_WHOLE = re.compile(rb"(?:B[IUD]+C)+")
"""The kinds of messages of whole transactions that have rows only."""
MIN_ROWS = 16
"""Neighbours that become `LoggedRows`. Fewer are not worth a batch of their own."""
_MIN_ROWS_OF_WHOLE = 4
"""The same for whole transactions: to decode their first and last messages one by one costs as much as the rows."""


class _Prepared(NamedTuple):
    prepare_lsn: int
    spool: Spool


class UnknownPrepared(NamedTuple):
    """A prepared transaction was committed at `lsn` whose changes were not sent on this connection.

    The server does not repeat them after they were acknowledged. They are lost, unless the commit was read before.
    """

    lsn: int
    gid: str


class LogDecoder:
    """Decodes the messages of one connection, in order."""

    def __init__(
        self, reader: TransactionReader, memory_bytes: int = MEMORY_BYTES, *, min_rows: int = MIN_ROWS
    ) -> None:
        """`memory_bytes`: how much of each transaction that is not committed stays in memory."""
        self._min_rows_of_whole = min(min_rows, _MIN_ROWS_OF_WHOLE)
        self._rows = re.compile(rb"[IUD]{%d,}" % min_rows)
        self._reader, self._memory_bytes = reader, memory_bytes
        self._streamed: dict[int, Spool] = {}
        self._prepared: dict[tuple[int, str], _Prepared] = {}
        self.message_bytes = 0
        """Size of the message that the last step came from: in a spool, the change's message and not the commit's."""
        self._spool: Spool | None = None
        """Where the messages go at the moment; None: they belong to a committed transaction."""

    @property
    def in_transaction(self) -> bool:
        """Whether the end of a committed transaction is still to come."""
        return self._reader.in_transaction

    @property
    def oldest_prepared(self) -> int:
        """The position of the oldest transaction that is prepared and neither committed nor rolled back; 0: none.

        The server sends it once more only to a reader that starts at or before this position.
        """
        return min((prepared.prepare_lsn for prepared in self._prepared.values()), default=0)

    def read_all(self, messages: Sequence[tuple[int, bytes]]) -> Iterator[tuple[Step | UnknownPrepared, int]]:
        """Yield the steps that messages complete, with the size of each in bytes; see `read`. No message is empty.

        Neighbours that are rows of one transaction, or whole transactions of rows, become `LoggedRows`, and are not
        decoded.
        """
        done = 0
        for found in _WHOLE.finditer(_kinds(messages)):
            start, end = found.span()
            yield from self._rows_apart(messages[done:start])
            whole, done = messages[start:end], end
            rows = len(whole) - 2 * found[0].count(b"B")
            # Asked here and not before: what comes before may begin a transaction, or a part of one for the spool.
            # None prepared: each end would have to carry the oldest prepared position, which the reader does not know.
            if (
                rows >= self._min_rows_of_whole
                and self._spool is None
                and not self._prepared
                and self._reader.takes_transactions
            ):
                for step in self._reader.read_transactions(whole):
                    yield step, self._size_of(step)
            else:
                yield from self._rows_apart(whole)
        yield from self._rows_apart(messages[done:])

    def _rows_apart(
        self, messages: Sequence[tuple[int, bytes]]
    ) -> Iterator[tuple[Step | UnknownPrepared, int]]:
        """Do so for neighbours that are rows of one transaction alone."""
        done = 0
        for found in self._rows.finditer(_kinds(messages)):
            start, end = found.span()
            yield from self._one_by_one(messages[done:start])
            if self._spool is None and self._reader.takes_rows:
                for step in self._reader.read_rows(messages[start:end]):
                    yield step, self._size_of(step)
            else:
                yield from self._one_by_one(messages[start:end])
            done = end
        yield from self._one_by_one(messages[done:])

    def _one_by_one(
        self, messages: Sequence[tuple[int, bytes]]
    ) -> Iterator[tuple[Step | UnknownPrepared, int]]:
        for lsn, payload in messages:
            for step in self.read(lsn, payload):
                yield step, self._size_of(step)

    def _size_of(self, step: Step | UnknownPrepared) -> int:
        return step.size if isinstance(step, LoggedRows) else self.message_bytes

    def read(self, lsn: int, payload: bytes) -> Iterable[Step | UnknownPrepared]:
        """Return the steps that a message completes; all of them must be taken before the next call.

        Raises:
            DecodeError: the message is damaged, or does not fit the ones before it.
        """
        kind = payload[0] if payload else 0
        self.message_bytes = len(payload)
        if self._spool is None:
            if kind not in _CONTROL:
                steps = self._reader.read(lsn, decode(payload))
                # After this end a new reader must start before the oldest prepared transaction, or the server does not
                # send it.
                if self._prepared and steps and type(steps[-1]) is TransactionEnd:
                    return [*steps[:-1], steps[-1]._replace(prepared=self.oldest_prepared)]
                return steps
        elif kind not in _ENDS_SPOOLING:
            self._spool.add(lsn, payload)
            if kind in _DESCRIBES:
                self._describe(lsn, decode(payload, self._spool.in_stream), self._spool)
            return ()
        return self._control(decode(payload))

    def restart(self) -> None:
        """Forget transactions that are not committed: the server sends them from their start again."""
        for spool in (*self._streamed.values(), *(prepared.spool for prepared in self._prepared.values())):
            spool.close()
        self._streamed.clear()
        self._prepared.clear()
        self._spool = None

    close = restart

    def _control(self, message: log.Message) -> Iterable[Step | UnknownPrepared]:
        match message:
            case log.StreamStart(xid=xid):
                if message.first_segment or xid not in self._streamed:
                    self._drop_streamed(xid)
                    self._streamed[xid] = self._new_spool(in_stream=True)
                self._spool = self._streamed[xid]
            case log.StreamStop():
                self._spool = None
            case log.StreamAbort(xid=xid, subxid=subxid):
                # A transaction may be rolled back whose parts were all sent before the connection was opened.
                if subxid == xid:
                    self._drop_streamed(xid)
                elif xid in self._streamed:
                    self._streamed[xid].aborted.add(subxid)
            case log.StreamCommit(xid=xid):
                commit = log.Commit(message.lsn, message.end_lsn, message.commit_us)
                return self._committed(xid, self._take_streamed(xid), commit)
            case log.BeginPrepare():
                self._spool = self._new_spool(in_stream=False)
            case log.Prepare():
                spool, self._spool = self._spool, None
                if spool is None or spool.in_stream:
                    raise DecodeError("the server prepared a transaction that it did not begin")
                self._keep_prepared(message, spool)
            case log.StreamPrepare(xid=xid):
                self._keep_prepared(message, self._take_streamed(xid))
            case log.CommitPrepared(xid=xid, gid=gid):
                prepared = self._prepared.pop((xid, gid), None)
                if prepared is None:
                    return (UnknownPrepared(message.lsn, gid),)
                commit = log.Commit(message.lsn, message.end_lsn, message.commit_us)
                return self._committed(xid, prepared.spool, commit, prepared)
            case log.RollbackPrepared(xid=xid, gid=gid):
                if (dropped := self._prepared.pop((xid, gid), None)) is not None:
                    dropped.spool.close()
        return ()

    def _describe(self, lsn: int, message: log.Message, spool: Spool) -> None:
        """Note a description at once: the server does not repeat it for transactions that are committed earlier."""
        self._reader.read(lsn, message)
        if isinstance(message, log.Relation):
            spool.described.append((message.oid, self._reader.tables[message.oid]))

    def _new_spool(self, *, in_stream: bool) -> Spool:
        return Spool(in_stream=in_stream, tables=self._reader.tables, memory_bytes=self._memory_bytes)

    def _drop_streamed(self, xid: int) -> None:
        if (spool := self._streamed.pop(xid, None)) is not None:
            spool.close()

    def _take_streamed(self, xid: int) -> Spool:
        spool = self._streamed.pop(xid, None)
        if spool is None:
            raise DecodeError("the server ended a streamed transaction of which it sent no part")
        return spool

    def _keep_prepared(self, message: log.Prepare | log.StreamPrepare, spool: Spool) -> None:
        before = self._prepared.pop((message.xid, message.gid), None)
        if before is not None:  # the server repeats it
            before.spool.close()
        self._prepared[message.xid, message.gid] = _Prepared(message.prepare_lsn, spool)

    def _committed(
        self, xid: int, spool: Spool, commit: log.Commit, prepared: _Prepared | None = None
    ) -> Iterator[Step]:
        """Yield the steps of a spooled transaction, as if it had been sent after its commit."""
        reader = self._reader
        reader.read(commit.lsn, log.Begin(commit.lsn, commit.commit_us, xid))
        # The rows belong to the tables as they were described then. Another transaction, which was committed earlier,
        # may have brought a newer description, and it stays the current one.
        current, reader.tables = reader.tables, spool.tables
        described = iter(spool.described)
        for lsn, payload in spool.messages():
            kind = payload[0]
            if kind in _DESCRIBES:
                # Also changes after a savepoint that was rolled back: the server does not repeat them either.
                if kind == _RELATION:
                    oid, table = next(described)
                    reader.tables[oid] = table
                continue
            if spool.aborted and kind in _CHANGES:
                subxid = int.from_bytes(payload[1:5], "big")
                if subxid in spool.aborted:
                    continue
            self.message_bytes = len(payload)
            yield from reader.read(lsn, decode(payload, spool.in_stream))
        reader.tables = current
        spool.close()
        for step in reader.read(commit.end_lsn, commit):
            end = type(step) is TransactionEnd
            yield step._replace(prepared=self.oldest_prepared) if end else step  # type: ignore[union-attr]


def _kinds(messages: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the first bytes of messages."""
    return bytes([payload[0] for _, payload in messages])
