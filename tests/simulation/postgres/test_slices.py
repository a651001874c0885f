"""Seeded logs, read in closed slices through a slot that lags, with a crash between any two calls of Spark's API."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import DecodeError
from penstock.io.postgres import messages as m
from penstock.io.postgres.record import LogRecord, Table
from penstock.io.postgres.slice import LogSlice, records_of
from penstock.io.postgres.transactions import TransactionReader
from tests.unit.postgres.pgoutput import encode

HISTORIES = 1000


class Log:
    """A log written from PostgreSQL's documentation: transactions in the order of their commits, and a slot.

    Transactions run at the same time, so their changes lie between the commits of others. Between transactions there
    are messages that belong to none. A connection describes each table before its first change.
    """

    def __init__(self, seed: int, transactions: int = 30) -> None:
        rng = random.Random(seed)
        self.confirmed = lsn = 1000
        self.items: list[
            tuple[int, list[tuple[int, m.Message]]]
        ] = []  # (end of the transaction, its messages)
        commit_us = 0
        for xid in range(1, transactions + 1):
            lsn += rng.randint(1, 400)
            commit_us += rng.choice((-50, 0, 10, 1000))  # clocks of commits are not in the order of the log
            if rng.random() < 0.15:
                self.items.append((lsn + 1, [(lsn, m.LogicalMessage(False, lsn, "app", b"x"))]))
                continue
            first = rng.randint(1000, lsn)
            changes: list[tuple[int, m.Message]] = [
                (first + n, m.Insert(rng.randint(1, 3), (str(xid), str(n)))) for n in range(rng.randint(0, 5))
            ]
            if rng.random() < 0.2:
                changes.append((lsn, m.LogicalMessage(True, lsn, "app", b"y")))
            end = lsn + rng.randint(8, 300)  # a commit record may be long
            begin = m.Begin(lsn, commit_us, xid)
            self.items.append((end, [(lsn, begin), *changes, (end, m.Commit(lsn, end, commit_us))]))
            lsn = end
        self.end = lsn

    def peek(self, flushed: int) -> Iterator[tuple[int, bytes]]:
        """Yield what a new connection gets: from the confirmed position to the end of the log as it is on disk."""
        described: set[int] = set()
        for end, messages in self.items:
            if not self.confirmed < end <= flushed:
                continue
            for lsn, message in messages:
                if isinstance(message, m.Insert) and message.relation_oid not in described:
                    described.add(message.relation_oid)
                    yield (
                        0,
                        encode(
                            m.Relation(message.relation_oid, "public", f"t{message.relation_oid}", "d", ())
                        ),
                    )
                yield lsn, encode(message)

    def whole(self) -> list[tuple[int, str]]:
        """Return what a reader must give: the position of each change or message of a transaction, and its table."""
        return [
            (lsn, f"t{message.relation_oid}" if isinstance(message, m.Insert) else "")
            for _, messages in self.items
            for lsn, message in messages
            if isinstance(message, m.Insert)
            or (isinstance(message, m.LogicalMessage) and message.transactional)
        ]


def described(relation: m.Relation, types: Any) -> Table:
    return Table(relation.oid, relation.schema, relation.table, "DEFAULT", ())


class CrashError(Exception):
    """The process dies at this call."""


class SlicedReading:
    """Reads one log as Spark's micro-batches do. See `tests/simulation/spanner/test_slices.py`."""

    def __init__(self, seed: int, *, crash_at: int = -1) -> None:
        self.rng, self.log = random.Random(seed * 17 + 3), Log(seed)
        self.crash_at, self.calls, self.batches, self.crashes = crash_at, 0, 0, 0
        self.before, self.planned = self.log.confirmed, -1
        self.flushed = self.before
        self.sink: dict[int, list[LogRecord]] = {}

    def run(self) -> None:
        for _ in range(10_000):
            if self.before >= self.log.end:
                break
            try:
                self._batch()
            except CrashError:
                self.crashes += 1
        else:
            raise AssertionError("the reader makes no progress")
        read = [_identity(record) for number in sorted(self.sink) for record in self.sink[number]]
        assert read == self.log.whole(), "records were lost, repeated, or out of the order of the log"

    def _batch(self) -> None:
        if self.planned < 0:
            self._call()
            # The end of the log on disk: anywhere, also in the middle of a record.
            self.flushed = min(self.log.end, self.flushed + self.rng.randint(0, 600))
            self.planned = self.flushed
        self._call()
        part = LogSlice(self.before, self.planned)
        # Meanwhile the log goes on.
        self.flushed = min(self.log.end, self.flushed + self.rng.randint(0, 300))
        found = list(self._read(part))
        self._call()
        if self.batches in self.sink:
            assert self.sink[self.batches] == found, "a repeated batch has other records"
        self.sink[self.batches] = found
        self._call()
        self.before, self.planned = self.planned, -1
        self.batches += 1
        self._call()  # the query is stopped before it tells the source: the slot stays
        self.log.confirmed = max(self.log.confirmed, self.before)

    def _read(self, part: LogSlice) -> Iterator[LogRecord]:
        reader = TransactionReader(described, 1, 0, has_own_times=True)
        for records in records_of(part, self.log.peek(self.flushed), reader):
            for record in records:
                # A time that never falls would depend on where the slice begins.
                assert record.transaction is not None
                assert record.event_timestamp == record.transaction.commit_timestamp
                yield record

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.crash_at or (self.crash_at < 0 and self.rng.random() < 0.1):
            raise CrashError


def _identity(record: LogRecord) -> tuple[int, str]:
    return record.lsn, record.table.name if record.table else ""


@pytest.mark.long(seconds=5)
def test_a_thousand_logs_in_slices_lose_nothing_repeat_nothing_and_keep_the_order() -> None:
    crashes = 0
    for seed in range(HISTORIES):
        run = SlicedReading(seed)
        try:
            run.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        crashes += run.crashes
    assert crashes > HISTORIES, "the histories do not crash enough to show anything"


@pytest.mark.long_cases("2", "3", "4", seconds=5)
@pytest.mark.parametrize("seed", range(5))
def test_a_crash_at_every_call_of_the_api_changes_nothing(seed: int) -> None:
    undisturbed = SlicedReading(seed, crash_at=0)
    undisturbed.run()
    for call in range(1, undisturbed.calls + 1):
        SlicedReading(seed, crash_at=call).run()


def test_a_slice_needs_only_the_log_up_to_its_end() -> None:
    log = Log(1)

    def endless() -> Iterator[tuple[int, bytes]]:
        yield from log.peek(log.end)
        raise AssertionError("the reader asked for more than the slice")

    last = [end for end, messages in log.items if len(messages) > 1][-2]
    assert list(records_of(LogSlice(0, last), endless(), TransactionReader(described, 1, 0)))


def test_prepared_transactions_are_refused() -> None:
    messages = [(1, encode(m.BeginPrepare(1, 2, 0, 1, "g")))]
    with pytest.raises(DecodeError, match="streamed or prepared"):
        list(records_of(LogSlice(0, 9), messages, TransactionReader(described, 1, 0)))
