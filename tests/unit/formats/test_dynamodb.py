"""DynamoDB Streams: the records of AWS's documentation, attribute values, YDB's dialect and refusals."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.event import CellChange, ChangeEvent, ColumnType, Field, Interval, Kind, Op, Source, Version
from penstock.transforms.formats.dynamodb import DynamoDbFormat
from tests.unit.formats.events import event_of, schema_of

MESSAGES = schema_of({"Id": Kind.INT64}, Message=Kind.STRING)
OLD, NEW = {"Id": 101, "Message": "New item!"}, {"Id": 101, "Message": "This item has changed"}


def record(event: ChangeEvent, **options: Any) -> dict[str, Any]:
    (formatted,) = DynamoDbFormat(**options)(event)
    result: dict[str, Any] = json.loads(formatted.value or b"")
    return result


@pytest.mark.parametrize(
    ("event", "name", "change"),
    # Origin: AWS Lambda developer guide, "Using AWS Lambda with Amazon DynamoDB", the example event with three records.
    [
        (
            event_of(MESSAGES, Op.CREATE, after=OLD),
            "INSERT",
            {
                "Keys": {"Id": {"N": "101"}},
                "NewImage": {"Message": {"S": "New item!"}, "Id": {"N": "101"}},
                "StreamViewType": "NEW_AND_OLD_IMAGES",
                "SizeBytes": 26,
            },
        ),
        (
            event_of(MESSAGES, before=OLD, after=NEW),
            "MODIFY",
            {
                "OldImage": {"Message": {"S": "New item!"}, "Id": {"N": "101"}},
                "Keys": {"Id": {"N": "101"}},
                "SizeBytes": 59,
                "NewImage": {"Message": {"S": "This item has changed"}, "Id": {"N": "101"}},
                "StreamViewType": "NEW_AND_OLD_IMAGES",
            },
        ),
        (
            event_of(MESSAGES, Op.DELETE, before=NEW),
            "REMOVE",
            {
                "Keys": {"Id": {"N": "101"}},
                "SizeBytes": 38,
                "OldImage": {"Message": {"S": "This item has changed"}, "Id": {"N": "101"}},
                "StreamViewType": "NEW_AND_OLD_IMAGES",
            },
        ),
    ],
)
def test_the_documented_records_come_out(event: ChangeEvent, name: str, change: dict[str, Any]) -> None:
    shown = record(event, aws_region="us-west-2")
    assert (shown["eventName"], shown["awsRegion"], shown["eventSource"]) == (
        name,
        "us-west-2",
        "aws:dynamodb",
    )
    moment = {
        "ApproximateCreationDateTime": 1670792400.89,
        "SequenceNumber": shown["dynamodb"]["SequenceNumber"],
    }
    assert shown["dynamodb"] == change | moment
    assert 21 <= len(moment["SequenceNumber"]) <= 40


def test_a_record_comes_out_byte_for_byte() -> None:
    (formatted,) = DynamoDbFormat(aws_region="us-west-2", event_source_arn="arn:x")(
        event_of(MESSAGES, Op.CREATE, after=OLD)
    )
    assert formatted.key == b'{"Id":{"N":"101"}}'
    id_ = json.loads(formatted.value or b"")["eventID"]
    assert (
        formatted.value
        == (
            b'{"eventID":"%s","eventName":"INSERT","eventVersion":"1.1","eventSource":"aws:dynamodb","awsRegion":"us-west-2",'
            b'"dynamodb":{"ApproximateCreationDateTime":1670792400.89,"Keys":{"Id":{"N":"101"}},'
            b'"NewImage":{"Id":{"N":"101"},"Message":{"S":"New item!"}},'
            b'"SequenceNumber":"0167079240089000000000000000000001000000","SizeBytes":26,'
            b'"StreamViewType":"NEW_AND_OLD_IMAGES"},"eventSourceARN":"arn:x"}'
        )
        % id_.encode()
    )
    assert len(id_) == 32


def test_the_dialect_of_ydb_has_milliseconds_and_an_insert_only_with_both_images() -> None:
    made = event_of(
        schema_of({"k": Kind.STRING}, v=Kind.BYTES, n=Kind.INT64),
        Op.CREATE,
        after={"k": "a", "v": b"x", "n": None},
    )
    assert record(made, dialect="ydb")["eventName"] == "INSERT"
    shown = record(made, dialect="ydb", stream_view_type="NEW_IMAGE")
    assert (shown["eventName"], shown["eventVersion"], shown["eventSource"]) == (
        "MODIFY",
        "1.0",
        "ydb:document-table",
    )
    assert shown["dynamodb"]["ApproximateCreationDateTime"] == 1670792400890
    assert shown["dynamodb"]["NewImage"] == {"k": {"S": "a"}, "v": {"B": "eA=="}}


def test_the_view_type_chooses_the_images() -> None:
    changed = event_of(MESSAGES, before=OLD, after=NEW)
    shown = {
        view: {"NewImage", "OldImage"} & record(changed, stream_view_type=view)["dynamodb"].keys()
        for view in ("KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")
    }
    assert shown == {
        "KEYS_ONLY": set(),
        "NEW_IMAGE": {"NewImage"},
        "OLD_IMAGE": {"OldImage"},
        "NEW_AND_OLD_IMAGES": {"NewImage", "OldImage"},
    }


@pytest.mark.parametrize(
    ("type_", "value", "shown"),
    [
        (ColumnType(Kind.BOOL), False, {"BOOL": False}),
        (ColumnType(Kind.UINT64), 2**64 - 1, {"N": "18446744073709551615"}),
        (
            ColumnType(Kind.ARRAY, element=ColumnType(Kind.INT32)),
            [[1], [None]],
            {"L": [{"L": [{"N": "1"}]}, {"L": [{"NULL": True}]}]},
        ),
        (ColumnType(Kind.FLOAT64), 0.1, {"N": "0.1"}),
        (ColumnType(Kind.DECIMAL), Decimal("-1.50"), {"N": "-1.50"}),
        (ColumnType(Kind.STRING), "", {"S": ""}),
        (ColumnType(Kind.BYTES), b"\xff", {"B": "/w=="}),
        (ColumnType(Kind.DATE), -719162, {"S": "0001-01-01"}),
        (ColumnType(Kind.TIMESTAMP), 1, {"S": "1970-01-01T00:00:00.000000001Z"}),
        (ColumnType(Kind.LOCAL_TIMESTAMP), 0, {"S": "1970-01-01T00:00:00"}),
        (ColumnType(Kind.TIME), 1, {"S": "00:00:00.000000001"}),
        (ColumnType(Kind.INTERVAL), Interval(1), {"S": "P0Y1M0DT0H0M0S"}),
        (ColumnType(Kind.JSON), '{"a": 1}', {"S": '{"a": 1}'}),
        (
            ColumnType(Kind.ARRAY, element=ColumnType(Kind.INT64)),
            [1, None],
            {"L": [{"N": "1"}, {"NULL": True}]},
        ),
        (
            ColumnType(
                Kind.STRUCT, fields=(Field("a", ColumnType(Kind.BYTES)), Field("b", ColumnType(Kind.BOOL)))
            ),
            {"a": b"x", "b": None},
            {"M": {"a": {"B": "eA=="}, "b": {"NULL": True}}},
        ),
        (ColumnType(Kind.STRING), None, {"NULL": True}),
    ],
)
def test_each_type_is_shown_as_its_attribute_value(type_: ColumnType, value: Any, shown: Any) -> None:
    event = event_of(schema_of({"k": Kind.INT64}, v=type_), Op.CREATE, after={"k": 1, "v": value})
    assert record(event)["dynamodb"]["NewImage"]["v"] == shown


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Kind.FLOAT64, float("nan")),
        (Kind.FLOAT64, 1e126),
        (Kind.FLOAT64, 1e-131),
        (Kind.DECIMAL, Decimal("1" * 39)),
    ],
)
def test_a_number_that_dynamodb_does_not_have_is_named_by_its_column(type_: Kind, value: Any) -> None:
    event = event_of(schema_of({"k": Kind.INT64}, v=type_), Op.CREATE, after={"k": 1, "v": value})
    with pytest.raises(ValueError, match="column v of Orders cannot be shown in DynamoDB JSON"):
        record(event)


def test_an_image_that_is_not_the_whole_row_is_refused() -> None:
    with pytest.raises(ValueError, match="column Message of Orders was not sent"):
        record(event_of(MESSAGES, Op.CREATE, after={"Id": 1}))
    assert record(event_of(MESSAGES, Op.CREATE, after={"Id": 1}), stream_view_type="KEYS_ONLY")


def test_a_source_that_sends_no_whole_rows_and_deletions_of_cells_are_refused() -> None:
    partial = event_of(MESSAGES, after=NEW, source=Source("spanner", table="Orders", capture="NEW_VALUES"))
    with pytest.raises(ValueError, match="cannot be made from NEW_VALUES"):
        record(partial)
    row = event_of(
        schema_of({"row_key": Kind.BYTES}),
        after={"row_key": b"r"},
        source=Source("bigtable", table="users"),
        cells=(CellChange("DELETE_FAMILY", "cf"),),
    )
    with pytest.raises(ValueError, match="cannot be made from Bigtable"):
        record(row, stream_view_type="NEW_IMAGE")
    assert record(row, stream_view_type="KEYS_ONLY")["dynamodb"]["Keys"] == {"row_key": {"B": "cg=="}}


def test_a_new_primary_key_is_a_remove_and_an_insert() -> None:
    removal, insertion = DynamoDbFormat()(event_of(MESSAGES, before=OLD, after={**NEW, "Id": 7}))
    first, second = json.loads(removal.value or b""), json.loads(insertion.value or b"")
    assert (first["eventName"], second["eventName"]) == ("REMOVE", "INSERT")
    assert first["eventID"] != second["eventID"]
    assert second["dynamodb"]["Keys"] == {"Id": {"N": "7"}}


def test_truncates_fail_and_unknown_options_are_refused() -> None:
    truncate = ChangeEvent(Source("x", table="t"), Op.TRUNCATE, 0, None, None, None, Version(0), MESSAGES)
    with pytest.raises(ValueError, match="no record for a truncate"):
        DynamoDbFormat()(truncate)
    with pytest.raises(UsageError, match="stream_view_type 'ALL' does not exist"):
        DynamoDbFormat(stream_view_type="ALL")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="dialect 'gcp' does not exist"):
        DynamoDbFormat(dialect="gcp")  # type: ignore[arg-type]


def test_a_format_can_be_sent_to_a_worker() -> None:
    format_, event = DynamoDbFormat(), event_of(MESSAGES, Op.CREATE, after=OLD)
    assert pickle.loads(pickle.dumps(format_))(event) == format_(event)
