"""Debezium records as events: real and documented records, tombstones, key changes, transaction metadata."""

from __future__ import annotations

import json
import pickle
import re
from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.event import (
    NO_COLUMNS,
    CellChange,
    ChangeEvent,
    Column,
    ColumnType,
    Interval,
    Kind,
    Message,
    Op,
    Source,
    TableSchema,
    Transaction,
    Version,
)
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_place import DataCollection
from penstock.transforms.formats.debezium_transaction import (
    format_transaction,
    transaction_records,
)
from penstock.transforms.parsers import DebeziumParser, parse_transaction_record
from tests.unit.formats.events import event_of, schema_of

# Debezium documentation, "Debezium connector for PostgreSQL", create events: the payload of the value.
CREATE = (
    b'{"before":null,"after":{"id":1,"first_name":"Anne","last_name":"Kretchmar","email":"annek@noanswer.org"},'
    b'"source":{"version":"3.2.0.Final","connector":"postgresql","name":"PostgreSQL_server","ts_ms":1559033904863,'
    b'"ts_us":1559033904863000,"ts_ns":1559033904863000000,"snapshot":true,"db":"postgres",'
    b'"sequence":"[\\"24023119\\",\\"24023128\\"]","schema":"public","table":"customers","txId":555,"lsn":24023128,'
    b'"xmin":null},"op":"c","ts_ms":1559033904863,"ts_us":1559033904863841,"ts_ns":1559033904863841257}'
)
SCHEMA = schema_of({"k": Kind.INT64}, v=Kind.STRING, raw=Kind.BYTES, n=Kind.INT32)


def parsed(event: ChangeEvent, parser: DebeziumParser | None = None, **options: Any) -> list[ChangeEvent]:
    parse = parser or DebeziumParser(event.schema)
    records = DebeziumFormat("srv", **options)(event)
    return [each for record in records for each in parse(record.key, record.value, record.headers)]


def test_the_documented_create_is_read() -> None:
    (event,) = DebeziumParser()(b'{"id":1}', CREATE)
    assert event.op is Op.CREATE
    assert event.source == Source("postgresql", "", "postgres", "public", "customers")
    assert event.version == Version(24023119, "555", f"{24023128:020d}")
    assert event.timestamp == 1559033904863000000
    assert event.key == {"id": 1}
    assert (event.after or {})["email"] == "annek@noanswer.org"


def test_a_tombstone_is_no_event_and_a_delete_is_one() -> None:
    gone = event_of(SCHEMA, Op.DELETE, before={"k": 1, "v": "x", "raw": b"", "n": None})
    assert parsed(gone) == [gone]
    assert DebeziumParser()(b'{"k":1}', None) == []


def test_not_sent_null_and_empty_stay_different() -> None:
    event = event_of(SCHEMA, after={"k": 1, "v": "", "n": None})
    (result,) = parsed(event)
    assert result.after == {"k": 1, "v": "", "n": None}
    assert result.unavailable == ("raw",)
    (result,) = parsed(event_of(SCHEMA, after={"k": 1}), schemas_enable=True, parser=DebeziumParser())
    assert result.unavailable == ("v", "raw", "n")


def test_a_key_change_is_a_delete_and_a_create_or_one_update() -> None:
    old, new = {"k": 1, "v": "a", "raw": b"", "n": 1}, {"k": 2, "v": "b", "raw": b"", "n": 1}
    moved = event_of(SCHEMA, before=old, after=new)
    assert [(event.op, event.key) for event in parsed(moved)] == [
        (Op.DELETE, {"k": 1}),
        (Op.CREATE, {"k": 2}),
    ]
    (joined,) = parsed(moved, DebeziumParser(SCHEMA, join_key_changes=True))
    assert (joined.op, joined.before, joined.after) == (Op.UPDATE, {"k": 1}, new)


def test_messages_and_truncates_are_read() -> None:
    source = Source("postgresql", "", "db", "s", "t")
    message = ChangeEvent(
        Source("postgresql", "", "db"),
        Op.MESSAGE,
        0,
        None,
        None,
        None,
        Version(5, "7", f"{6:020d}"),
        NO_COLUMNS,
        Transaction("7", previous_end=5),
        Message("audit", b"\x00hi"),
    )
    assert parsed(message) == [message]
    truncate = ChangeEvent(
        source,
        Op.TRUNCATE,
        0,
        None,
        None,
        None,
        Version(5, "7", f"{6:020d}"),
        SCHEMA,
        Transaction("7", previous_end=5),
    )
    assert parsed(truncate, skipped_operations="none") == [truncate]


def test_the_cells_of_bigtable_come_back() -> None:
    cells = (
        CellChange("DELETE_CELLS", "cf", b"q", 5, 9),
        CellChange("SET_CELL", "cf", b"\xff", 5, None, b"v"),
    )
    event = ChangeEvent(
        Source("bigtable", "p/i", table="users"),
        Op.UPDATE,
        5,
        {"row_key": b"r"},
        None,
        {"row_key": b"r"},
        Version(5, "", f"{3:020d}"),
        schema_of({"row_key": Kind.BYTES}),
        Transaction("", origin="c1", system=True),
        None,
        cells,
    )
    # `is_gc` is the system flag of the transaction.
    assert parsed(event) == [event]


@pytest.mark.parametrize(
    ("type_", "value", "options"),
    [
        (ColumnType(Kind.BYTES), b"\xfb\xff", {"binary_handling_mode": "base64-url-safe"}),
        (ColumnType(Kind.BYTES), b"\xfb\xff", {"binary_handling_mode": "base64"}),
        (ColumnType(Kind.BYTES), b"\xfb\xff", {"binary_handling_mode": "hex"}),
        (ColumnType(Kind.DECIMAL, scale=2), Decimal("1.50"), {"decimal_handling_mode": "string"}),
        (ColumnType(Kind.DECIMAL, scale=2), Decimal("1.5"), {"decimal_handling_mode": "double"}),
        (ColumnType(Kind.DECIMAL, scale=2), Decimal("NaN"), {"decimal_handling_mode": "string"}),
        (ColumnType(Kind.DECIMAL, precision=9, scale=2), Decimal("-1.50"), {}),
        (ColumnType(Kind.LOCAL_TIMESTAMP), float("inf"), {}),
        (ColumnType(Kind.TIMESTAMP), float("-inf"), {}),
        (ColumnType(Kind.DATE), float("-inf"), {}),
        (ColumnType(Kind.FLOAT64), float("-inf"), {}),
        (ColumnType(Kind.UINT64), 2**63 - 1, {}),
    ],
)
def test_each_mode_is_read_back(type_: ColumnType, value: Any, options: dict[str, Any]) -> None:
    event = event_of(schema_of({"k": Kind.INT64}, v=type_), after={"k": 1, "v": value})
    (result,) = parsed(event, DebeziumParser(event.schema, **options), **options)
    assert str((result.after or {})["v"]) == str(value)


def test_the_exact_mode_of_spanner_is_read_with_its_schema() -> None:
    schema = schema_of({"Id": Kind.INT64}, Day=Kind.DATE, Price=ColumnType(Kind.DECIMAL, "NUMERIC", 38, 9))
    event = event_of(schema, Op.CREATE, after={"Id": 1, "Day": 20484, "Price": Decimal("2.5")})
    (result,) = parsed(event, DebeziumParser(schema, debezium_exact=True), debezium_exact=True)
    assert result.after == event.after


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"secret", "not a record in Debezium JSON"),
        (b'{"op":"x"}', "op 'x' does not exist"),
        (b'{"op":"c","after":{"n":"secret"}}', "column n: the value"),
    ],
)
def test_a_malformed_record_is_named_without_its_values(value: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        DebeziumParser(SCHEMA)(b'{"k":1}', value)
    assert "secret" not in str(raised.value)


def test_an_option_that_debezium_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="no option time_mode"):
        DebeziumParser(time_mode="x")
    with pytest.raises(UsageError, match="binary_handling_mode"):
        DebeziumParser(binary_handling_mode="x")


def test_a_parser_can_be_sent_to_a_worker() -> None:
    event = event_of(SCHEMA, after={"k": 1, "v": "x", "raw": b"", "n": 1})
    parser = DebeziumParser(SCHEMA)
    parsed(event, parser)
    assert parsed(event, pickle.loads(pickle.dumps(parser))) == [event]


def of_a_transaction(op: Op, lsn: int, table: str = "a", **images: Any) -> ChangeEvent:
    return ChangeEvent(
        Source("postgresql", schema="s1", table=table),
        op,
        1486500577125 * 10**6,
        images.get("key", {"k": 1}),
        images.get("before"),
        images.get("after"),
        Version(53195900, "571", f"{lsn:020d}"),
        SCHEMA,
        Transaction("571", previous_end=53195700),
    )


def test_the_records_of_a_transaction_come_out_as_debezium_writes_them() -> None:
    events = [
        of_a_transaction(Op.CREATE, 53195829, after={"k": 1}),
        of_a_transaction(Op.CREATE, 53195830, "b", after={"k": 1}),
        of_a_transaction(Op.UPDATE, 53195831, key={"k": 2}, before={"k": 1}, after={"k": 2}),
    ]
    records = format_transaction(DebeziumFormat("srv"), events)
    assert [record.topic for record in records] == [
        *("srv.transaction", "srv.s1.a", "srv.s1.b"),
        *["srv.s1.a"] * 3,  # the delete and the tombstone of the old key, the create of the new one
        "srv.transaction",
    ]
    begin, end = records[0], records[-1]
    assert (begin.key, begin.value) == (
        b'{"id":"571:53195829"}',
        b'{"status":"BEGIN","id":"571:53195829","event_count":null,"data_collections":null,"ts_ms":1486500577125}',
    )
    assert end.value == (
        b'{"status":"END","id":"571:53195900","event_count":4,"data_collections":['
        b'{"data_collection":"s1.a","event_count":3},{"data_collection":"s1.b","event_count":1}],"ts_ms":1486500577125}'
    )
    blocks = [json.loads(record.value)["transaction"] for record in records[1:-1] if record.value]
    assert [(b["id"], b["total_order"], b["data_collection_order"]) for b in blocks] == [
        ("571:53195829", 1, 1),
        ("571:53195830", 2, 1),
        ("571:53195831", 3, 2),
        ("571:53195831", 4, 3),
    ]
    parsed_end = parse_transaction_record(end.value)
    assert parsed_end.data_collections == (DataCollection("s1.a", 3), DataCollection("s1.b", 1))
    with pytest.raises(ValueError, match="not a transaction metadata record"):
        parse_transaction_record(b"{}")


def test_a_key_change_counts_as_two_events_of_its_transaction() -> None:
    moved = event_of(SCHEMA, before={"k": 1}, after={"k": 2})
    assert parse_transaction_record(transaction_records("srv", [moved])[1].value or b"").event_count == 2
    with pytest.raises(ValueError, match="without events"):
        transaction_records("srv", [])


@pytest.mark.parametrize("mode", ["bytes", "base64", "base64-url-safe", "hex"])
@pytest.mark.parametrize("schemas_enable", [False, True])
@pytest.mark.parametrize("content", [b"", b"plain text", b"abc", b"\xfb\xff\xfe", b"face"])
def test_the_content_of_a_message_is_read_in_the_mode_that_wrote_it(
    mode: Any, schemas_enable: bool, content: bytes
) -> None:
    source, version = Source("postgresql", "", "db"), Version(5, "7", f"{6:020d}")
    about = Transaction("7", previous_end=5)
    message = ChangeEvent(
        source, Op.MESSAGE, 0, None, None, None, version, NO_COLUMNS, about, Message("audit", content)
    )
    parser = DebeziumParser(binary_handling_mode=mode)
    assert parsed(message, parser, schemas_enable=schemas_enable, binary_handling_mode=mode) == [message]


def test_a_message_in_another_mode_is_refused_with_the_option() -> None:
    source, version = Source("postgresql", "", "db"), Version(5, "7", f"{6:020d}")
    message = ChangeEvent(
        source, Op.MESSAGE, 0, None, None, None, version, NO_COLUMNS, None, Message("audit", b"\xfb\xff")
    )
    with pytest.raises(ValueError, match="binary_handling_mode=hex: use the mode"):
        parsed(message, DebeziumParser(binary_handling_mode="hex"), binary_handling_mode="base64")


@pytest.mark.parametrize(
    ("kind", "value", "options", "remedy"),
    [
        (Kind.UINT64, 2**63, {}, "leave the column out"),
        (Kind.LOCAL_TIMESTAMP, 9_224_318_015_999_999_999_000, {}, "time_precision_mode=isostring"),
        (
            Kind.LOCAL_TIMESTAMP,
            -62_135_596_800 * 10**9,
            {"time_precision_mode": "nanoseconds"},
            "or microseconds in place of nanoseconds",
        ),
        (Kind.INTERVAL, Interval(178_000_000 * 12), {}, "interval_handling_mode=string"),
        (Kind.INTERVAL, float("inf"), {}, "interval_handling_mode=string"),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_a_number_beyond_64_bits_is_refused_with_its_column_and_the_remedy(
    kind: Kind, value: Any, options: dict[str, Any], remedy: str, exact: bool
) -> None:
    schema = schema_of({"k": Kind.INT64}, big=kind)
    event = event_of(schema, after={"k": 1, "big": value})
    with pytest.raises(ValueError, match="column big of .*" + remedy) as raised:
        parsed(event, debezium_exact=exact, **options)
    assert re.search(r"\d{3}", str(raised.value)) is None


def test_an_array_that_was_not_sent_is_not_sent_after_parsing() -> None:
    array = ColumnType(Kind.ARRAY, "integer[]", element=ColumnType(Kind.INT32, "integer"))
    schema = TableSchema((Column("k", ColumnType(Kind.INT64), False, 1), Column("a", array)))
    source, version = Source("postgresql", "", "db", "s", "t"), Version(5, "7", f"{6:020d}")
    event = ChangeEvent(source, Op.UPDATE, 0, {"k": 1}, None, {"k": 1}, version, schema)
    (record,) = DebeziumFormat("srv")(event)
    assert b'"a":[95,95,' in (record.value or b"")
    (result,) = DebeziumParser(schema)(record.key, record.value)
    assert result.unavailable == ("a",)
