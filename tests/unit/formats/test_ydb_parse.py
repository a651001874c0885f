"""Records of YDB changefeeds as events: the documentation's examples and each known spelling."""

from __future__ import annotations

import pickle

import pytest

from penstock.event import ChangeEvent, Column, Kind, Op, Source, TableSchema, Version
from penstock.transforms.formats.ydb_parse import Barrier, YdbParser
from penstock.transforms.formats.ydb_types import column_type
from tests.unit.formats.events import schema_of

SCHEMA = schema_of({"k": Kind.INT64}, v=Kind.STRING, n=Kind.FLOAT64)
SOURCE = Source("ydb", database="/local", table="Orders")


def event(value: bytes, key: bytes | None = None, parser: YdbParser | None = None) -> ChangeEvent:
    result = (parser or YdbParser(SCHEMA, SOURCE))(key, value)
    assert isinstance(result, ChangeEvent)
    return result


def test_not_sent_null_and_empty_stay_different() -> None:
    assert event(b'{"key":[1],"update":{"v":null}}').after == {"k": 1, "v": None}
    assert event(b'{"key":[1],"update":{"v":""}}').unavailable == ("n",)


def test_a_reset_sets_the_columns_that_it_lacks_to_null() -> None:
    replaced = event(b'{"key":[1],"reset":{"v":"x"}}')
    assert (replaced.op, replaced.after) == (Op.UPDATE, {"k": 1, "v": "x", "n": None})
    assert replaced.unavailable == ()


def test_a_barrier_is_no_event() -> None:
    barrier = YdbParser(SCHEMA, SOURCE)(None, b'{"resolved":[1670792500000,7]}')
    assert barrier == Barrier(1670792500000, 7)
    assert isinstance(barrier, Barrier)
    assert barrier.timestamp == 1670792500000 * 10**6


def test_the_virtual_timestamp_and_the_user_are_kept() -> None:
    changed = event(b'{"key":[1],"erase":{},"ts":[1670792400890,562949953607163],"user":"root@builtin"}')
    assert changed.timestamp == 1670792400890 * 10**6
    assert changed.version == Version(1670792400890, "00000562949953607163")
    assert (changed.op, changed.user) == (Op.DELETE, "root@builtin")
    assert changed.transaction is not None
    assert changed.transaction.id == "562949953607163"


def test_without_a_virtual_timestamp_the_position_in_the_topic_is_the_version() -> None:
    changed = YdbParser(SCHEMA, SOURCE)(None, b'{"key":[1],"update":{}}', timestamp=5, version=Version(9))
    assert isinstance(changed, ChangeEvent)
    assert (changed.timestamp, changed.version) == (5, Version(9))


def test_rows_of_the_initial_scan_have_the_timestamp_of_the_snapshot() -> None:
    parser = YdbParser(SCHEMA, SOURCE, snapshot=(5, 6))
    assert event(b'{"key":[1],"update":{"v":"x"},"ts":[5,6]}', parser=parser).op is Op.READ
    assert event(b'{"key":[1],"update":{"v":"x"},"ts":[5,7]}', parser=parser).op is Op.UPDATE


@pytest.mark.parametrize(
    "columns", [b'{"key":"Uint64","v":"Utf8"}', b'{"key":{"type":"Uint64"},"v":{"type":"Utf8"}}']
)
@pytest.mark.parametrize("keys", [b'"key"', b'["key"]'])
def test_each_spelling_of_a_schema_change_is_read(columns: bytes, keys: bytes) -> None:
    # Origin: YDB's replication unit tests (both spellings of columns) and the serializer of an earlier release.
    change = event(
        b'{"tableChanges":[{"table":{"schemaVersion":2,"columns":%s,"primaryKeyColumnNames":%s}}],"ts":[10,20]}'
        % (columns, keys)
    )
    assert change.op is Op.SCHEMA
    assert change.schema == TableSchema(
        (Column("key", column_type("Uint64"), None, 1), Column("v", column_type("Utf8"), None, None))
    )
    assert change.version == Version(10, f"{20:020d}", f"{2:020d}")


def test_the_debezium_flavour_without_images_takes_the_message_key() -> None:
    value = (
        b'{"payload":{"op":"u","source":{"connector":"ydb","ts_ms":5,"snapshot":false,"step":5,"txId":6}}}'
    )
    changed = event(value, b'{"payload":{"k":1}}')
    assert (changed.key, changed.after, changed.version.order) == ({"k": 1}, {"k": 1}, 5)
    with pytest.raises(ValueError, match="needs its message key"):
        event(value)


def test_a_column_that_the_schema_lacks_is_kept() -> None:
    assert (event(b'{"key":[1],"update":{"later":[1]}}').after or {})["later"] == [1]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"secret", "not a record of a YDB changefeed"),
        (b'{"key":[1]}', "one of update, reset and erase"),
        (b'{"key":[1],"update":{"v":"x"},"erase":{}}', "one of update, reset and erase"),
        (b'{"key":[1],"update":{},"reset":{"v":"x"}}', "one of update, reset and erase"),
        (b'{"key":[1],"erase":{"v":"x"}}', "an erase has no columns"),
        (b'{"key":[1,2],"erase":{}}', "2 values, and the schema 1 key columns"),
        (b'{"key":[1],"update":{"n":"secret"}}', "column n of Orders.*Double"),
        (b'{"payload":{"op":"x","after":{"k":1}}}', "op 'x' does not exist"),
    ],
)
def test_a_malformed_record_is_named_without_its_values(value: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        event(value)
    assert "secret" not in str(raised.value)


def test_a_parser_can_be_sent_to_a_worker() -> None:
    parser = pickle.loads(pickle.dumps(YdbParser(SCHEMA, SOURCE)))
    assert event(b'{"key":[1],"update":{"n":1.5}}', parser=parser).after == {"k": 1, "n": 1.5}
