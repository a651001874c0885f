"""YDB changefeeds: the documentation's records byte for byte, modes, types, partitions and refusals.

The expected records are those of YDB's documentation, "Change Data Capture" (Record structure), without spaces; the
types are those of `ToJson` in YDB's `change_record_cdc_serializer.cpp`.
"""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from penstock.errors import UsageError
from penstock.event import (
    CellChange,
    ChangeEvent,
    ColumnType,
    Interval,
    Kind,
    Message,
    Op,
    Source,
    TableSchema,
    Version,
)
from penstock.transforms.formats.capture import Mode, check_capture
from penstock.transforms.formats.ydb import YdbFormat
from penstock.transforms.formats.ydb_position import (
    VirtualTimestamp,
    barrier_timestamp,
    partition_of,
    virtual_timestamp,
)
from penstock.transforms.formats.ydb_types import column_type
from tests.unit.formats.events import event_of, schema_of

ITEMS = schema_of({"id": Kind.INT64, "name": Kind.STRING}, payload=Kind.STRING, date=Kind.STRING)
ROWS = schema_of(
    {"a": Kind.INT64, "b": Kind.INT64, "c": Kind.INT64},
    textColumn=Kind.STRING,
    intColumn=Kind.INT64,
    boolColumn=Kind.BOOL,
)
KEY = {"a": 1, "b": 2, "c": 3}
NEW = {**KEY, "textColumn": "value1", "intColumn": 101, "boolColumn": True}
OLD = {**KEY, "textColumn": None, "intColumn": 100, "boolColumn": False}
YDB = Source("ydb", database="/local", table="Orders")


def value(event: ChangeEvent, **options: Any) -> bytes | None:
    (record,) = YdbFormat("feed", **options)(event)
    return record.value


def test_the_documented_update_comes_out_byte_for_byte() -> None:
    after = {"id": 1, "name": "one", "payload": "lorem ipsum", "date": "2022-02-22"}
    (record,) = YdbFormat("feed", mode="UPDATES")(event_of(ITEMS, after=after))
    assert record.value == b'{"key":[1,"one"],"update":{"payload":"lorem ipsum","date":"2022-02-22"}}'
    assert (record.key, record.topic) == (b'[1,"one"]', "Orders/feed")


def test_the_documented_erase_comes_out_byte_for_byte() -> None:
    gone = event_of(ITEMS, Op.DELETE, before={"id": 2, "name": "two"})
    assert value(gone) == b'{"key":[2,"two"],"erase":{}}'


def test_the_documented_record_with_images_comes_out_byte_for_byte() -> None:
    changed = event_of(ROWS, before=OLD, after=NEW)
    assert value(changed, mode="NEW_AND_OLD_IMAGES") == (
        b'{"key":[1,2,3],"update":{},'
        b'"newImage":{"textColumn":"value1","intColumn":101,"boolColumn":true},'
        b'"oldImage":{"textColumn":null,"intColumn":100,"boolColumn":false}}'
    )


def test_the_documented_virtual_timestamp_comes_out_byte_for_byte() -> None:
    schema = schema_of(
        {"id": Kind.INT64}, created=ColumnType(Kind.TIMESTAMP, "Timestamp"), customer=Kind.STRING
    )
    after = {"id": 1, "created": 1_670_803_200 * 10**9, "customer": "Name123"}
    event = event_of(schema, after=after, source=YDB)
    event = ChangeEvent(
        event.source,
        event.op,
        0,
        event.key,
        None,
        after,
        Version(1670792400890, "00000562949953607163"),
        schema,
        user="root@builtin",
    )
    assert value(event, virtual_timestamps=True) == (
        b'{"key":[1],"update":{"created":"2022-12-12T00:00:00.000000Z","customer":"Name123"},'
        b'"ts":[1670792400890,562949953607163]}'
    )
    assert json.loads(value(event, user_sids=True) or b"")["user"] == "root@builtin"


def test_the_documented_barrier_comes_out_byte_for_byte() -> None:
    barrier = YdbFormat("feed").barrier("Orders", 1670792500000 * 10**6)
    assert (barrier.key, barrier.value) == (None, b'{"resolved":[1670792500000,0]}')


@pytest.mark.parametrize(
    ("mode", "update", "insert", "delete"),
    [
        ("KEYS_ONLY", {"update": {}}, {"update": {}}, {"erase": {}}),
        ("UPDATES", {"update": {"v": "n"}}, {"update": {"v": "n"}}, {"erase": {}}),
        (
            "NEW_IMAGE",
            {"update": {}, "newImage": {"v": "n"}},
            {"update": {}, "newImage": {"v": "n"}},
            {"erase": {}},
        ),
        (
            "OLD_IMAGE",
            {"update": {}, "oldImage": {"v": "o"}},
            {"update": {}},
            {"erase": {}, "oldImage": {"v": "o"}},
        ),
        (
            "NEW_AND_OLD_IMAGES",
            {"update": {}, "newImage": {"v": "n"}, "oldImage": {"v": "o"}},
            {"update": {}, "newImage": {"v": "n"}},
            {"erase": {}, "oldImage": {"v": "o"}},
        ),
    ],
)
def test_each_mode_has_its_images(mode: Mode, update: Any, insert: Any, delete: Any) -> None:
    schema = schema_of({"k": Kind.INT64}, v=Kind.STRING)
    old, new = {"k": 1, "v": "o"}, {"k": 1, "v": "n"}
    events = [
        event_of(schema, before=old, after=new),
        event_of(schema, Op.CREATE, after=new),
        event_of(schema, Op.DELETE, before=old),
    ]
    assert [json.loads(value(event, mode=mode) or b"") for event in events] == [
        {"key": [1], **expected} for expected in (update, insert, delete)
    ]


def test_not_sent_null_and_empty_stay_different_in_updates() -> None:
    after = {"id": 1, "name": "one", "payload": None}
    assert value(event_of(ITEMS, after=after)) == b'{"key":[1,"one"],"update":{"payload":null}}'
    assert b'"payload":""' in (value(event_of(ITEMS, after={**after, "payload": ""})) or b"")


def test_an_image_that_is_not_the_whole_row_is_refused() -> None:
    part = event_of(ROWS, after={**KEY, "intColumn": 5})
    with pytest.raises(ValueError, match="column textColumn of Orders was not sent.*NEW_IMAGE"):
        value(part, mode="NEW_IMAGE")


def test_old_values_are_laid_over_the_new_row() -> None:
    source = Source("spanner", table="Orders", capture="NEW_ROW_AND_OLD_VALUES")
    changed = event_of(ROWS, before={**KEY, "intColumn": 100}, after=NEW, source=source)
    shown = json.loads(value(changed, mode="OLD_IMAGE") or b"")
    assert shown["oldImage"] == {"textColumn": "value1", "intColumn": 100, "boolColumn": True}
    assert json.loads(value(changed) or b"")["update"] == {"intColumn": 101}


def test_reset_replaces_a_row_of_which_every_column_was_sent() -> None:
    assert (
        value(event_of(ROWS, after=NEW), reset=True)
        == b'{"key":[1,2,3],"reset":{"textColumn":"value1","intColumn":101,"boolColumn":true}}'
    )
    assert b'"update"' in (value(event_of(ROWS, after={**KEY, "intColumn": 5}), reset=True) or b"")


def test_a_row_of_the_initial_scan_is_an_update() -> None:
    row = event_of(ROWS, Op.READ, after=NEW)
    assert json.loads(value(row, mode="OLD_IMAGE") or b"") == {
        "key": [1, 2, 3],
        "update": {},
        "oldImage": {"textColumn": "value1", "intColumn": 101, "boolColumn": True},
    }
    assert set(json.loads(value(row, mode="NEW_AND_OLD_IMAGES") or b"")) == {"key", "update", "newImage"}


def test_a_new_primary_key_is_an_erase_and_an_update() -> None:
    schema = schema_of({"k": Kind.INT64}, v=Kind.STRING)
    moved = event_of(schema, before={"k": 1, "v": "o"}, after={"k": 2, "v": "n"})
    erase, update = YdbFormat("feed", mode="NEW_AND_OLD_IMAGES")(moved)
    assert erase.value == b'{"key":[1],"erase":{},"oldImage":{"v":"o"}}'
    assert update.value == b'{"key":[2],"update":{},"newImage":{"v":"n"}}'


def test_messages_make_no_record_and_truncates_and_tables_without_key_fail() -> None:
    empty = TableSchema(())
    about: dict[str, Any] = {
        "source": YDB,
        "timestamp": 0,
        "key": None,
        "before": None,
        "after": None,
        "version": Version(0),
    }
    assert YdbFormat("f")(ChangeEvent(op=Op.MESSAGE, schema=empty, message=Message("p", b""), **about)) == []
    with pytest.raises(ValueError, match="no record for the truncate"):
        YdbFormat("f")(ChangeEvent(op=Op.TRUNCATE, schema=empty, **about))
    with pytest.raises(ValueError, match="no primary key"):
        YdbFormat("f")(ChangeEvent(op=Op.CREATE, schema=empty, **about))


def test_a_deletion_of_cells_is_refused_because_no_record_can_express_it() -> None:
    event = event_of(
        schema_of({"row_key": Kind.BYTES}),
        after={"row_key": b"r"},
        source=Source("bigtable", table="users"),
        cells=(CellChange("DELETE_FAMILY", "cf"),),
    )
    with pytest.raises(ValueError, match="users has a DELETE_FAMILY.*KEYS_ONLY"):
        value(event)
    assert value(event, mode="KEYS_ONLY") == b'{"key":["cg=="],"update":{}}'


@pytest.mark.parametrize("options", [{"mode": "NEW_IMAGE"}, {"reset": True}])
def test_events_of_a_capture_type_with_partial_rows_make_no_images(options: dict[str, Any]) -> None:
    # A record of NEW_VALUES describes the changed columns only, so its image looks like a whole row.
    source = Source("spanner", table="Orders", capture="NEW_VALUES")
    with pytest.raises(ValueError, match="NEW_IMAGE cannot be made from NEW_VALUES"):
        value(event_of(ROWS, after=NEW, source=source), **options)
    assert value(event_of(ROWS, after=NEW, source=source))
    whole = msgspec.structs.replace(source, materialized=True)
    assert value(event_of(ROWS, after=NEW, source=whole), **options)


def test_a_schema_change_names_the_columns_and_the_key() -> None:
    schema = schema_of({"key": column_type("Uint64")}, price=column_type("Decimal(22,9)"))
    change = ChangeEvent(YDB, Op.SCHEMA, 0, None, None, None, Version(10, f"{20:020d}", f"{2:020d}"), schema)
    assert YdbFormat("feed")(change) == []
    (record,) = YdbFormat("feed", schema_changes=True)(change)
    assert record.value == (
        b'{"tableChanges":[{"table":{"schemaVersion":2,"columns":{"key":{"type":"Uint64"},"price":{"type":"Decimal(22,9)"}},'
        b'"primaryKeyColumnNames":["key"]}}],"ts":[10,20]}'
    )


def test_the_debezium_flavour_has_the_key_in_its_images() -> None:
    schema = schema_of({"k": Kind.INT64}, v=Kind.STRING)
    changed = event_of(schema, before={"k": 1, "v": "o"}, after={"k": 1, "v": "n"}, timestamp=5_000_000)
    (record,) = YdbFormat("feed", mode="NEW_AND_OLD_IMAGES", format="DEBEZIUM_JSON")(changed)
    assert record.key == b'{"payload":{"k":1}}'
    tx_id = virtual_timestamp(changed).tx_id
    assert record.value == (
        b'{"payload":{"op":"u","before":{"k":1,"v":"o"},"after":{"k":1,"v":"n"},"source":{"version":"1.0.0",'
        b'"connector":"ydb","ts_ms":5,"snapshot":false,"step":5,"txId":%d}}}' % tx_id
    )


@pytest.mark.parametrize(
    ("op", "mode", "letter"),
    [
        (Op.CREATE, "NEW_AND_OLD_IMAGES", "c"),
        (Op.CREATE, "NEW_IMAGE", "u"),
        (Op.READ, "NEW_IMAGE", "r"),
        (Op.DELETE, "NEW_IMAGE", "d"),
    ],
)
def test_the_debezium_flavour_knows_a_create_only_with_both_images(op: Op, mode: Mode, letter: str) -> None:
    schema = schema_of({"k": Kind.INT64}, v=Kind.STRING)
    row = {"k": 1, "v": "x"}
    event = event_of(
        schema, op, before=row if op is Op.DELETE else None, after=None if op is Op.DELETE else row
    )
    payload = json.loads(value(event, mode=mode, format="DEBEZIUM_JSON") or b"")["payload"]
    assert (payload["op"], payload["source"]["snapshot"]) == (letter, op is Op.READ)


@pytest.mark.parametrize(
    ("type_", "given", "shown"),
    [
        (ColumnType(Kind.BOOL), True, "true"),
        (ColumnType(Kind.INT64), 2**63 - 1, "9223372036854775807"),
        (ColumnType(Kind.UINT64), 2**64 - 1, "18446744073709551615"),
        (ColumnType(Kind.FLOAT64), 0.1, "0.10000000000000001"),
        (ColumnType(Kind.FLOAT32), 0.10000000149011612, "0.100000001"),
        (ColumnType(Kind.FLOAT64), float("nan"), '"nan"'),
        (ColumnType(Kind.FLOAT64), float("inf"), '"inf"'),
        (ColumnType(Kind.FLOAT32), float("-inf"), '"-inf"'),
        (ColumnType(Kind.DATE), 18486, '"2020-08-12T00:00:00.000000Z"'),
        (column_type("Datetime"), 1_597_190_400 * 10**9, '"2020-08-12T00:00:00.000000Z"'),
        (ColumnType(Kind.TIMESTAMP), 1_597_190_400_000_001_000, '"2020-08-12T00:00:00.000001Z"'),
        (column_type("Interval"), Interval(nanoseconds=-3_000), "-3"),
        (column_type("Date32"), -719162, "-719162"),
        (column_type("Datetime64"), -62135596800 * 10**9, "-62135596800"),
        (column_type("Timestamp64"), -1000, "-1"),
        (column_type("Interval64"), Interval(nanoseconds=1000), "1"),
        (column_type("Decimal(22,9)"), Decimal("3.321"), '"3.321"'),
        (column_type("DyNumber"), Decimal("3.321"), '".3321e1"'),
        (column_type("DyNumber"), Decimal("-0.0050"), '"-.5e-2"'),
        (column_type("DyNumber"), Decimal("0"), '"0"'),
        (column_type("String"), b"\xff\x00", '"/wA="'),
        (column_type("Utf8"), 'a"b', '"a\\"b"'),
        (
            ColumnType(Kind.UUID),
            "0ef7b1c2-0000-4000-8000-000000000000",
            '"0ef7b1c2-0000-4000-8000-000000000000"',
        ),
        (column_type("JsonDocument"), '{"a": [1.00, null]}', '{"a":[1.00,null]}'),
        (ColumnType(Kind.INTERVAL, "INTERVAL"), Interval(14, 3, 3_723_500_000_000), '"P1Y2M3DT1H2M3.5S"'),
        (ColumnType(Kind.TIME, "time"), 3_723_000_004_000, '"01:02:03.000004"'),
        (ColumnType(Kind.ARRAY, element=ColumnType(Kind.BYTES)), [b"a", None], '["YQ==",null]'),
        (
            ColumnType(Kind.ARRAY, element=ColumnType(Kind.DECIMAL)),
            [[Decimal("1.5")], [None]],
            '[["1.5"],[null]]',
        ),
        (ColumnType(Kind.STRING), None, "null"),
    ],
)
def test_each_type_is_shown_by_the_table(type_: ColumnType, given: Any, shown: str) -> None:
    event = event_of(schema_of({"k": Kind.INT64}, v=type_), after={"k": 1, "v": given})
    assert value(event) == b'{"key":[1],"update":{"v":%s}}' % shown.encode()


@pytest.mark.parametrize(
    ("type_", "given", "reason"),
    [
        (ColumnType(Kind.DATE), -1, "extended_dates=True"),
        (ColumnType(Kind.TIMESTAMP), 1, "nanoseconds"),
        (ColumnType(Kind.TIMESTAMP), float("inf"), "infinite"),
        (column_type("Interval"), Interval(1), "neither months nor days"),
        (ColumnType(Kind.JSON), "{secret", "malformed"),
        (column_type("Timestamp64"), 9_224_318_015_999_999_999_000, "148106"),
        (column_type("Date32"), 2_145_031_948, "148106"),
    ],
)
def test_a_value_that_ydb_does_not_have_is_named_by_its_column(
    type_: ColumnType, given: Any, reason: str
) -> None:
    event = event_of(schema_of({"k": Kind.INT64}, v=type_), after={"k": 1, "v": given})
    with pytest.raises(ValueError, match=f"column v of Orders cannot be shown.*{reason}") as raised:
        value(event)
    assert "secret" not in str(raised.value)


def test_extended_dates_reach_the_year_one() -> None:
    schema = schema_of({"k": Kind.INT64}, d=Kind.DATE, t=Kind.TIMESTAMP)
    event = event_of(schema, after={"k": 1, "d": -719162, "t": -62135596800 * 10**9})
    assert value(event, extended_dates=True) == (b'{"key":[1],"update":{"d":-719162,"t":-62135596800000000}}')


def test_virtual_timestamps_grow_with_the_commit_time_and_are_one_for_a_transaction() -> None:
    schema = schema_of({"k": Kind.INT64})
    times = [5_000_000, 5_000_001, 5_000_999, 5_001_000, 6_000_000]
    stamps = [virtual_timestamp(event_of(schema, after={"k": 1}, timestamp=time)) for time in times]
    assert stamps == sorted(set(stamps))
    assert virtual_timestamp(event_of(schema, after={"k": 9}, timestamp=times[0])) == stamps[0]
    assert stamps[3].tx_id >> 40 == 1


def test_a_barrier_is_above_all_earlier_events_and_not_above_those_of_its_time() -> None:
    schema = schema_of({"k": Kind.INT64})
    before, at = (
        virtual_timestamp(event_of(schema, after={"k": 1}, timestamp=time)) for time in (6_999, 7_000)
    )
    assert before < barrier_timestamp(7_000) <= at
    assert isinstance(at, VirtualTimestamp)


@pytest.mark.parametrize(
    ("key", "partitions", "partition"),
    # md5("[1]") is 35dba5d75538a9bbe0b4da4422759a0e: the slices are equal parts of 128 bits, not a modulo
    [(b"[1]", 1, 0), (b"[1]", 2, 0), (b"[1]", 4, 0), (b"[1]", 10, 2), (b"[1]", 256, 0x35)],
)
def test_a_key_falls_into_a_slice_of_its_md5(key: bytes, partitions: int, partition: int) -> None:
    assert partition_of(key, partitions) == partition


def test_control_characters_of_a_key_are_hashed_as_ydb_writes_them() -> None:
    assert partition_of(b'["\\u001f"]', 10**6) == partition_of(b'["\\u001F"]', 10**6)
    assert partition_of(b'["\\\\u001f"]', 10**6) != partition_of(b'["\\\\u001F"]', 10**6)
    with pytest.raises(UsageError, match="at least 1 partition"):
        partition_of(b"[1]", 0)


@pytest.mark.parametrize(
    ("mode", "capture", "remedy"),
    [
        ("NEW_IMAGE", "NEW_VALUES", "NEW_ROW or NEW_ROW_AND_OLD_VALUES, or mode KEYS_ONLY or UPDATES"),
        ("NEW_IMAGE", "OLD_AND_NEW_VALUES", "NEW_ROW or NEW_ROW_AND_OLD_VALUES"),
        ("OLD_IMAGE", "NEW_ROW", "use capture type NEW_ROW_AND_OLD_VALUES"),
        ("NEW_AND_OLD_IMAGES", "DEFAULT", "use capture type FULL"),
        ("UPDATES", "KEYS_ONLY", "use capture type UPDATES or NEW_IMAGE or NEW_AND_OLD_IMAGES"),
        ("NEW_IMAGE", "", "Bigtable.*a source that sends whole rows"),
    ],
)
def test_a_capture_type_that_cannot_satisfy_a_mode_is_refused_with_those_that_can(
    mode: Mode, capture: str, remedy: str
) -> None:
    with pytest.raises(UsageError, match=remedy):
        check_capture(mode, capture)


def test_a_capture_type_that_satisfies_the_mode_passes() -> None:
    check_capture("NEW_IMAGE", "NEW_ROW")
    check_capture("NEW_AND_OLD_IMAGES", "NEW_ROW_AND_OLD_VALUES")
    check_capture("UPDATES", "NEW_VALUES")
    with pytest.raises(UsageError, match="capture type 'SOME' is unknown"):
        check_capture("UPDATES", "SOME")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "ALL"}, "mode 'ALL' does not exist"),
        ({"format": "XML"}, "format 'XML' does not exist"),
        ({"format": "DEBEZIUM_JSON"}, "has no mode UPDATES"),
        (
            {"format": "DEBEZIUM_JSON", "mode": "NEW_IMAGE", "virtual_timestamps": True},
            "belong to format JSON",
        ),
        ({"mode": "NEW_IMAGE", "reset": True}, "reset belongs to mode UPDATES"),
    ],
)
def test_options_that_ydb_does_not_have_are_refused(options: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        YdbFormat("feed", **options)


def test_a_format_can_be_sent_to_a_worker() -> None:
    format_ = YdbFormat("feed", mode="NEW_IMAGE")
    event = event_of(ROWS, after=NEW)
    assert pickle.loads(pickle.dumps(format_))(event) == format_(event)
