"""Debezium JSON: records byte for byte, and what each option changes."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from typing import Any

import msgspec
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
from penstock.transforms.formats.debezium_source import json_block, plain_block, source_schema
from penstock.transforms.formats.formatted import FormattedRecord
from penstock.transforms.parsers.debezium import DebeziumParser
from tests.unit.formats.events import event_of, schema_of

TEXT = ColumnType(Kind.STRING, "character varying(255)")
CUSTOMERS = TableSchema(
    (
        Column("id", ColumnType(Kind.INT32, "integer"), False, 1),
        Column("first_name", TEXT, False),
        Column("last_name", TEXT, False),
        Column("email", TEXT, False),
    )
)
ANNE = {"id": 1001, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
POSTGRES = Source("postgresql", database="postgres", schema="inventory", table="customers")


def customer(op: Op = Op.CREATE, before: Any = None, after: Any = None, key: Any = None) -> ChangeEvent:
    key = key or {"id": 1001}
    version = Version(620011000, "78544", "620011056")
    return ChangeEvent(
        POSTGRES, op, 1795263118775981000, key, before, after, version, CUSTOMERS, Transaction("78544")
    )


def typed(type_: ColumnType, value: Any, **options: Any) -> Any:
    """Return a value as it stands in the JSON of a record."""
    schema = TableSchema((Column("k", ColumnType(Kind.INT64), False, 1), Column("v", type_)))
    event = ChangeEvent(
        Source("x", table="t"), Op.CREATE, 0, {"k": 1}, None, {"k": 1, "v": value}, Version(0), schema
    )
    return payload(DebeziumFormat("s", **options)(event)[0])["after"]["v"]


def payload(record: FormattedRecord) -> Any:
    assert record.value is not None
    return json.loads(record.value)


def test_the_documented_example_of_a_create_comes_out_byte_for_byte() -> None:
    (record,) = DebeziumFormat("srv")(customer(after=ANNE))
    assert record.topic == "srv.inventory.customers"
    assert record.key == b'{"id":1001}'
    assert record.value == (
        b'{"before":null,"after":{"id":1001,"first_name":"Anne","last_name":"Kretchmar","email":"annek@noanswer.org"},'
        b'"source":{"version":"0.1.0","connector":"postgresql","name":"srv","ts_ms":1795263118775,"snapshot":"false",'
        b'"db":"postgres","sequence":"[null,\\"620011056\\"]","ts_us":1795263118775981,'
        b'"ts_ns":1795263118775981000,"schema":"inventory","table":"customers","txId":78544,"lsn":620011056,"xmin":null,'
        b'"origin":null,"origin_lsn":null},"transaction":null,"op":"c","ts_ms":1795263118775,"ts_us":1795263118775981,'
        b'"ts_ns":1795263118775981000}'
    )


def test_the_documented_key_with_its_schema_comes_out_byte_for_byte() -> None:
    (record,) = DebeziumFormat("srv", schemas_enable=True)(customer(after=ANNE))
    assert record.key == (
        b'{"schema":{"type":"struct","fields":[{"type":"int32","optional":false,"field":"id"}],"optional":false,'
        b'"name":"srv.inventory.customers.Key"},"payload":{"id":1001}}'
    )
    schema = payload(record)["schema"]
    assert (schema["name"], schema["version"]) == ("srv.inventory.customers.Envelope", 2)
    assert [field["field"] for field in schema["fields"]] == [
        *("before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns")
    ]
    assert schema["fields"][2]["name"] == "io.debezium.connector.postgresql.Source"
    assert [field["field"] for field in schema["fields"][2]["fields"]] == list(
        payload(record)["payload"]["source"]
    )


@pytest.mark.parametrize(
    ("skipped", "values"),
    [("u", ["d", None, "c"]), ("d", ["c"]), ("c", ["d", None]), ("c,d", []), ("none", ["d", None, "c"])],
)
def test_a_changed_key_is_a_delete_and_a_create_for_the_operations_to_skip(
    skipped: str, values: list[str | None]
) -> None:
    moved = event_of(schema_of({"k": Kind.INT64}), before={"k": 1}, after={"k": 2})
    records = DebeziumFormat("srv", skipped_operations=skipped)(moved)
    assert [record.value and json.loads(record.value)["op"] for record in records] == values
    same = event_of(schema_of({"k": Kind.INT64}), before={"k": 1}, after={"k": 1})
    assert len(DebeziumFormat("srv", skipped_operations=skipped)(same)) == (skipped != "u")


def test_a_delete_is_followed_by_a_tombstone_unless_it_is_switched_off() -> None:
    gone = customer(Op.DELETE, before=ANNE)
    deletion, tombstone = DebeziumFormat("srv")(gone)
    assert (payload(deletion)["op"], payload(deletion)["after"]) == ("d", None)
    assert (tombstone.key, tombstone.value) == (b'{"id":1001}', None)
    assert len(DebeziumFormat("srv", tombstones_on_delete=False)(gone)) == 1


def test_a_new_primary_key_is_a_delete_a_tombstone_and_a_create_that_name_each_other() -> None:
    moved = customer(Op.UPDATE, before=ANNE, after={**ANNE, "id": 7}, key={"id": 7})
    deletion, tombstone, creation = DebeziumFormat("srv")(moved)
    assert (deletion.key, tombstone.key, creation.key) == (b'{"id":1001}', b'{"id":1001}', b'{"id":7}')
    assert deletion.headers == (("__debezium.newkey", b'{"id":7}'),)
    assert creation.headers == (("__debezium.oldkey", b'{"id":1001}'),)
    assert [payload(deletion)["op"], payload(creation)["op"]] == ["d", "c"]


def test_not_sent_null_and_empty_stay_different() -> None:
    schema = TableSchema(
        (*CUSTOMERS.columns, Column("age", ColumnType(Kind.INT32)), Column("raw", ColumnType(Kind.BYTES)))
    )
    event = ChangeEvent(
        POSTGRES, Op.UPDATE, 0, {"id": 1}, None, {"id": 1, "email": None, "last_name": ""}, Version(0), schema
    )
    after = payload(DebeziumFormat("s")(event)[0])["after"]
    assert after == {
        "id": 1,
        "first_name": "__debezium_unavailable_value",
        "last_name": "",
        "email": None,
        "raw": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    }  # no text stands for a number: `age` is left out
    exact = payload(DebeziumFormat("s", debezium_exact=True)(event)[0])["after"]
    assert exact == {**after, "age": None}
    elsewhere = msgspec.structs.replace(event, source=Source("x", table="t"))
    exact = payload(DebeziumFormat("s", debezium_exact=True)(elsewhere)[0])["after"]
    assert exact == {"id": 1, "first_name": None, "last_name": "", "email": None, "age": None, "raw": None}


def test_a_truncate_is_left_out_unless_it_is_asked_for() -> None:
    truncated = ChangeEvent(POSTGRES, Op.TRUNCATE, 0, None, None, None, Version(0), CUSTOMERS)
    assert DebeziumFormat("s")(truncated) == []
    (record,) = DebeziumFormat("s", skipped_operations="none")(truncated)
    assert record.key is None
    assert {name: payload(record)[name] for name in ("op", "before", "after")} == {
        "op": "t",
        "before": None,
        "after": None,
    }


def test_a_message_has_its_prefix_as_key() -> None:
    event = ChangeEvent(
        Source("postgresql"),
        Op.MESSAGE,
        0,
        None,
        None,
        None,
        Version(0),
        NO_COLUMNS,
        message=Message("audit", b"hi"),
    )
    (record,) = DebeziumFormat("s")(event)
    assert (record.topic, record.key) == ("s.message", b'{"prefix":"audit"}')
    assert list(payload(record)) == ["op", "ts_ms", "source", "transaction", "message"]
    assert payload(record)["message"] == {"prefix": "audit", "content": "aGk="}


@pytest.mark.parametrize(
    ("type_", "value", "options", "shown"),
    [
        (ColumnType(Kind.INT64), 2**63 - 1, {}, 2**63 - 1),
        (ColumnType(Kind.FLOAT64), float("nan"), {}, "NaN"),
        (ColumnType(Kind.FLOAT64), float("-inf"), {}, "-Infinity"),
        (ColumnType(Kind.DECIMAL, scale=2), Decimal("1.5"), {}, "AJY="),
        (ColumnType(Kind.DECIMAL, scale=2), Decimal("-0.01"), {}, "/w=="),
        (ColumnType(Kind.DECIMAL), Decimal("12.345"), {}, {"scale": 3, "value": "MDk="}),
        (ColumnType(Kind.DECIMAL, scale=2), Decimal("1.50"), {"decimal_handling_mode": "string"}, "1.50"),
        (ColumnType(Kind.DECIMAL, scale=2), Decimal("1.5"), {"decimal_handling_mode": "double"}, 1.5),
        (ColumnType(Kind.BYTES), b"\xfb\xff", {}, "+/8="),
        (ColumnType(Kind.BYTES), b"\xfb\xff", {"binary_handling_mode": "base64-url-safe"}, "-_8="),
        (ColumnType(Kind.BYTES), b"\xfb\xff", {"binary_handling_mode": "hex"}, "fbff"),
        (ColumnType(Kind.DATE), 20484, {}, 20484),
        (ColumnType(Kind.DATE), 20484, {"time_precision_mode": "isostring"}, "2026-01-31Z"),
        (ColumnType(Kind.TIME), 3_723_000_004_000, {}, 3_723_000_004),
        (ColumnType(Kind.TIME, scale=3), 3_723_000_004_000, {}, 3_723_000),
        (
            ColumnType(Kind.TIME),
            3_723_000_004_000,
            {"time_precision_mode": "adaptive_time_microseconds"},
            3_723_000_004,
        ),
        (ColumnType(Kind.TIME), 3_723_500_000_000, {"time_precision_mode": "isostring"}, "01:02:03.5Z"),
        (ColumnType(Kind.LOCAL_TIMESTAMP), 1_500_000_001, {}, 1_500_000),
        (ColumnType(Kind.LOCAL_TIMESTAMP, scale=3), 1_500_000_001, {}, 1_500),
        (ColumnType(Kind.LOCAL_TIMESTAMP), float("inf"), {}, 9223372036825200000),
        (ColumnType(Kind.LOCAL_TIMESTAMP), 1_500_000_001, {"time_precision_mode": "connect"}, 1_500),
        (ColumnType(Kind.TIMESTAMP), 1769860800_120000000, {}, "2026-01-31T12:00:00.12Z"),
        (ColumnType(Kind.TIMESTAMP), 1769860800_000000000, {}, "2026-01-31T12:00:00Z"),
        (ColumnType(Kind.INTERVAL), Interval(1, 1, 1_000), {}, 2_716_200_000_001),
        (
            ColumnType(Kind.INTERVAL),
            Interval(14, 3, 3_723_500_000_000),
            {"interval_handling_mode": "string"},
            "P1Y2M3DT1H2M3.5S",
        ),
        (
            ColumnType(Kind.ARRAY, element=ColumnType(Kind.FLOAT64)),
            [1.0, None, float("inf")],
            {},
            [1.0, None, "Infinity"],
        ),
        (ColumnType(Kind.JSON), '{"a":1}', {}, '{"a":1}'),
    ],
)
def test_a_type_is_shown_by_its_mode(
    type_: ColumnType, value: Any, options: dict[str, Any], shown: Any
) -> None:
    assert typed(type_, value, **options) == shown


def test_a_number_that_precise_mode_cannot_show_is_named_by_its_column() -> None:
    with pytest.raises(ValueError, match="column v of s.t cannot be shown.*decimal_handling_mode=precise"):
        typed(ColumnType(Kind.DECIMAL, scale=2), Decimal("NaN"))
    with pytest.raises(ValueError, match="more than the 2 digits") as raised:
        typed(ColumnType(Kind.DECIMAL, scale=2), Decimal("1.234"))
    assert "1.234" not in str(raised.value)


def test_an_option_that_debezium_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="decimal_handling_mode"):
        DebeziumFormat("s", decimal_handling_mode="exact")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="skipped_operations has x"):
        DebeziumFormat("s", skipped_operations="t,x")


def test_the_exact_mode_of_spanner_sends_what_its_connector_sends() -> None:
    schema = TableSchema(
        (
            Column("Id", ColumnType(Kind.INT64, "INT64"), None, 1),
            Column("Day", ColumnType(Kind.DATE, "DATE")),
            Column("Price", ColumnType(Kind.DECIMAL, "NUMERIC", 38, 9)),
        )
    )
    source = Source("spanner", "p/i", "db", "", "Orders", "All", "NEW_VALUES")
    event = ChangeEvent(
        source, Op.UPDATE, 0, {"Id": 1}, None, {"Id": 1, "Price": Decimal("2.5")}, Version(0), schema
    )
    value = payload(DebeziumFormat("con", debezium_exact=True)(event)[0])
    assert value["before"] == {"Id": 1, "Day": None, "Price": None}
    assert value["after"] == {"Id": 1, "Day": None, "Price": "2.5"}
    assert list(value["source"])[9:15] == [
        *("project_id", "instance_id", "database_id", "change_stream_name", "table", "server_transaction_id")
    ]


def test_the_exact_mode_of_spanner_sends_elements_of_arrays_as_texts_too() -> None:
    """Origin: `ColumnTypeSchemaMapper.getArrayElementSchema` of Debezium's Spanner connector."""
    kinds = {"Prices": Kind.DECIMAL, "Days": Kind.DATE, "Times": Kind.TIMESTAMP, "Docs": Kind.JSON}
    arrays = {name: ColumnType(Kind.ARRAY, "ARRAY", element=ColumnType(kind)) for name, kind in kinds.items()}
    row = {"Prices": [Decimal("0.000000001"), None], "Days": [1], "Times": [10**9], "Docs": ["{}"]}
    event = event_of(schema_of({"Id": Kind.INT64}, **arrays), Op.CREATE, after={"Id": 1, **row})
    value = payload(DebeziumFormat("con", debezium_exact=True, schemas_enable=True)(event)[0])
    shown = value["payload"]["after"]
    assert [shown["Prices"], shown["Days"]] == [["0.000000001", None], ["1970-01-02"]]
    assert [shown["Times"], shown["Docs"]] == [["1970-01-01T00:00:01Z"], ["{}"]]
    (after,) = (field for field in value["schema"]["fields"] if field["field"] == "after")
    assert [field["items"] for field in after["fields"][1:]] == [{"type": "string", "optional": True}] * 4


def test_a_small_decimal_as_text_has_no_exponent() -> None:
    schema = schema_of({"Id": Kind.INT64}, Price=Kind.DECIMAL)
    event = event_of(schema, Op.CREATE, after={"Id": 1, "Price": Decimal("0.000000001")})
    (record,) = DebeziumFormat("s", decimal_handling_mode="string")(event)
    assert payload(record)["after"]["Price"] == "0.000000001"


def test_a_bigtable_record_carries_its_cells() -> None:
    source = Source("bigtable", "p/i", table="users")
    cells = (CellChange("DELETE_FAMILY", "cf"), CellChange("SET_CELL", "cf", b"q", 5, None, b"v"))
    schema = TableSchema(
        (Column("row_key", ColumnType(Kind.BYTES), False, 1), Column("cf:q", ColumnType(Kind.BYTES)))
    )
    after = {"row_key": b"r", "cf:q": b"v"}
    event = ChangeEvent(
        source,
        Op.UPDATE,
        0,
        {"row_key": b"r"},
        None,
        after,
        Version(0, "", "0003"),
        schema,
        Transaction("", origin="c"),
        None,
        cells,
    )
    (record,) = DebeziumFormat("s", schemas_enable=True)(event)
    block = payload(record)["payload"]["source"]
    assert block["cells"] == [
        {"mod": "DELETE_FAMILY", "family": "cf"},
        {"mod": "SET_CELL", "family": "cf", "qualifier": "cQ==", "start_us": 5, "value": "dg=="},
    ]
    assert (block["tiebreaker"], block["source_cluster"]) == (3, "c")


def test_a_format_can_be_sent_to_a_worker() -> None:
    format_ = DebeziumFormat("srv")
    before = format_(customer(after=ANNE))
    assert pickle.loads(pickle.dumps(format_))(customer(after=ANNE)) == before


@pytest.mark.parametrize("op", [Op.CREATE, Op.READ])
@pytest.mark.parametrize("transaction", [None, Transaction('t"7', 2, 3, False, "tag \\ \n", "", True)])
def test_the_source_block_in_json_is_that_of_the_other_converters(op: Op, transaction: Any) -> None:
    source = Source("spanner", 'p"/i', "shop\\", "sales", "Orders", "All", "NEW_ROW")
    version = Version(5, 'tx"1', "00000012", 3)
    event = ChangeEvent(
        source, op, 1_795_263_118_775_981_123, None, None, {}, version, NO_COLUMNS, transaction
    )
    compact = msgspec.json.encode(json_block(source, 'srv"')(event))
    assert json.loads(compact) == plain_block(source, 'srv"')(event)
    assert list(json.loads(compact)) == list(plain_block(source, 'srv"')(event))


@pytest.mark.parametrize(
    ("sent", "sequence", "prefix"),
    [("00000001", "1", None), ("963d1af435fb3e79-0000000a", "10", "963d1af435fb3e79"), ("", "", None)],
)
def test_the_record_sequence_of_spanner_is_shown_as_the_connector_shows_it(
    sent: str, sequence: str, prefix: str | None
) -> None:
    source = Source("spanner", "p/i", "shop", "", "Orders", "All", "NEW_ROW")
    event = ChangeEvent(source, Op.CREATE, 0, None, None, {}, Version(0, "tx", sent), NO_COLUMNS)
    record = DebeziumFormat("srv")(event)[0]
    block = payload(record)["source"]
    assert (block["sequence"], block["record_sequence_prefix"]) == (sequence, prefix)
    (parsed,) = DebeziumParser()(record.key, record.value)
    assert parsed.version.sequence == sent


def test_the_spanner_connector_names_keys_and_rows_without_the_server() -> None:
    schema = TableSchema((Column("Id", ColumnType(Kind.INT64), None, 1),))
    source = Source("spanner", "p/i", "db", "", "Orders", "All", "NEW_ROW")
    event = ChangeEvent(source, Op.CREATE, 0, {"Id": 1}, None, {"Id": 1}, Version(0), schema)
    (record,) = DebeziumFormat("con", schemas_enable=True)(event)
    value = payload(record)["schema"]
    assert json.loads(record.key or b"")["schema"]["name"] == "Orders.Key"
    assert (value["name"], value["fields"][1]["name"]) == ("con.Orders.Envelope", "Orders.Value")


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (1_769_860_800_123_456_000, "2026-01-31T12:00:00.123456Z"),
        (1_769_860_800_123_450_000, "2026-01-31T12:00:00.12345Z"),
        (1_769_860_800_000_000_000, "2026-01-31T12:00:00Z"),
        (1_769_860_800_123_456_789, "2026-01-31T12:00:00.123456789Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (-62_135_596_799_999_999_000, "0001-01-01T00:00:00.000001Z"),
        (float("-inf"), "-infinity"),
    ],
)
def test_a_zoned_timestamp_has_the_digits_that_it_needs(nanoseconds: float, text: str) -> None:
    assert typed(ColumnType(Kind.TIMESTAMP), nanoseconds) == text


def test_the_table_is_required_in_the_source_of_spanner_as_in_the_connector() -> None:
    (source,) = (field for field in source_schema("spanner")["fields"] if field["field"] == "table")
    assert source == {"type": "string", "optional": False, "field": "table"}
