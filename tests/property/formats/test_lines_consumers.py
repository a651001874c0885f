"""Consumers of lines get every value back: rows for BigQuery, CloudEvents, and messages with keys."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.event import ChangeEvent, ColumnType, Kind, Op
from penstock.timestamps import parse_timestamp
from penstock.transforms import FlattenAfter
from penstock.transforms.formats.cloudevents import CloudEventsFormat
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.google_templates import SpannerBigQueryFormat
from penstock.transforms.formats.lines import RecordLines
from penstock.transforms.formats.ydb import YdbFormat
from tests.property.events.strategies import VALUES, row_events

SINCE_YEAR_1 = st.integers(-62135596800 * 10**9, 253402300799 * 10**9)
IN_BIGQUERY = VALUES | {
    Kind.FLOAT64: st.floats(),
    Kind.TIMESTAMP: SINCE_YEAR_1,
    Kind.LOCAL_TIMESTAMP: SINCE_YEAR_1,
}
AS_THEY_ARE = {Kind.BOOL, Kind.STRING, Kind.JSON, Kind.UUID, Kind.ENUM, Kind.OTHER}


def taken(type_: ColumnType, shown: Any) -> Any:
    """Return a value as a consumer that knows the column's type reads it."""
    kind = type_.kind
    if shown is None or kind in AS_THEY_ARE or (kind.startswith(("INT", "UINT")) and kind != Kind.INTERVAL):
        return shown
    if kind is Kind.ARRAY and type_.element:
        return [taken(type_.element, each) for each in shown]
    readers = {
        Kind.FLOAT32: float,
        Kind.FLOAT64: float,
        Kind.DECIMAL: Decimal,
        Kind.BYTES: b64decode,
        Kind.PROTO: b64decode,
        Kind.DATE: lambda text: date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal(),
        Kind.TIMESTAMP: parse_timestamp,
        Kind.LOCAL_TIMESTAMP: lambda text: parse_timestamp(f"{text}Z"),
    }
    return readers[kind](shown)


def readable(type_: ColumnType) -> bool:
    """Return whether BigQuery has a column for the type; intervals and times of day are texts of our own."""
    inner = (type_.element or type_).kind
    return inner not in (Kind.INTERVAL, Kind.TIME, Kind.STRUCT)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@settings(max_examples=80, deadline=None)
@given(row_events(known=IN_BIGQUERY, accept=readable))
def test_rows_for_bigquery_hold_exactly_the_values_that_were_sent(event: ChangeEvent) -> None:
    (record,) = SpannerBigQueryFormat()(event)
    row = json.loads(record.value or b"")
    image = (event.before if event.op is Op.DELETE else event.after) or {}
    columns = {name: value for name, value in row.items() if not name.startswith("_metadata_spanner_")}
    types = {column.name: column.type for column in event.schema}
    assert columns.keys() == image.keys(), "not sent and NULL are two things"
    for name, shown in columns.items():
        assert same(taken(types[name], shown), image[name]), name


@pytest.mark.parametrize("inner", [DebeziumFormat("srv"), YdbFormat("feed"), SpannerBigQueryFormat()])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_cloudevents_carry_the_data_unchanged(inner: Any, data: st.DataObject) -> None:
    plain = {Kind.TIMESTAMP: SINCE_YEAR_1.map(lambda value: abs(value) // 1000 * 1000)}
    event = data.draw(row_events(accept=lambda type_: type_.kind in {*AS_THEY_ARE, *plain, Kind.FLOAT64}))
    expected = [json.loads(record.value) for record in inner(event) if record.value is not None]
    found = [json.loads(record.value or b"") for record in CloudEventsFormat(inner)(event)]
    assert [each["data"] for each in found] == expected
    assert len({each["id"] for each in found}) == len(found)


@given(row_events(known=VALUES))
@settings(max_examples=60, deadline=None)
def test_messages_hold_the_bytes_of_key_and_value(event: ChangeEvent) -> None:
    records = DebeziumFormat("srv", interval_handling_mode="string")(event)
    lines = RecordLines(DebeziumFormat("srv", interval_handling_mode="string"), "messages")(event)
    assert len(lines) == len(records)
    for record, line in zip(records, lines, strict=True):
        message = json.loads(line.line)
        assert message["key"] == json.loads(record.key or b"null")
        assert message["value"] == json.loads(record.value or b"null")


@given(row_events())
@settings(max_examples=60, deadline=None)
def test_a_flat_row_has_the_columns_of_its_image_and_lists_the_others(event: ChangeEvent) -> None:
    (row,) = FlattenAfter(metadata={"unavailable": "#unavailable", "deleted": "#deleted"})._process(event)
    image = (event.before if event.op is Op.DELETE else event.after) or {}
    assert {name: value for name, value in row.items() if name[0] != "#"} == image
    assert row["#unavailable"] == [name for name in event.schema.names if name not in image]
    assert row["#deleted"] == (event.op is Op.DELETE)
