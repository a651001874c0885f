"""Lines of the Bigtable change log: every kind of entry, both shapes, bytes that are no text."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest

from penstock.io.bigtable import (
    AddToCell,
    ChangeStreamMutation,
    DeleteCells,
    DeleteFamily,
    MergeToCell,
    MutationType,
    SetCell,
    UnknownMutation,
)
from penstock.transforms.formats.bigtable_change_log import ROW, change_log_lines

AT = 1_769_860_800_123_456_000


def change(
    *entries: Any, key: bytes = b"user#17", kind: MutationType = MutationType.USER
) -> ChangeStreamMutation:
    return ChangeStreamMutation(key, kind, "c1", AT, 7, "token", AT - 1_000_000_000, entries)


def lines(record: ChangeStreamMutation, **options: Any) -> list[dict[str, Any]]:
    return [
        json.loads(line.line) for line in change_log_lines(record, instance="main", table="users", **options)
    ]


def test_each_cell_of_a_change_is_a_line_and_the_lines_can_be_joined_again() -> None:
    record = change(SetCell("cf", b"name", 1_000, b"Ada"), SetCell("cf", b"age", 2_000, b"36"))
    first, second = lines(record)
    assert first == {
        "row_key": "user#17",
        "mod_type": "SET_CELL",
        "column_family": "cf",
        "column": "name",
        "timestamp": 1000,
        "timestamp_from": None,
        "timestamp_to": None,
        "value": "Ada",
        "is_gc": False,
        "source_instance": "main",
        "source_cluster": "c1",
        "source_table": "users",
        "tiebreaker": 7,
        "commit_timestamp": "2026-01-31T12:00:00.123456000Z",
        "low_watermark": "2026-01-31T11:59:59.123456000Z",
        "entry_index": 0,
        "number_of_entries": 2,
    }
    assert (second["column"], second["entry_index"], second["number_of_entries"]) == ("age", 1, 2)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            DeleteCells("cf", b"q", 5, None),
            {"mod_type": "DELETE_CELLS", "column": "q", "timestamp_from": 5, "timestamp_to": None},
        ),
        (DeleteFamily("cf"), {"mod_type": "DELETE_FAMILY", "column_family": "cf", "column": None}),
        (AddToCell("cf", b"q", 1, -(2**62)), {"mod_type": "ADD_TO_CELL", "value": -(2**62)}),
        (MergeToCell("cf", b"q", 1, b"\xff"), {"mod_type": "MERGE_TO_CELL", "value": {"base64": "/w=="}}),
        (
            UnknownMutation(b"\x08\x01"),
            {"mod_type": "UNKNOWN", "value": {"base64": "CAE="}, "column_family": None},
        ),
    ],
)
def test_every_kind_of_entry_has_its_line(entry: Any, says: dict[str, Any]) -> None:
    (line,) = lines(change(entry))
    assert {name: line[name] for name in says} == says


def test_bytes_that_are_not_text_are_neither_lost_nor_mistaken_for_text() -> None:
    (odd,) = lines(change(SetCell("cf", b"", 1, b"\xff\x00"), key=b"\xc3("))
    assert (odd["row_key"], odd["column"], odd["value"]) == ({"base64": "wyg="}, "", {"base64": "/wA="})
    (plain,) = lines(change(SetCell("cf", b"q", 1, b"text")), base64=True)
    assert b64decode(plain["value"]) == b"text"
    assert b64decode(plain["row_key"]) == b"user#17"


def test_lines_of_garbage_collection_are_marked() -> None:
    (line,) = lines(change(DeleteFamily("cf"), kind=MutationType.GARBAGE_COLLECTION))
    assert line["is_gc"] is True


def test_a_row_has_the_change_logs_fields_as_cells_and_a_key_that_a_crash_does_not_change() -> None:
    record = change(SetCell("cf", b"name", 1_000, b"Ada"))
    (row,), (again,) = lines(record, shape=ROW), lines(record, shape=ROW)
    assert row == again
    assert row["key"] == "2026-01-31T12:00:00.123456000Z#c1#7#user#17#0"
    assert {cell["family"] for cell in row["cells"]} == {"changelog"}
    assert {cell["timestamp"] for cell in row["cells"]} == {AT // 1000}
    assert {cell["qualifier"]: cell["value"] for cell in row["cells"]}["value"] == "Ada"
    assert "timestamp_from" not in {cell["qualifier"] for cell in row["cells"]}
