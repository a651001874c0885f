"""Rows that are decoded later are the same records, at the same positions, as rows that are decoded at once."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DecodeError
from penstock.io.change_streams.flat import Ended, FlatPosition
from penstock.io.postgres import messages as m
from penstock.io.postgres.log_decoder import LogDecoder
from penstock.io.postgres.log_steps import LogSteps
from penstock.io.postgres.logged_rows import LoggedRows
from penstock.io.postgres.position import Position
from penstock.io.postgres.record import LogRecord, LogTransaction, Table
from penstock.io.postgres.transactions import TransactionEnd, TransactionReader
from tests.unit.postgres.pgoutput import encode

RELATIONS = [m.Relation(oid, "public", f"t{oid}", "d", ()) for oid in (1, 2, 300)]
START = FlatPosition(Position(0, 0, "system"), 0)


def described(relation: m.Relation, types: object) -> Table:
    return Table(relation.oid, relation.schema, relation.table, "DEFAULT", ())


def decoder(min_rows: int = 2) -> LogDecoder:
    return LogDecoder(TransactionReader(described, 1000, 0), min_rows=min_rows)


def change(draw: random.Random) -> m.Message:
    oid = draw.choice(RELATIONS).oid
    row = (draw.choice(["1", "é", None]), "x" * draw.choice([0, 5, 200]))
    old = draw.choice([None, row])
    large = m.Update(oid, (m.UNCHANGED, row[1]), ("1", None))  # a key with a large value
    return draw.choice(
        [m.Insert(oid, row), m.Update(oid, row, old, bool(old)), large, m.Delete(oid, row, True)]
    )


def history(draw: random.Random) -> list[tuple[int, bytes]]:
    """Return the messages of transactions that are sent one after another; commit times may fall."""
    sent: list[tuple[int, m.Message]] = [(1, relation) for relation in RELATIONS]
    lsn = 10
    for xid in range(1, draw.randrange(2, 9)):
        changes = [change(draw) for _ in range(draw.choice([0, 1, 1, 1, 3, 40]))]
        commit = lsn + len(changes) + 1
        at = xid * 10 + draw.randrange(15)
        sent.append((lsn, m.Begin(commit, at, xid)))
        sent += [(lsn + number, each) for number, each in enumerate(changes, 1)]
        if draw.random() < 0.2:
            sent.append((commit, m.Truncate((1,), False, False)))
        sent.append((commit, m.Commit(commit, commit + 8, at)))
        lsn = commit + 8
    return [(lsn, encode(message)) for lsn, message in sent]


def chunks(sent: list[tuple[int, bytes]], draw: random.Random) -> list[list[tuple[int, bytes]]]:
    found, start = [], 0
    while start < len(sent):
        end = start + draw.randrange(1, 30)
        found.append(sent[start:end])
        start = end
    return found


def flat(steps: Any) -> list[Any]:
    """Return single steps: of rows their records, with the ends of transactions between them."""
    found: list[Any] = []
    for step, _ in steps:
        if isinstance(step, LoggedRows):
            before: LoggedRows | None = None
            for own in pickle.loads(pickle.dumps(step)).by_transaction():
                if before is not None:
                    found.append(TransactionEnd(own.transactions[0].previous_end_lsn, before.newest))
                found += own
                before = own
        else:
            found.append(step)
    return found


@given(st.integers(0, 2**32))
def test_the_records_are_those_of_messages_that_are_decoded_at_once(seed: int) -> None:
    draw = random.Random(seed)
    sent = history(draw)
    at_once = decoder()
    expected = [step for lsn, payload in sent for step in at_once.read(lsn, payload)]
    later = decoder()
    assert flat(step for chunk in chunks(sent, draw) for step in later.read_all(chunk)) == expected


@given(st.integers(0, 2**32))
def test_a_read_continues_after_any_step_and_leaves_out_tables(seed: int) -> None:
    draw = random.Random(seed)
    sent = history(draw)
    unwanted = draw.choice(["none", "t1"])
    end = draw.choice([None, 30_000 + 946_684_800_000_000_000])
    start = draw.choice([0, 40_000 + 946_684_800_000_000_000])

    def wanted(transaction: LogTransaction | None, table: Table | None) -> bool:
        assert transaction is not None
        return transaction.commit_timestamp >= start and (table is None or table.name != unwanted)

    def read(at: FlatPosition) -> list[Any]:
        log = LogSteps("slot", at, wanted, end)
        later = decoder()
        # As the server does after a new connection, the whole log comes again.
        return [step for chunk in chunks(sent, draw) for step in log.steps(later.read_all(chunk))]

    def emitted(steps: list[Any]) -> list[LogRecord]:
        return [record for _, records, _ in steps for record in records]

    whole = read(START)
    at_once = decoder(min_rows=1000)
    log = LogSteps("slot", START, wanted, end)
    expected = [step for message in sent for step in log.steps(at_once.read_all([message]))]
    assert emitted(whole) == emitted(expected)
    assert whole[-1:] == [] or type(whole[-1][2]) is type(expected[-1][2])
    if whole and type(whole[-1][2]) is not Ended:
        assert whole[-1][2] == expected[-1][2]
    for number, (_, _, mark) in enumerate(whole):
        if type(mark) is not Ended:
            assert [*emitted(whole[: number + 1]), *emitted(read(mark))] == emitted(whole)


def rows(count: int = 20, tables: int = 3) -> LoggedRows:
    reading = decoder()
    inserts = [m.Insert(RELATIONS[n % tables].oid, (str(n),)) for n in range(count)]
    sent = [*RELATIONS, m.Begin(100, 5, 7), *inserts, m.Commit(100, 108, 5)]
    steps = list(reading.read_all([(n, encode(message)) for n, message in enumerate(sent)]))
    (found,) = [step for step, _ in steps if isinstance(step, LoggedRows)]
    return found


def test_the_rows_of_a_table_keep_their_place_in_the_transaction() -> None:
    chosen = rows().chosen(lambda _, table: table.name == "t2")
    assert chosen is not None
    assert [record.sequence for record in chosen] == list(range(2, 21, 3))
    assert [record.last for record in chosen] == [False] * 6 + [True]
    assert [str(table) for table in chosen.tables_read()] == ["public.t2"]
    assert rows().chosen(lambda *_: False) is None


def test_slices_and_neighbours_are_the_same_records() -> None:
    found = rows()
    records = list(found)
    assert list(found[3:7]) == records[3:7]
    assert [record for _, part in found.by_table() for record in part] == records
    assert {str(record.table) for record in rows(tables=1)} == {"public.t1"}
    assert [found[0], found[19], found[-1]] == [records[0], records[19], records[19]]


def test_few_rows_are_decoded_at_once() -> None:
    reading = decoder(min_rows=3)
    sent = [*RELATIONS, m.Begin(100, 5, 7), m.Insert(1, ("1",)), m.Insert(1, ("2",)), m.Commit(100, 108, 5)]
    steps = [step for step, _ in reading.read_all([(1, encode(message)) for message in sent])]
    assert [type(step) for step in steps[:2]] == [LogRecord, LogRecord]


def test_a_damaged_row_is_an_error_when_it_is_decoded() -> None:
    reading = decoder()
    sent = [*RELATIONS, m.Begin(100, 5, 7), m.Insert(1, ("1",)), m.Insert(1, ("2",)), m.Commit(100, 108, 5)]
    encoded = [encode(message) for message in sent]
    encoded[5] = encoded[5][:-1]
    ((found, _), _) = list(reading.read_all([(1, payload) for payload in encoded]))
    with pytest.raises(DecodeError, match="damaged"):
        list(found)  # type: ignore[arg-type]


def test_a_table_that_was_not_described_is_an_error() -> None:
    reading = decoder()
    sent = [m.Begin(100, 5, 7), m.Insert(9, ("1",)), m.Insert(9, ("2",))]
    with pytest.raises(DecodeError, match="did not describe"):
        list(reading.read_all([(1, encode(message)) for message in sent]))


def test_transactions_behind_a_prepared_one_name_it_at_their_ends() -> None:
    reading = decoder()
    sent: list[tuple[int, m.Message]] = [
        (1, RELATIONS[0]),
        (20, m.BeginPrepare(20, 21, 0, 20, "a")),
        (20, m.Insert(1, ("1",))),
        (21, m.Prepare(20, 21, 0, 20, "a")),
    ]
    for lsn in range(30, 80, 10):
        sent += [
            (lsn, m.Begin(lsn, 0, lsn)),
            (lsn, m.Insert(1, ("1",))),
            (lsn + 1, m.Commit(lsn, lsn + 1, 0)),
        ]
    steps = [step for step, _ in reading.read_all([(lsn, encode(message)) for lsn, message in sent])]
    ends = [(step.lsn, step.prepared) for step in steps if isinstance(step, TransactionEnd)]
    assert ends == [(lsn + 1, 20) for lsn in range(30, 80, 10)]


def test_whole_transactions_share_a_step() -> None:
    reading = decoder()
    sent: list[m.Message] = [RELATIONS[0]]
    for lsn in range(30, 80, 10):
        sent += [m.Begin(lsn, lsn, lsn), m.Insert(1, ("1",)), m.Commit(lsn, lsn + 1, lsn)]
    steps = [step for step, _ in reading.read_all([(1, encode(message)) for message in sent])]
    rows, end = steps
    assert isinstance(rows, LoggedRows)
    assert len(rows) == 5
    assert rows.times_us == [lsn + 946_684_800_000_000 for lsn in range(30, 80, 10)]
    assert isinstance(end, TransactionEnd)
    assert end.lsn == 71
