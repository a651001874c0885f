"""YDB's guarantees, as the test service keeps them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_emulators.ydb.database import Database, DatabaseError
from penstock_emulators.ydb.topic import Topic

MS = 1_000_000
FULL = {"mode": "NEW_AND_OLD_IMAGES", "virtual_timestamps": True}


class Clock:
    now = 1_000_000 * MS

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(clock: Clock) -> Database:
    made = Database("/local", clock)
    made.create_table("orders", {"id": "Uint64", "note": "Utf8"}, ["id"], shards=2)
    return made


def put(database: Database, key: int, note: str | None = "x", operation: str = "upsert") -> tuple[int, int]:
    values = {} if operation == "erase" else {"note": note}
    return database.commit([(operation, "orders", [key], values)])


def values(topic: Topic) -> list[Any]:
    return [json.loads(m.data) for partition in topic.partitions.values() for m in partition.messages]


MODES = {
    "KEYS_ONLY": [{"update": {}}, {"update": {}}, {"erase": {}}],
    "UPDATES": [{"update": {"note": "a"}}, {"reset": {"note": "b"}}, {"erase": {}}],
    "NEW_IMAGE": [
        {"update": {}, "newImage": {"note": "a"}},
        {"reset": {}, "newImage": {"note": "b"}},
        {"erase": {}},
    ],
    "OLD_IMAGE": [
        {"update": {}},
        {"reset": {}, "oldImage": {"note": "a"}},
        {"erase": {}, "oldImage": {"note": "b"}},
    ],
    "NEW_AND_OLD_IMAGES": [
        {"update": {}, "newImage": {"note": "a"}},
        {"reset": {}, "oldImage": {"note": "a"}, "newImage": {"note": "b"}},
        {"erase": {}, "oldImage": {"note": "b"}},
    ],
}


@pytest.mark.parametrize("mode", MODES)
def test_records_of_each_mode_are_those_of_the_documentation(database: Database, mode: str) -> None:
    database.add_changefeed("orders", "feed", mode=mode)
    put(database, 1, "a")
    put(database, 1, "b", "replace")
    put(database, 1, operation="erase")
    expected = [{"key": [1], **each} for each in MODES[mode]]
    if mode == "KEYS_ONLY":
        expected[1] = {"key": [1], "reset": {}}
    assert values(database.feed("orders", "feed").topic) == expected


def test_all_changes_of_a_transaction_have_one_virtual_timestamp_and_later_ones_a_later_one(
    database: Database,
) -> None:
    database.add_changefeed("orders", "feed", **FULL)
    first = database.commit([("upsert", "orders", [n], {"note": "x"}) for n in range(3)], user="root")
    second = put(database, 9)
    stamps = sorted(tuple(each["ts"]) for each in values(database.feed("orders", "feed").topic))
    assert stamps == [first] * 3 + [second]
    assert first < second


def test_a_shard_that_is_held_delivers_later_and_keeps_its_order(database: Database) -> None:
    database.add_changefeed("orders", "feed", **FULL)
    database.hold("orders", 0)
    database.hold("orders", 1)
    for note in "abc":
        put(database, 1, note)
    topic = database.feed("orders", "feed").topic
    assert values(topic) == []
    database.hold("orders", 0, False)
    database.hold("orders", 1, False)
    assert [each["newImage"]["note"] for each in values(topic)] == ["a", "b", "c"]


def test_no_change_with_an_earlier_timestamp_follows_a_barrier(database: Database, clock: Clock) -> None:
    database.add_changefeed("orders", "feed", partitions=2, barrier_seconds=0.1, **FULL)
    database.hold("orders", 0)
    database.hold("orders", 1)
    at = put(database, 1)
    clock.now += 1000 * MS
    database.emit_barriers()
    topic = database.feed("orders", "feed").topic
    barriers = [each["resolved"] for each in values(topic)]
    assert all(step <= at[0] for step, _ in barriers)
    database.hold("orders", 0, False)
    database.hold("orders", 1, False)
    assert database.emit_barriers() == 1
    for partition in topic.partitions.values():
        assert json.loads(partition.messages[-1].data)["resolved"] == [clock.now // MS, 0]


def test_the_scan_gives_each_row_once_and_before_any_change_of_it(database: Database, clock: Clock) -> None:
    for key in range(4):
        put(database, key, "old")
    database.add_changefeed("orders", "feed", initial_scan=True, barrier_seconds=0.1, **FULL)
    feed = database.feed("orders", "feed")
    put(database, 2, "new")
    put(database, 2, "newer")
    clock.now += 1000 * MS
    assert database.emit_barriers() == 0, "no barrier during the scan"
    database.scan(99)
    notes: dict[int, list[str]] = {}
    for each in values(feed.topic):
        notes.setdefault(each["key"][0], []).append(each["newImage"]["note"])
        assert (tuple(each["ts"]) == feed.snapshot) is (each["newImage"]["note"] == "old")
    assert notes == {0: ["old"], 1: ["old"], 2: ["old", "new", "newer"], 3: ["old"]}
    assert database.emit_barriers() == 1


def test_a_schema_change_goes_to_every_partition_and_only_if_asked_for(database: Database) -> None:
    database.add_changefeed("orders", "with", partitions=2, schema_changes=True, **FULL)
    database.add_changefeed("orders", "without", **FULL)
    database.alter_table("orders", {"amount": "Int64", "note": None})
    found = values(database.feed("orders", "with").topic)
    assert [each["tableChanges"][0]["table"]["columns"].keys() for each in found] == [{"id", "amount"}] * 2
    assert values(database.feed("orders", "without").topic) == []


def test_the_debezium_format_has_keys_and_marks_rows_of_the_scan(database: Database) -> None:
    put(database, 1, "old")
    database.add_changefeed(
        "orders", "feed", format="DEBEZIUM_JSON", initial_scan=True, mode="NEW_AND_OLD_IMAGES"
    )
    put(database, 1, "new")
    put(database, 2, "new")
    topic = database.feed("orders", "feed").topic
    payloads = [each["payload"] for each in values(topic)]
    assert [(each["op"], each["source"]["snapshot"]) for each in payloads] == [
        ("r", True),
        ("u", False),
        ("c", False),
    ]
    assert payloads[1]["before"] == {"id": 1, "note": "old"}
    assert dict(topic.partitions[0].messages[0].metadata) == {"__key": b'{"payload":{"id":1}}'}


def test_the_dynamodb_format_has_typed_attributes_and_leaves_null_out(clock: Clock) -> None:
    database = Database("/local", clock)
    database.create_table("docs", {"id": "DyNumber", "s": "Utf8", "b": "String", "f": "Bool"}, ["id"])
    database.add_changefeed("docs", "feed", format="DYNAMODB_STREAMS_JSON", mode="NEW_IMAGE", aws_region="r")
    database.commit([("upsert", "docs", ["1"], {"s": "x", "b": b"\x00", "f": None})])
    (found,) = values(database.feed("docs", "feed").topic)
    assert found["dynamodb"]["NewImage"] == {"id": {"N": "1"}, "s": {"S": "x"}, "b": {"B": "AA=="}}
    assert (found["eventName"], found["awsRegion"]) == ("MODIFY", "r")


def test_a_feature_that_ydb_does_not_have_is_refused(database: Database) -> None:
    for options in (
        {"mode": "EVERYTHING"},
        {"format": "DEBEZIUM_JSON"},
        {"format": "DEBEZIUM_JSON", "mode": "NEW_IMAGE", "barrier_seconds": 1},
    ):
        with pytest.raises(DatabaseError):
            database.add_changefeed("orders", "feed", **options)
    with pytest.raises(DatabaseError, match="no such columns"):
        database.commit([("upsert", "orders", [1], {"nothing": 1})])
    database.commit([("update", "orders", [1], {"note": "x"}), ("erase", "orders", [1], {})])
    assert database.stored("orders").rows == {}
