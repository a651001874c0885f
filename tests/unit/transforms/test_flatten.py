"""`FlattenAfter`: a row with metadata columns, in which not sent, NULL and deleted stay apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.errors import UsageError
from penstock.event import CellChange, ChangeEvent, Op
from penstock.transforms import FlattenAfter
from tests.unit.transforms.events import order


def rows(event: ChangeEvent, **options: Any) -> list[dict[str, Any]]:
    return list(FlattenAfter(**options)._process(event))


def test_a_row_has_its_columns_and_the_metadata_that_was_asked_for() -> None:
    event = order(State="open", Email=None)
    (row,) = rows(event, metadata=["op", "table", "timestamp", "transaction"])
    assert row == {
        "Id": 1,
        "State": "open",
        "Email": None,
        "_op": "UPDATE",
        "_table": "Orders",
        "_timestamp": event.timestamp,
        "_transaction": event.version.transaction,
    }


def test_a_column_that_was_not_sent_is_absent_and_can_be_listed() -> None:
    assert rows(order(State=""), metadata={"unavailable": "missing"}) == [
        {"Id": 1, "State": "", "missing": ["Email"]}
    ]


def test_a_delete_is_its_old_row_or_its_key_and_can_be_dropped() -> None:
    assert rows(order(op=Op.DELETE, State="paid"), metadata=["deleted"]) == [
        {"Id": 1, "State": "paid", "_deleted": True}
    ]
    without_old_row = msgspec.structs.replace(order(op=Op.DELETE), before=None)
    assert rows(without_old_row, metadata=["deleted"]) == [{"Id": 1, "_deleted": True}]
    assert rows(order(op=Op.DELETE), deletes="drop") == []


def test_a_column_that_a_row_cannot_show_is_refused() -> None:
    with pytest.raises(ValueError, match="a truncate of Orders has no row"):
        rows(order(op=Op.TRUNCATE))
    with pytest.raises(ValueError, match="deletes or adds to cells"):
        rows(msgspec.structs.replace(order(), cells=(CellChange("DELETE_FAMILY", "f"),)))
    with pytest.raises(ValueError, match="has a column State"):
        rows(order(State="x"), metadata={"op": "State"})
    with pytest.raises(UsageError, match="no metadata 'optype'"):
        FlattenAfter(metadata=["optype"])
