"""Streamed and prepared transactions give the same records as transactions that are sent after their commit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.errors import DecodeError
from penstock.io.postgres import messages as m
from penstock.io.postgres.log_decoder import LogDecoder, UnknownPrepared
from penstock.io.postgres.record import LogRecord, Table
from penstock.io.postgres.transactions import TransactionEnd, TransactionReader
from tests.unit.postgres.pgoutput import encode

RELATION = m.Relation(1, "public", "t", "d", ())


def described(relation, types):
    return Table(relation.oid, relation.schema, relation.table, "DEFAULT", ())


def decoder(memory_bytes=1 << 20):
    return LogDecoder(TransactionReader(described, 1000, 0), memory_bytes)


def read(sent, **options):
    reading = decoder(**options)
    return [step for lsn, message in sent for step in reading.read(lsn, encode(message))]


@dataclass
class Running:
    """A transaction of a simulated server: its changes with their subtransactions, and how it ends."""

    xid: int
    changes: list[tuple[int, int, int]] = field(default_factory=list)  # lsn, subxid, value
    aborted: set[int] = field(default_factory=set)

    def committed(self):
        return [(lsn, value) for lsn, subxid, value in self.changes if subxid not in self.aborted]


def insert(value, xid=None):
    return m.Insert(1, (str(value),), xid=xid)


@given(st.integers(0, 2**32))
def test_every_version_gives_the_same_records(seed):
    """A simulated server runs transactions side by side and sends each one streamed, prepared, or after its commit."""
    draw = random.Random(seed)
    whole, streamed = [(1, RELATION)], [(1, RELATION)]
    running: dict[int, Running] = {}
    sent: dict[int, int] = {}
    lsn = 10
    for xid in range(1001, 1001 + draw.randrange(1, 12)):
        running[xid] = Running(xid)
    while running:
        lsn += draw.randrange(1, 5)
        transaction = draw.choice(list(running.values()))
        xid = transaction.xid
        if draw.random() < 0.7:
            subxid = draw.choice([xid, xid + 10_000, xid + 20_000])
            if subxid not in transaction.aborted:
                transaction.changes.append((lsn, subxid, lsn))
            continue
        if draw.random() < 0.3:  # a part is streamed
            streamed += part(transaction, sent, lsn)
            continue
        if xid in sent and draw.random() < 0.3:  # a savepoint is rolled back
            subxid = xid + draw.choice([10_000, 20_000])
            streamed += part(transaction, sent, lsn)
            transaction.aborted.add(subxid)
            streamed.append((lsn, m.StreamAbort(xid, subxid, *((lsn, 0) if draw.random() < 0.5 else ()))))
            continue
        del running[xid]
        ends = ((lsn, m.Begin(lsn, lsn, xid)), (lsn + 2, m.Commit(lsn, lsn + 2, lsn)))
        rows = [(at, insert(value)) for at, value in transaction.committed()]
        rolled_back = draw.random() < 0.3
        if not rolled_back:
            whole += [ends[0], *rows, ends[1]]
        prepared = draw.random() < 0.4
        if xid in sent:
            streamed += part(transaction, sent, lsn)
            if prepared:
                streamed.append((lsn, m.StreamPrepare(lsn - 1, lsn, 0, xid, f"g{xid}")))
            elif rolled_back:
                streamed.append((lsn, m.StreamAbort(xid, xid)))
            else:
                streamed.append((lsn, m.StreamCommit(xid, lsn, lsn + 2, lsn)))
        elif prepared:
            begin = m.BeginPrepare(lsn - 1, lsn, 0, xid, f"g{xid}")
            streamed += [(lsn, begin), *rows, (lsn, m.Prepare(lsn - 1, lsn, 0, xid, f"g{xid}"))]
        elif not rolled_back:
            streamed += [ends[0], *rows, ends[1]]
        if prepared and rolled_back:
            streamed.append((lsn, m.RollbackPrepared(lsn, lsn + 1, 0, 0, xid, f"g{xid}")))
        elif prepared:
            streamed.append((lsn, m.CommitPrepared(lsn, lsn + 2, lsn, xid, f"g{xid}")))
    expected = read(whole)
    assert read(streamed, memory_bytes=draw.choice([0, 50, 1 << 20])) == expected


def part(transaction, sent, lsn):
    """Return a segment of a stream with the changes that were not sent yet."""
    first = sent.get(transaction.xid, 0)
    sent[transaction.xid] = len(transaction.changes)
    return [
        (lsn, m.StreamStart(transaction.xid, first == 0)),
        *((at, insert(value, subxid)) for at, subxid, value in transaction.changes[first:]),
        (lsn, m.StreamStop()),
    ]


def test_a_table_that_a_rolled_back_savepoint_described_is_known_afterwards():
    relation, row = replace(RELATION, xid=8), insert(2, 7)
    sent = [m.StreamStart(7, True), relation, insert(1, 8), row, m.StreamStop(), m.StreamAbort(7, 8)]
    found = read([*((1, each) for each in sent), (5, m.StreamCommit(7, 5, 6, 0))])
    assert [step.new for step in found if isinstance(step, LogRecord)] == [("2",)]


def prepared(lsn, gid):
    xid = lsn
    return [
        (lsn, m.BeginPrepare(lsn, lsn + 1, 0, xid, gid)),
        (lsn, insert(lsn)),
        (lsn + 1, m.Prepare(lsn, lsn + 1, 0, xid, gid)),
    ]


def transaction(lsn):
    return [
        (lsn, m.Begin(lsn, 0, lsn)),
        (lsn, insert(lsn)),
        (lsn + 1, m.Commit(lsn, lsn + 1, 0)),
    ]


def test_an_end_names_the_oldest_transaction_that_is_prepared():
    found = read(
        [
            (1, RELATION),
            *transaction(10),
            *prepared(20, "a"),
            *prepared(30, "b"),
            *transaction(40),
            (50, m.CommitPrepared(50, 51, 0, 20, "a")),
            (60, m.RollbackPrepared(31, 60, 0, 0, 30, "b")),
            *transaction(70),
        ]
    )
    ends = [(step.lsn, step.prepared) for step in found if isinstance(step, TransactionEnd)]
    assert ends == [(11, 0), (41, 20), (51, 30), (71, 0)]


def test_a_commit_of_changes_that_were_not_sent_is_reported():
    assert read([(50, m.CommitPrepared(50, 51, 0, 20, "a"))]) == [UnknownPrepared(50, "a")]


@pytest.mark.parametrize("message", [m.StreamCommit(7, 5, 6, 0), m.Prepare(1, 2, 0, 7, "g")])
def test_the_end_of_a_transaction_that_did_not_begin_is_an_error(message):
    with pytest.raises(DecodeError):
        read([(5, message)])


def relation(name):
    return m.Relation(1, "public", name, "d", ())


def test_a_description_that_came_with_a_prepared_transaction_is_known_to_earlier_commits():
    waiting = prepared(20, "a")
    waiting.insert(1, (20, relation("t")))
    found = read([*waiting, *transaction(40), (50, m.CommitPrepared(50, 51, 0, 20, "a"))])
    assert [step.new for step in found if isinstance(step, LogRecord)] == [("40",), ("20",)]


def test_rows_keep_the_table_as_it_was_described_before_them():
    waiting = [m.StreamStart(7, True), replace(relation("old"), xid=7), insert(1, 7), m.StreamStop()]
    found = read(
        [
            *((10, each) for each in waiting),
            (20, relation("new")),
            *transaction(20),
            (30, m.StreamCommit(7, 30, 31, 0)),
            *transaction(40),
        ]
    )
    assert [str(step.table) for step in found if isinstance(step, LogRecord)] == [
        "public.new",
        "public.old",
        "public.new",
    ]


def test_rows_of_a_streamed_transaction_have_the_size_of_their_message_and_not_that_of_the_commit():
    large = m.Insert(1, ("x" * 50_000,), xid=7)
    sent = [
        (1, m.StreamStart(7, True)),
        (1, replace(RELATION, xid=7)),
        (2, large),
        (3, large),
        (4, m.StreamStop()),
    ]
    reading = decoder()
    for lsn, message in sent:
        assert not list(reading.read(lsn, encode(message)))
    steps = reading.read(9, encode(m.StreamCommit(7, 9, 11, 9)))
    assert [reading.message_bytes > 50_000 for step in steps if isinstance(step, LogRecord)] == [True, True]
