"""CloudEvents: the record byte for byte, and what the official SDK reads from it."""

from __future__ import annotations

import json
import pickle

import pytest
from cloudevents.core.formats.json import JSONFormat

from penstock.errors import UsageError
from penstock.event import Kind, Op
from penstock.transforms.formats.cloudevents import CloudEventsFormat
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.ydb import YdbFormat
from tests.unit.formats.events import event_of, schema_of

SCHEMA = schema_of({"k": Kind.INT64}, v=Kind.STRING)
CHANGED = event_of(SCHEMA, after={"k": 1, "v": "x"}, timestamp=1_670_792_400_890_123_456)


def test_a_record_comes_out_byte_for_byte() -> None:
    # The attributes and members are those of the CloudEvents specification 1.0.2, "JSON Event Format".
    (record,) = CloudEventsFormat(YdbFormat("feed"))(CHANGED)
    assert json.loads(record.value or b"") == {
        "id": "1670792400890123456-tx-00000001-0",
        "source": "/spanner/p/i/shop/Orders",
        "type": "io.penstock.update",
        "subject": "Orders/feed",
        "time": "2022-12-11T21:00:00.890123Z",
        "datacontenttype": "application/json",
        "sequence": "01670792400890123456-tx-00000001-000000",
        "specversion": "1.0",
        "partitionkey": "[1]",
        "data": {"key": [1], "update": {"v": "x"}},
    }
    assert record.headers == (("content-type", b"application/cloudevents+json; charset=UTF-8"),)
    assert record.key == b"[1]"


def test_the_official_sdk_reads_it() -> None:
    (record,) = CloudEventsFormat(DebeziumFormat("shop"), source="/mine", type="com.example.changed")(CHANGED)
    event = JSONFormat().read(None, record.value or b"")
    assert (event.get_source(), event.get_type(), event.get_subject()) == (
        "/mine",
        "com.example.changed",
        "shop.Orders",
    )
    data = event.get_data()
    assert isinstance(data, dict)
    assert data["after"] == {"k": 1, "v": "x"}


def test_not_sent_null_and_empty_stay_different() -> None:
    shown = [
        json.loads(CloudEventsFormat(YdbFormat("feed"))(event_of(SCHEMA, after=after))[0].value or b"")[
            "data"
        ]["update"]
        for after in ({"k": 1}, {"k": 1, "v": None}, {"k": 1, "v": ""})
    ]
    assert shown == [{}, {"v": None}, {"v": ""}]


def test_a_tombstone_is_left_out_and_two_records_have_two_ids() -> None:
    gone = event_of(SCHEMA, Op.DELETE, before={"k": 1, "v": "x"})
    assert len(CloudEventsFormat(DebeziumFormat("shop"))(gone)) == 1
    moved = event_of(SCHEMA, before={"k": 1, "v": "x"}, after={"k": 2, "v": "x"})
    ids = [
        json.loads(record.value or b"")["id"] for record in CloudEventsFormat(DebeziumFormat("shop"))(moved)
    ]
    assert ids == [f"{moved.id}-0", f"{moved.id}-1"]


def test_an_empty_attribute_is_refused() -> None:
    with pytest.raises(UsageError, match="source is empty"):
        CloudEventsFormat(DebeziumFormat("shop"), source="")


def test_a_format_can_be_sent_to_a_worker() -> None:
    format_ = CloudEventsFormat(DebeziumFormat("shop"))
    assert pickle.loads(pickle.dumps(format_))(CHANGED) == format_(CHANGED)
