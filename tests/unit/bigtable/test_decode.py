"""Kinds of records and closes. The property tests cover chunking."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from google.cloud.bigtable_v2.types import data

from penstock.errors import DecodeError
from penstock.io.bigtable import AddToCell, DeleteCells, MergeToCell, MutationType, SetCell, UnknownMutation
from penstock.io.bigtable.decode import Decoder, key_range
from penstock.io.bigtable.keys import EVERYTHING, KeyRange
from penstock.io.bigtable.record import CloseStream, Continuation

SetCellMessage = data.Mutation.SetCell.pb()
LOW, HIGH = KeyRange(b"", b"m"), KeyRange(b"m", b"")


def entry(message: Any) -> Any:
    record = Decoder().feed(message)
    return record.entries[0]  # type: ignore[union-attr]


def test_nanoseconds_tiebreaker_and_negative_times_are_kept(say: Any) -> None:
    message = say.change("t", low=2)
    message.data_change.commit_timestamp.nanos = 123_456_789
    message.data_change.tiebreaker = -3
    record: Any = Decoder().feed(message)
    assert (record.commit_timestamp, record.tiebreaker) == (1_123_456_789, -3)
    assert (record.estimated_low_watermark, record.type) == (2_000_000_000, MutationType.USER)


def test_a_decoded_cell_is_a_cell_like_any_other_and_cannot_be_changed(say: Any) -> None:
    message = say.change("t")
    cell = message.data_change.chunks[0].mutation.set_cell
    cell.family_name, cell.column_qualifier, cell.timestamp_micros, cell.value = "f", b"q", 7, b"v"
    decoded = entry(message)
    assert type(decoded) is SetCell
    made = SetCell("f", b"q", 7, b"v")
    assert (decoded, hash(decoded), repr(decoded)) == (made, hash(made), repr(made))
    assert pickle.loads(pickle.dumps(decoded)) == decoded
    with pytest.raises(FrozenInstanceError):
        decoded.value = b"other"


def test_a_cell_of_a_family_without_a_name_is_not_an_unknown_mutation(say: Any) -> None:
    message = say.change("t")
    message.data_change.chunks[0].mutation.set_cell.CopyFrom(SetCellMessage(value=b"v"))
    assert entry(message) == SetCell("", b"", 0, b"v")


def test_collected_garbage_has_no_source_cluster(say: Any) -> None:
    message = say.change("t")
    message.data_change.type_, message.data_change.source_cluster_id = 2, ""
    record: Any = Decoder().feed(message)
    assert record.type is MutationType.GARBAGE_COLLECTION


def test_a_deletion_of_cells_may_have_no_end(say: Any) -> None:
    message = say.change("t")
    delete = message.data_change.chunks[0].mutation.delete_from_column
    delete.family_name, delete.column_qualifier = "f", b""
    delete.time_range.start_timestamp_micros = 5
    assert entry(message) == DeleteCells("f", b"", 5, None)


@pytest.mark.parametrize(("kind", "made"), [("add_to_cell", AddToCell), ("merge_to_cell", MergeToCell)])
def test_aggregates_take_integers_and_raw_bytes_and_anything_else_is_kept_as_bytes(
    say: Any, kind: str, made: Any
) -> None:
    message = say.change("t")
    mutation = message.data_change.chunks[0].mutation
    cell = getattr(mutation, kind)
    cell.family_name, cell.column_qualifier.raw_value = "f", b"\xff"
    cell.timestamp.raw_timestamp_micros = 7
    cell.input.int_value = -1
    assert entry(message) == made("f", b"\xff", 7, -1)
    cell.input.raw_value = b"state"
    assert entry(message) == made("f", b"\xff", 7, b"state")
    cell.input.float_value = 1.5
    assert entry(message) == UnknownMutation(mutation.SerializeToString(deterministic=True))


def test_a_message_of_an_unknown_kind_is_refused() -> None:
    from tests.unit.bigtable.conftest import Response

    with pytest.raises(DecodeError, match="neither data, heartbeat nor close"):
        Decoder().feed(Response())


def test_a_close_without_new_partitions_continues_in_the_ranges_of_its_tokens(say: Any) -> None:
    closed = Decoder().feed(say.close(11, (LOW, "l", None), (HIGH, "h", None)))
    assert closed == CloseStream(11, "", (Continuation(LOW, "l", LOW), Continuation(HIGH, "h", HIGH)))


def test_a_close_with_another_number_of_tokens_than_of_partitions_is_refused(say: Any) -> None:
    with pytest.raises(DecodeError, match="2 tokens for 1 new partitions"):
        Decoder().feed(say.close(11, (LOW, "l", EVERYTHING), (HIGH, "h", None)))


def test_a_close_with_ok_and_tokens_is_refused(say: Any) -> None:
    with pytest.raises(DecodeError, match="status OK and continuation tokens"):
        Decoder().feed(say.close(0, (LOW, "l", LOW)))


def test_open_and_closed_ends_of_ranges_are_decoded() -> None:
    row_range = data.RowRange.pb()
    assert key_range(row_range()) == EVERYTHING
    assert key_range(row_range(start_key_open=b"a", end_key_closed=b"b")) == KeyRange(b"a\0", b"b\0")
    assert key_range(row_range(start_key_closed=b"\0", end_key_open=b"\xff")) == KeyRange(b"\0", b"\xff")
    with pytest.raises(DecodeError, match="empty range"):
        key_range(row_range(start_key_closed=b"b", end_key_open=b"b"))
