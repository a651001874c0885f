"""Debezium records as events: real and documented records, tombstones, key changes, transaction metadata."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.event import (
    NO_COLUMNS,
    CellChange,
    ChangeEvent,
    ColumnType,
    Kind,
    Message,
    Op,
    Source,
    Transaction,
    Version,
)
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_parse import DebeziumParser
from penstock.transforms.formats.debezium_transaction import (
    DataCollection,
    TransactionRecord,
    parse_transaction_record,
    transaction_records,
)
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
    assert event.version == Version(24023119, "555", "24023128")
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
        Version(5, "7", "6"),
        NO_COLUMNS,
        Transaction("7"),
        Message("audit", b"\x00hi"),
    )
    assert parsed(message) == [message]
    truncate = ChangeEvent(
        source, Op.TRUNCATE, 0, None, None, None, Version(5, "7", "6"), SCHEMA, Transaction("7")
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
        (ColumnType(Kind.UINT64), 2**64 - 1, {}),
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


def test_the_documented_transaction_records_come_out_byte_for_byte_and_are_read() -> None:
    # Debezium documentation, "Debezium connector for PostgreSQL", Transaction metadata; one table, two events.
    begin = b'{"status":"BEGIN","id":"571:53195829","ts_ms":1486500577125,"event_count":null,"data_collections":null}'
    end = (
        b'{"status":"END","id":"571:53195829","ts_ms":1486500577691,"event_count":2,'
        b'"data_collections":[{"data_collection":"s1.a","event_count":2}]}'
    )
    first, last = (
        ChangeEvent(
            Source("postgresql", schema="s1", table="a"),
            Op.CREATE,
            at * 10**6,
            {"k": 1},
            None,
            {"k": 1},
            Version(1, "571:53195829"),
            SCHEMA,
        )
        for at in (1486500577125, 1486500577691)
    )
    records = transaction_records("srv", [first, last])
    assert [record.value for record in records] == [begin, end]
    assert {(record.topic, record.key) for record in records} == {
        ("srv.transaction", b'{"id":"571:53195829"}')
    }
    assert parse_transaction_record(begin) == TransactionRecord("BEGIN", "571:53195829", 1486500577125)
    assert parse_transaction_record(end).data_collections == (DataCollection("s1.a", 2),)
    with pytest.raises(ValueError, match="not a transaction metadata record"):
        parse_transaction_record(b"{}")


def test_a_key_change_counts_as_two_events_of_its_transaction() -> None:
    moved = event_of(SCHEMA, before={"k": 1}, after={"k": 2})
    assert parse_transaction_record(transaction_records("srv", [moved])[1].value or b"").event_count == 2
    with pytest.raises(ValueError, match="without events"):
        transaction_records("srv", [])
