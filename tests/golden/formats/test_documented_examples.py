"""The examples in the documentation of the formats come out when the same change is fed in.

Each golden file in `documented/` names its origin and what was changed in it. Where the documentation prints a value
that the service makes up, or that depends on the moment of processing, the test names the field.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.event import ChangeEvent, ColumnType, Image, Kind, Op, Source, Transaction, Version
from penstock.timestamps import parse_timestamp
from penstock.transforms.formats.cloudevents import CloudEventsFormat
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.dynamodb import DynamoDbFormat
from penstock.transforms.formats.formatted import FormattedRecord
from penstock.transforms.formats.google_templates import SpannerBigQueryFormat
from penstock.transforms.formats.ydb import YdbFormat
from tests.unit.formats.events import event_of, schema_of

DOCUMENTED = Path(__file__).parent / "documented"


def documented(file: str) -> dict[str, str]:
    content = json.loads((DOCUMENTED / f"{file}.json").read_text("utf-8"))
    assert content["origin"]["url"].startswith("https://")
    records: dict[str, str] = content["records"]
    return records


def first(format_: Any, event: ChangeEvent) -> FormattedRecord:
    record: FormattedRecord = format_(event)[0]
    return record


# YDB changefeeds: byte for byte.

ITEMS = schema_of({"id": Kind.INT64, "name": Kind.STRING}, payload=Kind.STRING, date=Kind.STRING)
ROWS = schema_of(
    {"a": Kind.INT64, "b": Kind.INT64, "c": Kind.INT64},
    textColumn=Kind.STRING,
    intColumn=Kind.INT64,
    boolColumn=Kind.BOOL,
)
ABC = {"a": 1, "b": 2, "c": 3}
VISITS = schema_of({"id": Kind.INT64}, created=ColumnType(Kind.TIMESTAMP, "Timestamp"), customer=Kind.STRING)
VISIT: Image = {"id": 1, "created": parse_timestamp("2022-12-12T00:00:00Z"), "customer": "Name123"}
YDB_EVENTS = {
    "update": event_of(ITEMS, after={"id": 1, "name": "one", "payload": "lorem ipsum", "date": "2022-02-22"}),
    "erase": event_of(ITEMS, Op.DELETE, before={"id": 2, "name": "two"}),
    "images": event_of(
        ROWS,
        before={**ABC, "textColumn": None, "intColumn": 100, "boolColumn": False},
        after={**ABC, "textColumn": "value1", "intColumn": 101, "boolColumn": True},
    ),
    "timestamp": msgspec.structs.replace(
        event_of(VISITS, after=VISIT, source=Source("ydb", database="/local", table="visits")),
        version=Version(1670792400890, "00000562949953607163"),
    ),
}
YDB_OPTIONS: dict[str, dict[str, Any]] = {
    "images": {"mode": "NEW_AND_OLD_IMAGES"},
    "timestamp": {"virtual_timestamps": True},
}


@pytest.mark.parametrize("name", YDB_EVENTS)
def test_a_documented_record_of_a_changefeed_comes_out_byte_for_byte(name: str) -> None:
    format_ = YdbFormat("feed", **YDB_OPTIONS.get(name, {}))
    assert first(format_, YDB_EVENTS[name]).value == documented("ydb-changefeed")[name].encode()


def test_the_documented_barrier_comes_out_byte_for_byte() -> None:
    barrier = YdbFormat("feed").barrier("Orders", 1_670_792_500_000 * 10**6)
    assert barrier.value == documented("ydb-changefeed")["barrier"].encode()


# Debezium's Spanner connector.

USERS = schema_of({"id": Kind.INT64}, first_name=Kind.STRING, last_name=Kind.STRING, email=Kind.STRING)
ANNE: Image = {"id": 1, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
MARIE: Image = {**ANNE, "first_name": "Anne Marie"}
COMMIT = 1_670_955_531_785_000_000
user = partial(
    event_of,
    USERS,
    timestamp=COMMIT,
    source=Source(
        "spanner", "project/instance", "database", "", "Users", "change_stream", "OLD_AND_NEW_VALUES"
    ),
)
DEBEZIUM_EVENTS = {
    "create": user(Op.CREATE, after=ANNE),
    "update": user(before=ANNE, after=MARIE),
    "delete": user(Op.DELETE, before=MARIE),
}
OF_THE_READER = ("low_watermark", "read_at_timestamp", "partition_token")
"""Facts of the reader at one moment: null in our records, because a repeated read would give others."""
NEWER = {"record_sequence_prefix": None}
"""Written by release 3.7 of the connector, but not on the page."""


@pytest.mark.parametrize("name", DEBEZIUM_EVENTS)
def test_a_documented_record_of_debeziums_spanner_connector_comes_out(name: str) -> None:
    event = msgspec.structs.replace(
        DEBEZIUM_EVENTS[name],
        version=Version(COMMIT, "transaction_id", "00000001", 0),
        transaction=Transaction("transaction_id", 2, 1, True),
    )
    ours = json.loads(first(DebeziumFormat("spanner_connector"), event).value or b"")
    theirs = json.loads(documented("debezium-spanner")[name])
    for processed in ("ts_ms", "ts_us", "ts_ns"):  # theirs is the time of processing, ours the commit
        theirs.pop(processed, None)
        assert ours.pop(processed) == ours["source"][processed]
    theirs["source"] |= {"version": ours["source"]["version"], **dict.fromkeys(OF_THE_READER), **NEWER}
    assert ours == {**theirs, "transaction": None}


# CloudEvents.


def test_the_documented_cloudevent_comes_out() -> None:
    def data(event: ChangeEvent) -> list[FormattedRecord]:
        value = msgspec.json.encode({"appinfoA": "abc", "appinfoB": 123, "appinfoC": True})
        return [FormattedRecord("topic", None, value, event.timestamp, event.version)]

    event = event_of(ITEMS, Op.DELETE, before={"id": 2, "name": "two"})
    event = msgspec.structs.replace(event, timestamp=parse_timestamp("2018-04-05T17:31:00Z"))
    format_ = CloudEventsFormat(data, source="/mycontext", type="com.example.someevent")
    ours = json.loads(first(format_, event).value or b"")
    theirs = json.loads(documented("cloudevents-json")["json object"])
    # The id is the event's own; the subject and the extension `sequence` say more than the example.
    assert {name: ours[name] for name in theirs} == {**theirs, "id": event.id}
    assert set(ours) - set(theirs) == {"subject", "sequence"}


# DynamoDB Streams.

MESSAGES = schema_of({"Id": Kind.INT64}, Message=Kind.STRING)
OLD, NEW = {"Id": 101, "Message": "New item!"}, {"Id": 101, "Message": "This item has changed"}
DYNAMODB_EVENTS = {
    "insert": event_of(MESSAGES, Op.CREATE, after=OLD),
    "modify": event_of(MESSAGES, before=OLD, after=NEW),
    "remove": event_of(MESSAGES, Op.DELETE, before=NEW),
}


@pytest.mark.parametrize("name", DYNAMODB_EVENTS)
def test_a_documented_record_of_dynamodb_streams_comes_out(name: str) -> None:
    format_ = DynamoDbFormat(aws_region="us-west-2", event_source_arn="arn")
    ours = json.loads(first(format_, DYNAMODB_EVENTS[name]).value or b"")
    theirs = json.loads(documented("aws-dynamodb")[name])
    for record in (ours, theirs):  # identifiers, and the version, which the service has raised since
        for made_up in ("eventID", "eventSourceARN", "eventVersion"):
            assert record.pop(made_up)
        assert record["dynamodb"].pop("SequenceNumber")
    assert ours["dynamodb"].pop("ApproximateCreationDateTime") == 1670792400.89  # the example has none
    assert ours == theirs


# Google's template.


def test_a_row_for_bigquery_has_the_documented_metadata_and_its_columns() -> None:
    row = json.loads(first(SpannerBigQueryFormat(), user(Op.CREATE, after=ANNE)).value or b"")
    metadata = documented("google-spanner-to-bigquery")["metadata"].split()
    assert list(row) == [*ANNE, *metadata]
