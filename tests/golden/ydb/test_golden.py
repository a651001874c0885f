"""Records of YDB's documentation and of its own tests, through the reader's rules: the events that they describe.

The records of the documentation are in `tests/golden/formats/documented`, with their origin. Its page describes the
Debezium flavour by a structure with places for values; `DEBEZIUM` fills them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.event import ChangeEvent, Op
from penstock.io.ydb.frontier import Position
from penstock.io.ydb.record import ChangefeedRecord, Table, TableColumn
from penstock.io.ydb.source import ChangeStream
from penstock.io.ydb.steps import Message, PartitionSteps, PendingStep, Rules
from penstock.timestamps import parse_timestamp
from penstock.transforms.formats.ydb_events import EventConverter
from penstock_emulators.ydb.topic import Topic
from tests.unit.ydb.memory import described

GOLDEN = Path(__file__).parents[1]
MILLISECOND = 1_000_000


def records(path: str) -> dict[str, bytes]:
    content = json.loads((GOLDEN / path).read_text("utf-8"))
    assert content["origin"]["url"].startswith("https://")
    return {name: text.encode() for name, text in content["records"].items()}


DOCUMENTED = records("formats/documented/ydb-changefeed.json")
TESTED = records("ydb/from-ydb-tests.json")


def table(mode: str, key: str, format: str = "JSON", /, **columns: str) -> Table:
    described_columns = tuple(TableColumn(name, type_) for name, type_ in columns.items())
    return Table("items", "feed", mode, format, described_columns, tuple(key.split()))


def step(of: Table, data: bytes, key: bytes = b"", **options: Any) -> PendingStep:
    stream = ChangeStream("/local", "items", "feed", 0, None)
    found = described(Topic("/local/items/feed", created_at=(1, 7)), table=of, **options)
    rules = Rules.of(stream, found, 10.0, lambda schema: of)
    return PartitionSteps(rules, 0, Position(0, 0)).message(
        Message(0, data, key, 5 * MILLISECOND, 6 * MILLISECOND), 1
    )


def event(of: Table, data: bytes, key: bytes = b"", **options: Any) -> ChangeEvent:
    record = step(of, data, key, **options).record
    assert isinstance(record, ChangefeedRecord)
    (found,) = EventConverter(database="/local")(record)
    return found


ITEMS = table("UPDATES", "id name", id="Uint64", name="Utf8", payload="Utf8", date="Utf8")


def test_an_update_of_mode_updates() -> None:
    found = event(ITEMS, DOCUMENTED["update"], virtual_timestamps=False)
    assert (found.op, found.key, found.before) == (Op.UPDATE, {"id": 1, "name": "one"}, None)
    assert found.after == {"id": 1, "name": "one", "payload": "lorem ipsum", "date": "2022-02-22"}
    assert (found.timestamp, found.version.order) == (5 * MILLISECOND, 6 * MILLISECOND)


def test_an_erased_row_is_a_delete() -> None:
    found = event(ITEMS, DOCUMENTED["erase"])
    assert (found.op, found.key, found.before, found.after) == (
        Op.DELETE,
        {"id": 2, "name": "two"},
        None,
        None,
    )


def test_a_record_with_both_images_is_an_update() -> None:
    rows = table(
        "NEW_AND_OLD_IMAGES", "a b c", a="Int64", b="Int64", c="Int64", textColumn="Utf8", intColumn="Int64",
        boolColumn="Bool",
    )  # fmt: skip
    found = event(rows, DOCUMENTED["images"])
    key = {"a": 1, "b": 2, "c": 3}
    assert found.op is Op.UPDATE
    assert found.before == {**key, "textColumn": None, "intColumn": 100, "boolColumn": False}
    assert found.after == {**key, "textColumn": "value1", "intColumn": 101, "boolColumn": True}


def test_a_record_with_a_virtual_timestamp() -> None:
    visits = table("UPDATES", "id", id="Uint64", created="Timestamp", customer="Utf8")
    found = event(visits, DOCUMENTED["timestamp"])
    assert found.after == {"id": 1, "created": parse_timestamp("2022-12-12T00:00:00Z"), "customer": "Name123"}
    assert (found.timestamp, found.version.order) == (1670792400890 * MILLISECOND, 1670792400890)
    assert found.transaction is not None
    assert found.transaction.id == "562949953607163"


def test_a_barrier_is_no_event_and_moves_the_watermark() -> None:
    found = step(ITEMS, DOCUMENTED["barrier"])
    assert (found.record, found.position.watermark) == (None, 1670792500000 * MILLISECOND)


@pytest.mark.parametrize(("name", "value"), [("scanned", 10), ("changed", 100)])
def test_records_that_ydbs_tests_expect(name: str, value: int) -> None:
    simple = table("UPDATES", "key", key="Uint32", value="Uint32")
    found = event(simple, TESTED[name], virtual_timestamps=False)
    assert (found.op, found.after) == (Op.UPDATE, {"key": 1, "value": value})


DEBEZIUM = (
    '{"payload":{"op":"%s","before":%s,"after":%s,"source":{"connector":"ydb","version":"1.0.0",'
    '"ts_ms":1670792400900,"step":1670792400890,"txId":562949953607163,"snapshot":%s}}}'
)
ROW = '{"id":1,"v":"x"}'


@pytest.mark.parametrize(
    ("letter", "before", "after", "op"),
    [
        ("c", "null", ROW, Op.CREATE),
        ("u", ROW, ROW, Op.UPDATE),
        ("d", ROW, "null", Op.DELETE),
        ("r", "null", ROW, Op.READ),
    ],
)
def test_a_record_in_the_debezium_format_is_read(letter: str, before: str, after: str, op: Op) -> None:
    of = table("NEW_AND_OLD_IMAGES", "id", "DEBEZIUM_JSON", id="Uint64", v="Utf8")
    data = DEBEZIUM % (letter, before, after, "true" if letter == "r" else "false")
    found = event(of, data.encode(), b'{"payload":{"id":1}}')
    assert (found.op, found.key) == (op, {"id": 1})
    assert (found.before is None, found.after is None) == (before == "null", after == "null")
    assert found.timestamp == 1670792400890 * MILLISECOND


def test_the_dynamodb_format() -> None:
    of = table("NEW_IMAGE", "id", "DYNAMODB_STREAMS_JSON", id="DyNumber", s="Utf8", __Hash="Uint64")
    data = {
        "awsRegion": "r",
        "dynamodb": {
            "ApproximateCreationDateTime": 5,
            "SequenceNumber": f"{9:021d}",
            "StreamViewType": "NEW_IMAGE",
            "Keys": {"id": {"N": "1"}},
            "NewImage": {"id": {"N": "1"}},
        },
        "eventID": "72075186224037888-9",
        "eventName": "MODIFY",
        "eventSource": "ydb:document-table",
        "eventVersion": "1.0",
    }
    found = event(of, json.dumps(data).encode(), virtual_timestamps=False)
    assert (found.op, found.after) == (Op.UPDATE, {"id": 1, "s": None})
