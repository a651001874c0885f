"""Conversion of Bigtable changes to events."""

from __future__ import annotations

from penstock.event.coder import decode_event, encode_event
from penstock.event.model import CellChange, Op
from penstock.io.bigtable.events import EventConverter
from penstock.io.bigtable.record import (
    AddToCell,
    ChangeStreamMutation,
    DeleteCells,
    DeleteFamily,
    Entry,
    MutationType,
    SetCell,
    UnknownMutation,
)


def mutation(
    *entries: Entry, type_: MutationType = MutationType.USER, row: bytes = b"r"
) -> ChangeStreamMutation:
    return ChangeStreamMutation(row, type_, "c1", 5_000, 3, "token", 4_000, entries)


def test_the_newest_cell_of_a_column_is_its_value() -> None:
    (event,) = EventConverter("p/i", "users")(
        mutation(
            SetCell("cf", b"q", 20, b"new"), SetCell("cf", b"q", 10, b"old"), SetCell("cf", b"\xff", 1, b"")
        )
    )
    assert event.op is Op.UPDATE
    assert event.key == {"row_key": b"r"}
    assert event.after == {"row_key": b"r", "cf:q": b"new", "cf:\\xff": b""}
    assert event.before is None
    assert event.schema.names == ("row_key", "cf:q", "cf:\\xff")
    assert [cell.start_us for cell in event.cells] == [20, 10, 1]


def test_deletions_stay_deletions() -> None:
    (event,) = EventConverter()(
        mutation(
            DeleteFamily("a"),
            DeleteCells("b", b"q", 5, None),
            AddToCell("c", b"n", 9, 4),
            UnknownMutation(b"\x01"),
        )
    )
    assert event.cells == (
        CellChange("DELETE_FAMILY", "a"),
        CellChange("DELETE_CELLS", "b", b"q", 5, None),
        CellChange("ADD_TO_CELL", "c", b"n", 9, None, 4),
        CellChange("UNKNOWN", value=b"\x01"),
    )
    assert event.after == {"row_key": b"r"}
    assert decode_event(encode_event(event)) == event


def test_garbage_collection_is_a_system_transaction() -> None:
    (event,) = EventConverter()(mutation(DeleteFamily("a"), type_=MutationType.GARBAGE_COLLECTION))
    assert event.transaction is not None
    assert event.transaction.system


def test_two_rows_that_were_changed_at_the_same_time_have_different_ids() -> None:
    (one,), (other,) = (EventConverter()(mutation(DeleteFamily("a"), row=row)) for row in (b"r1", b"r2"))
    assert one.version == other.version
    assert one.id != other.id
    assert "r1" not in one.id
