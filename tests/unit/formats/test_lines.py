"""Records as lines of files: values alone, or whole messages with keys and tombstones."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.errors import UsageError
from penstock.event import CellChange, Kind, Op, Source
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.google_templates import BigtableChangeLogFormat
from penstock.transforms.formats.lines import RecordLines
from penstock.transforms.formats.ydb import YdbFormat
from tests.unit.formats.events import event_of, schema_of

ROWS = schema_of({"Id": Kind.INT64}, Doc=Kind.JSON)
DELETE = event_of(ROWS, Op.DELETE, before={"Id": 1, "Doc": None})


def test_a_line_is_the_value_and_a_tombstone_is_no_line() -> None:
    (line,) = RecordLines(DebeziumFormat("shop"))(DELETE)
    (value, tombstone) = DebeziumFormat("shop")(DELETE)
    assert (line.table, line.key, line.line) == ("Orders", value.key, value.value)
    assert tombstone.value is None


def test_a_message_has_key_value_topic_and_headers() -> None:
    value, tombstone = (
        json.loads(line.line) for line in RecordLines(DebeziumFormat("shop"), "messages")(DELETE)
    )
    assert (value["topic"], value["key"], value["value"]["op"]) == ("shop.Orders", {"Id": 1}, "d")
    assert (tombstone["key"], tombstone["value"], tombstone["headers"]) == ({"Id": 1}, None, {})
    assert value["timestamp"] == "2022-12-11T21:00:00.890000000Z"


def test_a_delete_without_an_old_row_still_says_which_row_is_gone() -> None:
    event = msgspec.structs.replace(DELETE, before=None)
    (line,) = RecordLines(DebeziumFormat("shop"))(event)
    assert json.loads(line.line)["before"]["Id"] == 1


def test_a_row_key_of_bigtable_in_a_message_is_text_or_base64() -> None:
    cells = (CellChange("SET_CELL", "f", b"q", 5, None, b"v"),)
    schema = schema_of({"row_key": Kind.BYTES})
    keys = []
    for key in (b"1", b"\xff"):
        event = event_of(schema, after={"row_key": key}, source=Source("bigtable", table="t"), cells=cells)
        (line,) = RecordLines(BigtableChangeLogFormat("main"), "messages")(event)
        keys.append(json.loads(line.line)["key"])
    assert keys == ["1", {"base64": "/w=="}]


def test_json_of_the_source_that_spans_lines_stays_in_one_line() -> None:
    event = event_of(ROWS, after={"Id": 1, "Doc": '{\n  "a": "x\\ny"\r\n}'})
    (line,) = RecordLines(YdbFormat("feed"))(event)
    assert b"\n" not in line.line
    assert json.loads(line.line)["update"]["Doc"] == {"a": "x\ny"}


def test_a_barrier_belongs_to_its_table() -> None:
    line = RecordLines(YdbFormat("feed"), "messages").barrier("sales.Orders", 7_000_000)
    assert json.loads(line.line)["topic"] == "sales.Orders/feed"
    assert (line.table, json.loads(line.line)["value"]) == ("sales.Orders", {"resolved": [7, 0]})
    with pytest.raises(UsageError, match="barriers are for format ydb only"):
        RecordLines(DebeziumFormat("shop")).barrier("Orders", 0)
