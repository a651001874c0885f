"""A change that is kept as received bytes equals the change that is decoded into entries at once."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, replace
from typing import Any

import pytest
from google.cloud.bigtable_v2.types import bigtable as service
from hypothesis import given
from hypothesis import strategies as st

from penstock.io.bigtable import ChangeStreamMutation, ChangeStreamMutationCoder, SetCell
from penstock.io.bigtable.decode import Decoder
from penstock.io.bigtable.filter import Selection
from penstock.io.bigtable.record import as_received, entry_count
from penstock.io.bigtable.wire import whole_cells
from tests.property.bigtable.test_chunking import mutations, whole
from tests.property.bigtable.test_coder import texts

Response = service.ReadChangeStreamResponse.pb()
CODER = ChangeStreamMutationCoder()
NEWER = b"\xca\x3e\x01x"
"""Field 1001, of a service newer than this client."""
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
raw = st.binary(max_size=300)


@st.composite
def messages(draw: Any) -> Any:
    """Return a record that sets whole cells, in one message, with fields unknown to this release."""
    message = Response()
    change = message.data_change
    change.type_, change.source_cluster_id = draw(st.sampled_from([(1, "c"), (2, "")]))
    change.row_key, change.tiebreaker = draw(st.binary(min_size=1, max_size=9)), draw(int32)
    change.done, change.token = True, draw(st.text(min_size=1, max_size=9))
    for moment in (change.commit_timestamp, change.estimated_low_watermark):
        moment.seconds, moment.nanos = draw(st.integers(-9, 1 << 35)), draw(int32)
    for _ in range(draw(st.integers(1, 4))):
        chunk = change.chunks.add()
        cell = chunk.mutation.set_cell
        cell.family_name, cell.column_qualifier = draw(texts), draw(raw)
        cell.timestamp_micros, cell.value = draw(int64), draw(raw)
        for part in (chunk, chunk.mutation, cell):
            if draw(st.booleans()):
                part.MergeFromString(NEWER)
    for part in (message, change, change.commit_timestamp, change.estimated_low_watermark):
        if draw(st.booleans()):
            part.MergeFromString(NEWER)
    return message


def lazily(message: Any) -> ChangeStreamMutation:
    """Return the record as the reader returns it, with entries decoded on first use."""
    record: Any = Decoder().feed(whole_cells(message.SerializeToString()))
    assert as_received(record) is not None
    return record


def eagerly(message: Any) -> ChangeStreamMutation:
    """Return the record with its entries decoded at once."""
    record: Any = Decoder().feed(message)
    assert as_received(record) is None
    return record


@given(messages())
def test_a_received_change_has_the_same_fields_entries_hash_and_text(message: Any) -> None:
    made = eagerly(message)
    assert entry_count(lazily(message)) == len(made.entries)
    assert repr(lazily(message)) == repr(made)
    assert lazily(message).entries == made.entries
    assert lazily(message) == made
    assert made == lazily(message)
    assert lazily(message) == lazily(message)
    assert hash(lazily(message)) == hash(made)
    assert asdict(lazily(message)) == asdict(made)
    assert replace(lazily(message), tiebreaker=1) == replace(made, tiebreaker=1)
    assert lazily(message) != replace(made, entries=(*made.entries, SetCell("f", b"", 0, b"")))


@given(messages())
def test_a_received_change_survives_pickle_and_copies(message: Any) -> None:
    made = eagerly(message)
    assert pickle.loads(pickle.dumps(lazily(message))) == made
    assert copy.copy(lazily(message)) == copy.deepcopy(lazily(message)) == made


@given(messages())
def test_a_received_change_has_the_same_bytes_before_and_after_its_entries_are_decoded(message: Any) -> None:
    made, received = eagerly(message), lazily(message)
    encoded = CODER.encode(made)
    assert CODER.encode(received) == encoded
    assert received.entries == made.entries
    assert CODER.encode(received) == encoded
    assert CODER.decode(encoded) == made
    assert CODER.encode(CODER.decode(encoded)) == encoded


@given(messages(), messages())
def test_equal_changes_and_only_they_have_equal_bytes(one: Any, other: Any) -> None:
    assert (CODER.encode(lazily(one)) == CODER.encode(lazily(other))) == (eagerly(one) == eagerly(other))


@given(st.lists(mutations(), min_size=1, max_size=4))
def test_only_changes_whose_mutations_all_set_whole_cells_are_kept_as_received(record: list[Any]) -> None:
    (message,) = whole(record)
    cells_only = all(type(entry) is SetCell for entry in eagerly(message).entries)
    assert (whole_cells(message.SerializeToString()) is not None) is cells_only


@given(messages(), st.sampled_from(["chunk_info", "delete_from_family", "add_to_cell", "heartbeat"]))
def test_empty_fields_that_are_present_are_recognized(message: Any, what: str) -> None:
    """Two kinds in one message: no encoder writes that, and protobuf decides which kind is used."""
    extra = Response()
    if what == "heartbeat":
        extra.heartbeat.SetInParent()
        assert whole_cells(message.SerializeToString() + extra.SerializeToString()) is None
        return
    chunk = extra.data_change.chunks.add()
    chunk.mutation.set_cell.value = b"v"
    if what == "chunk_info":
        chunk.chunk_info.SetInParent()
    else:
        chunk.mutation.MergeFromString(b"\x1a\x00" if what == "delete_from_family" else b"\x2a\x00")
    assert whole_cells(message.SerializeToString() + extra.SerializeToString()) is None


@given(messages())
def test_attributes_that_need_no_entry_decode_none(message: Any) -> None:
    record = lazily(message)
    assert Selection(garbage_collection=True, source_clusters=frozenset("c")).apply(record) is record
    CODER.encode(record)
    repr(record)
    with pytest.raises(AttributeError):
        object.__getattribute__(record, "entries")
    assert record.entries is record.entries


@given(messages())
def test_a_received_change_is_immutable_and_has_no_other_attributes(message: Any) -> None:
    record: Any = lazily(message)
    with pytest.raises(FrozenInstanceError):
        record.entries = ()
    with pytest.raises(AttributeError, match="'ChangeStreamMutation' object has no attribute 'entry'"):
        _ = record.entry


@pytest.mark.parametrize("damage", [b"\x0a", b"\x0a\x02\x08", b"", b"\xff"])
def test_bytes_that_are_not_a_message_are_left_to_the_full_decoder(damage: bytes) -> None:
    assert whole_cells(damage) is None


def test_a_family_that_is_not_text_is_not_received_as_whole_cells() -> None:
    message = Response()
    change = message.data_change
    change.chunks.add().mutation.set_cell.family_name = "family"
    broken = message.SerializeToString().replace(b"family", b"\xff\xfe\xfd\xfc\xfb\xfa")
    assert whole_cells(message.SerializeToString()) is not None
    assert whole_cells(broken) is None


def test_records_of_the_previous_format_are_read() -> None:
    """The bytes of version 1 for a change that sets a cell. The state of a running pipeline may contain them."""
    written = bytes.fromhex("01010101000000") + (1_123_456_789).to_bytes(8, "little") + bytes(8)
    written += (
        (7).to_bytes(4, "little")
        + b"\x01"
        + (5).to_bytes(8, "little")
        + bytes([1, 1, 1, 1, 1, 1])
        + b"rctfqv"
    )
    record = CODER.decode(written)
    assert (record.row_key, record.source_cluster_id, record.token, record.tiebreaker) == (b"r", "c", "t", 7)
    assert (record.commit_timestamp, record.entries) == (1_123_456_789, (SetCell("f", b"q", 5, b"v"),))
    assert CODER.decode(CODER.encode(record)) == record
