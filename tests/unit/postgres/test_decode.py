"""Every message of pgoutput is decoded to what was encoded; damage is an error, never a wrong message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DecodeError
from penstock.io.postgres import messages as m
from penstock.io.postgres.decode import decode
from tests.unit.postgres.pgoutput import encode

lsns = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
xids = st.integers(0, 2**32 - 1)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
values = st.one_of(
    st.none(),
    st.just(m.UNCHANGED),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.binary(max_size=12),
)
rows = st.lists(values, max_size=6).map(tuple)
columns = st.builds(m.RelationColumn, names, xids, st.integers(-(2**31), 2**31 - 1), st.booleans())


def messages(in_stream: bool) -> st.SearchStrategy[m.Message]:
    xid = xids if in_stream else st.none()
    column_lists = st.lists(columns, max_size=4).map(tuple)
    olds = st.one_of(st.tuples(st.none(), st.just(False)), st.tuples(rows, st.booleans()))
    with_transaction = st.one_of(
        st.builds(m.Relation, xids, names, names, st.sampled_from("dnfi"), column_lists, xid),
        st.builds(m.Type, xids, names, names, xid),
        st.builds(m.Insert, xids, rows, xid),
        st.builds(lambda oid, new, old, xid: m.Update(oid, new, *old, xid), xids, rows, olds, xid),
        st.builds(m.Delete, xids, rows, st.booleans(), xid),
        st.builds(m.Truncate, st.lists(xids, max_size=3).map(tuple), st.booleans(), st.booleans(), xid),
        st.builds(m.LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=9), xid),
    )
    if in_stream:
        return with_transaction
    return st.one_of(
        with_transaction,
        st.builds(m.Begin, lsns, times, xids),
        st.builds(m.Commit, lsns, lsns, times),
        st.builds(m.Origin, lsns, names),
        st.builds(m.StreamStart, xids, st.booleans()),
        st.builds(m.StreamStop),
        st.builds(m.StreamCommit, xids, lsns, lsns, times),
        st.builds(m.StreamAbort, xids, xids),
        st.builds(m.StreamAbort, xids, xids, lsns, times),
        st.builds(m.BeginPrepare, lsns, lsns, times, xids, names),
        st.builds(m.Prepare, lsns, lsns, times, xids, names),
        st.builds(m.StreamPrepare, lsns, lsns, times, xids, names),
        st.builds(m.CommitPrepared, lsns, lsns, times, xids, names),
        st.builds(m.RollbackPrepared, lsns, lsns, times, times, xids, names),
    )


@pytest.mark.slow
@given(st.booleans(), st.data())
def test_a_decoded_message_equals_the_encoded_one(in_stream, data):
    message = data.draw(messages(in_stream))
    assert decode(encode(message), in_stream) == message


@pytest.mark.slow
@given(st.data())
def test_a_message_that_is_cut_short_is_an_error(data):
    payload = encode(data.draw(messages(False)))
    cut = data.draw(st.integers(0, len(payload) - 1))
    # A stream abort of version 4 cut to the length of an older one is a complete message; no other prefix is.
    if payload[:1] == b"A" and cut == 9:
        return
    with pytest.raises(DecodeError):
        decode(payload[:cut])


@pytest.mark.slow
@given(st.data())
def test_bytes_after_a_message_are_an_error(data):
    payload = encode(data.draw(messages(False)))
    with pytest.raises(DecodeError):
        decode(payload + b"\0")


def test_an_unknown_message_is_named():
    with pytest.raises(DecodeError, match="unknown type 'Z'"):
        decode(b"Z")


def test_the_error_shows_no_value_of_a_row():
    payload = encode(m.Insert(1, ("secret",)))
    with pytest.raises(DecodeError) as error:
        decode(payload[:-1])
    assert "secret" not in str(error.value)


# What PostgreSQL 17.10 sent after: create table t(id int primary key, a text); insert into t values (1, 'x');
def test_the_bytes_of_a_server_are_a_transaction_with_one_insert():
    sent = [
        b"B\x00\x00\x00\x00\x01G\xf6 \x00\x03\x03\xe2S\xd6\xfb8\x00\x00\x02\xe4",
        b"R\x00\x00@\x00public\x00t\x00d\x00\x02\x01id\x00\x00\x00\x00\x17\xff\xff\xff\xff"
        b"\x00a\x00\x00\x00\x00\x19\xff\xff\xff\xff",
        b"I\x00\x00@\x00N\x00\x02t\x00\x00\x00\x011t\x00\x00\x00\x01x",
        b"C\x00\x00\x00\x00\x00\x01G\xf6 \x00\x00\x00\x00\x01G\xf6P\x00\x03\x03\xe2S\xd6\xfb8",
    ]
    columns = (m.RelationColumn("id", 23, -1, True), m.RelationColumn("a", 25, -1, False))
    assert [decode(payload) for payload in sent] == [
        m.Begin(0x147F620, 848_695_534_222_136, 740),
        m.Relation(0x4000, "public", "t", "d", columns),
        m.Insert(0x4000, ("1", "x")),
        m.Commit(0x147F620, 0x147F650, 848_695_534_222_136),
    ]


HEAD_OF_A_TEXT = b"t\0\0\0\x01a"


@pytest.mark.parametrize(
    "row",
    [
        ("", "a" * 127, None, m.UNCHANGED, "t", "n"),
        (None, m.UNCHANGED, "x"),
        ("x", HEAD_OF_A_TEXT),
        (HEAD_OF_A_TEXT, HEAD_OF_A_TEXT),
        (b"\x05" + HEAD_OF_A_TEXT, "x"),
        (b"b", "a" * 128),
        ("a" * 300, "b"),
        ("ü", "b"),
        (None,),
    ],
)
def test_a_row_is_the_same_on_the_short_way_and_on_the_long_one(row):
    assert decode(encode(m.Insert(7, row))) == m.Insert(7, row)
    assert decode(encode(m.Update(7, row, row, True))) == m.Update(7, row, row, True)
