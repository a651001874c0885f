"""Rows of a change feed in JSON: one or two records for an event, with the columns of the table and of the feed."""

from __future__ import annotations

import json
import pickle
from typing import Any

import msgspec
import pytest

from penstock.errors import UnwritableError, UsageError
from penstock.event import CellChange, ChangeEvent, Kind, Op
from penstock.event.change_feed import change_feed
from penstock.event.replica import encode_version
from penstock.transforms.formats.catalog import formats_of
from penstock.transforms.formats.change_feed import ChangeFeedFormat
from tests.unit.formats.events import event_of, schema_of

ROWS = schema_of({"Id": Kind.INT64}, State=Kind.STRING, Paid=Kind.TIMESTAMP)
OPEN, PAID = {"Id": 1, "State": "open", "Paid": None}, {"Id": 1, "State": "paid", "Paid": 1_500_000_000_000}
EVENTS = [
    event_of(ROWS, Op.CREATE, after=OPEN),
    event_of(ROWS, Op.READ, after=PAID),
    event_of(ROWS, before=OPEN, after=PAID),
    event_of(ROWS, after={"Id": 1, "State": "paid"}),
    event_of(ROWS, before={"Id": 1}, after={"Id": 2, "State": "paid"}),
    event_of(ROWS, Op.DELETE, before=PAID),
    event_of(ROWS, Op.DELETE, before={"Id": 1}),
    msgspec.structs.replace(event_of(ROWS, Op.TRUNCATE, after=OPEN), key=None, after=None),
]


def rows(event: ChangeEvent) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in ChangeFeedFormat()(event)]


def test_an_update_is_its_row_before_and_its_row_after_with_one_version() -> None:
    event = EVENTS[2]
    change = {
        "_commit_version": encode_version(event.version),
        "_commit_timestamp": "2022-12-11T21:00:00.890000Z",
        "_not_sent": [],
    }
    assert rows(event) == [
        {**OPEN, "_change_type": "update_preimage", **change},
        {**PAID, "Paid": "1970-01-01T00:25:00.000000Z", "_change_type": "update_postimage", **change},
    ]
    assert list(rows(event)[0]) == [*ROWS.names, *change_feed([], ROWS).column_names[len(ROWS.names) :]]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: str(event.op))
def test_the_rows_are_those_of_parquet_files_and_of_spark(event: ChangeEvent) -> None:
    columnar = change_feed([event], ROWS).to_pylist()
    assert len(columnar) == len(rows(event))
    for row, other in zip(rows(event), columnar, strict=True):
        for name in ("Id", "State", "_change_type", "_commit_version", "_not_sent"):
            assert row[name] == other[name], name
        assert (row["Paid"] is None) == (other["Paid"] is None)


def test_a_timestamp_with_nanoseconds_keeps_them() -> None:
    (row,) = rows(event_of(ROWS, Op.CREATE, after={**OPEN, "Paid": 1_500_000_000_001}))
    assert row["Paid"] == "1970-01-01T00:25:00.000000001Z"


def test_the_old_row_of_a_changed_key_has_the_old_key() -> None:
    old, new = ChangeFeedFormat()(EVENTS[4])
    assert (old.key, new.key) == (b'{"Id":1}', b'{"Id":2}')
    assert {record.topic for record in (old, new)} == {"Orders"}


def test_a_truncate_belongs_to_no_row_and_messages_become_no_record() -> None:
    (record,) = ChangeFeedFormat()(EVENTS[-1])
    assert record.key is None
    assert json.loads(record.value or b"")["_change_type"] == "truncate"
    for op in (Op.MESSAGE, Op.SCHEMA):
        assert ChangeFeedFormat()(event_of(ROWS, op, after=OPEN)) == []


def test_a_deletion_of_cells_and_a_taken_name_are_refused() -> None:
    cells = (CellChange("DELETE_FAMILY", "family"),)
    event = msgspec.structs.replace(EVENTS[0], cells=cells)
    for make in (ChangeFeedFormat(), lambda each: change_feed([each], ROWS)):
        with pytest.raises(UnwritableError, match="DELETE_FAMILY"):
            make(event)
    taken = schema_of({"Id": Kind.INT64}, _Change_Type=Kind.STRING)
    with pytest.raises(UsageError, match="_change_type.*rename"):
        ChangeFeedFormat()(event_of(taken, Op.CREATE, after={"Id": 1, "_Change_Type": "x"}))


def test_bigtable_has_no_change_feed() -> None:
    assert {name for name in ("spanner", "postgres", "ydb") if "change_feed" in formats_of(name)} == {
        "spanner",
        "postgres",
        "ydb",
    }
    assert "change_feed" not in formats_of("bigtable")


def test_the_format_can_be_pickled() -> None:
    format_ = ChangeFeedFormat()
    before = format_(EVENTS[0])
    assert pickle.loads(pickle.dumps(format_))(EVENTS[0]) == before
