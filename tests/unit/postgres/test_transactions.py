"""Messages of the log become records with their transactions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DecodeError
from penstock.io.postgres import messages as m
from penstock.io.postgres.record import LogRecord, Table, format_lsn, parse_lsn, widen_transaction_id
from penstock.io.postgres.transactions import TransactionEnd, TransactionReader

EPOCH_US = 946_684_800_000_000


def described(relation, types):
    return Table(relation.oid, relation.schema, relation.table, "DEFAULT", ())


def steps(*messages, near_xid=1000, watermark=0):
    reader = TransactionReader(described, near_xid, watermark)
    return [step for lsn, message in enumerate(messages, 1) for step in reader.read(lsn, message)]


def transaction(lsn, commit_us, *changes, xid=1000):
    return [m.Begin(lsn, commit_us, xid), *changes, m.Commit(lsn, lsn + 8, commit_us)]


RELATION = m.Relation(1, "public", "t", "d", ())


def test_the_last_record_of_a_transaction_says_so():
    found = steps(
        *transaction(10, 0, RELATION, m.Insert(1, ()), m.Delete(1, ()), m.Truncate((1, 1), True, False))
    )
    assert [(step.sequence, step.last) for step in found[:-1]] == [
        (1, False),
        (2, False),
        (3, False),
        (4, True),
    ]
    assert found[-1] == TransactionEnd(18, EPOCH_US * 1000)


def test_a_large_value_of_a_key_that_did_not_change_is_known_from_the_old_row():
    new, key = (m.UNCHANGED, "2", m.UNCHANGED), ("k", "1", None)
    updates = [m.Update(1, new, key), m.Update(1, new), m.Update(1, new, ("k", "1", "v"), True)]
    found = steps(*transaction(10, 0, RELATION, *updates))
    # A full old row stays apart: it tells which values are old.
    assert [step.new for step in found[:-1]] == [("k", "2", m.UNCHANGED), new, new]


def test_an_empty_transaction_still_moves_the_position():
    assert steps(*transaction(10, 0)) == [TransactionEnd(18, EPOCH_US * 1000)]


def test_the_event_timestamp_never_falls_along_the_log():
    messages = [
        *transaction(10, 5_000, RELATION, m.Insert(1, ())),
        *transaction(20, 4_000, m.Insert(1, ())),
        *transaction(30, 6_000, m.Insert(1, ())),
    ]
    found = [step for step in steps(*messages) if isinstance(step, LogRecord)]
    times = [step.event_timestamp - EPOCH_US * 1000 for step in found]
    assert times == [5_000_000, 5_000_000, 6_000_000]
    assert [step.transaction.commit_timestamp - EPOCH_US * 1000 for step in found] == [
        5_000_000,
        4_000_000,
        6_000_000,
    ]


def test_transaction_ids_are_widened_over_the_end_of_an_epoch():
    last, first = 0xFFFF_FFFF, 3
    found = steps(
        *transaction(10, 0, RELATION, m.Insert(1, ()), xid=last),
        *transaction(20, 0, m.Insert(1, ()), xid=first),
        near_xid=(5 << 32) + 10,
    )
    ids = [step.transaction.id for step in found if isinstance(step, LogRecord)]
    assert ids == [(4 << 32) + last, (5 << 32) + first]


@given(st.integers(2**31, 2**63), st.integers(-(2**31) + 1, 2**31 - 1))
def test_the_widened_id_is_the_one_near_the_known_one(near, distance):
    assert widen_transaction_id((near + distance) & 0xFFFFFFFF, near) == near + distance


@given(st.integers(0, 2**64 - 1))
def test_a_position_in_the_log_is_read_back(lsn):
    assert parse_lsn(format_lsn(lsn)) == lsn


def test_origin_and_messages_belong_to_their_transaction():
    message = m.LogicalMessage(True, 12, "p", b"x")
    outside = m.LogicalMessage(False, 30, "q", b"y")
    inside, end, alone, after = steps(*transaction(10, 0, m.Origin(7, "other"), message), outside)
    assert (inside.transaction.origin, inside.transaction.origin_lsn, inside.prefix) == ("other", 7, "p")
    assert (alone.transaction, alone.prefix, alone.last) == (None, "q", True)
    assert (end.lsn, after.lsn) == (18, 31)


@pytest.mark.parametrize(
    "messages",
    [
        [m.Insert(1, ())],
        [m.Begin(1, 0, 1), m.Insert(1, ())],
        [m.Begin(1, 0, 1), m.Begin(2, 0, 2)],
        [m.Commit(1, 2, 0)],
        [m.Origin(1, "o")],
        [m.StreamStart(1, True)],
        [m.LogicalMessage(True, 1, "p", b"")],
    ],
)
def test_messages_that_do_not_fit_are_an_error(messages):
    with pytest.raises(DecodeError):
        steps(*messages)


def test_a_transaction_knows_where_the_one_before_it_ended():
    found = steps(
        *transaction(10, 0, RELATION, m.Insert(1, ())),
        m.LogicalMessage(False, 25, "p", b""),
        *transaction(30, 0, m.Insert(1, ())),
        *transaction(40, 0, m.Insert(1, ())),
    )
    records = [step for step in found if isinstance(step, LogRecord) and step.transaction]
    assert [record.transaction.previous_end_lsn for record in records] == [0, 25, 38]


def test_a_resumed_reader_continues_with_the_end_that_its_position_holds():
    reader = TransactionReader(described, 1000, 0, previous_end_lsn=18)
    messages = transaction(30, 0, RELATION, m.Insert(1, ()))
    found = [step for message in messages for step in reader.read(1, message) if isinstance(step, LogRecord)]
    assert found[-1].transaction.previous_end_lsn == 18
