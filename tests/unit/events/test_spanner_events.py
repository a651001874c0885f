"""Conversion of Spanner records to events."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from penstock.event.coder import decode_event, encode_event
from penstock.event.column_types import Interval, Kind
from penstock.event.model import Op, Version
from penstock.io.spanner.events import EventConverter
from penstock.io.spanner.record import ColumnType, DataChangeRecord, Mod, Mods
from penstock.io.spanner.values import column_type

COLUMNS = {"Region": "STRING", "Id": "INT64", "Name": "STRING", "Price": "NUMERIC"}


def record(
    *mods: Mod,
    mod_type: str = "UPDATE",
    capture: str = "OLD_AND_NEW_VALUES",
    table: str = "Orders",
    columns: dict[str, str] = COLUMNS,
    keys: int = 2,
) -> DataChangeRecord:
    types = tuple(
        ColumnType(name, type_ if type_[0] == "{" else json.dumps({"code": type_}), place < keys, place + 1)
        for place, (name, type_) in enumerate(columns.items())
    )
    return DataChangeRecord(
        7, "00000001", "tx", True, table, types, Mods.of(mods), mod_type, capture, 3, 2, "app", False
    )


KEY = '{"Id":"17","Region":"eu"}'


def test_an_update_has_the_changed_columns_and_the_key_in_both_images() -> None:
    (event,) = EventConverter("p/i", "shop", "All")(record(Mod(KEY, '{"Price":"2.50"}', '{"Price":null}')))
    assert event.op is Op.UPDATE
    assert list((event.key or {}).items()) == [("Region", "eu"), ("Id", 17)]
    assert event.before == {"Region": "eu", "Id": 17, "Price": None}
    assert event.after == {"Region": "eu", "Id": 17, "Price": Decimal("2.50")}
    assert event.unavailable == ("Name",)
    assert event.version == Version(7, "tx", "00000001", 0)
    assert event.transaction is not None
    assert (event.transaction.records, event.transaction.partitions, event.transaction.tag) == (3, 2, "app")


def test_missing_null_and_empty_values_stay_different() -> None:
    (event,) = EventConverter()(record(Mod(KEY, '{"Name":"","Price":null}', "{}"), capture="NEW_VALUES"))
    assert event.after == {"Region": "eu", "Id": 17, "Name": "", "Price": None}
    assert event.before is None
    (event,) = EventConverter()(record(Mod(KEY, "{}", "{}"), capture="NEW_VALUES"))
    assert event.unavailable == ("Name", "Price")


def test_a_delete_has_no_after_and_an_insert_no_before() -> None:
    (gone,) = EventConverter()(record(Mod(KEY, "{}", '{"Name":"a","Price":"1"}'), mod_type="DELETE"))
    assert (gone.op, gone.after) == (Op.DELETE, None)
    assert gone.before == {"Region": "eu", "Id": 17, "Name": "a", "Price": Decimal(1)}
    assert gone.unavailable == ()
    (bare,) = EventConverter()(record(Mod(KEY, "{}", "{}"), mod_type="DELETE", capture="NEW_VALUES"))
    assert (bare.before, bare.unavailable) == (None, ("Name", "Price"))
    (made,) = EventConverter()(record(Mod(KEY, '{"Name":"a"}', '{"Name":null}'), mod_type="INSERT"))
    assert (made.op, made.before) == (Op.CREATE, None)


def test_mods_of_one_record_have_growing_versions() -> None:
    events = EventConverter()(record(*[Mod(KEY, "{}", "{}")] * 3))
    assert [event.version.index for event in events] == [0, 1, 2]
    assert len({event.id for event in events}) == 3


def test_a_named_schema_is_separate_from_the_table_name() -> None:
    (event,) = EventConverter()(record(Mod(KEY, "{}", "{}"), table="sales.Orders"))
    assert (event.source.schema, event.source.table) == ("sales", "Orders")


@pytest.mark.parametrize(
    ("spanner", "sent", "value"),
    [
        ("INT64", '"9223372036854775807"', 2**63 - 1),
        ("FLOAT64", "12.5", 12.5),
        ("FLOAT64", '"-Infinity"', float("-inf")),
        ("FLOAT32", "3", 3.0),
        ("BOOL", "true", True),
        (
            "NUMERIC",
            '"-99999999999999999999999999999.999999999"',
            Decimal("-99999999999999999999999999999.999999999"),
        ),
        ('{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}', '"1.500"', Decimal("1.500")),
        ("BYTES", '"bnVsbA=="', b"null"),
        ("BYTES", '"null"', b"\x9e\xe9e"),
        ("PROTO", '"AQ=="', b"\x01"),
        ("DATE", '"0001-01-01"', -719162),
        ("DATE", '"1-01-01"', -719162),
        ("TIMESTAMP", '"2026-01-31T12:00:00.123456789Z"', 1769860800123456789),
        ("TIMESTAMP", '"0001-01-01T00:00:00Z"', -62135596800 * 10**9),
        ("TIMESTAMP", '"1-01-01T00:00:00Z"', -62135596800 * 10**9),
        ("JSON", '"{\\"a\\":1}"', '{"a":1}'),
        ("STRING", '"null"', "null"),
        ("UUID", '"0ef7b1c2-0000-4000-8000-000000000000"', "0ef7b1c2-0000-4000-8000-000000000000"),
        ("INTERVAL", '"P1Y2M-3DT4H5M-6.789S"', Interval(14, -3, 14_700_000_000_000 - 6_789_000_000)),
        ("ENUM", '"3"', "3"),
        ('{"code":"ARRAY","array_element_type":{"code":"INT64"}}', '["1",null,"NULL"]', [1, None, None]),
        ('{"code":"ARRAY","array_element_type":{"code":"BYTES"}}', '["null",null]', [b"\x9e\xe9e", None]),
        ('{"code":"ARRAY","array_element_type":{"code":"STRING"}}', '["NULL",""]', ["NULL", ""]),
        ('{"code":"ARRAY","array_element_type":{"code":"DATE"}}', '["1970-01-02",null]', [1, None]),
        ("TOKENLIST", '"x"', "x"),
    ],
)
def test_each_type_keeps_its_full_range(spanner: str, sent: str, value: Any) -> None:
    columns = {"Id": "INT64", "V": spanner}
    (event,) = EventConverter()(record(Mod('{"Id":"1"}', f'{{"V":{sent}}}', "{}"), columns=columns, keys=1))
    after = event.after or {}
    assert after["V"] == value
    assert type(after["V"]) is type(value)
    assert decode_event(encode_event(event)) == event


def test_a_column_that_the_record_does_not_describe_is_kept() -> None:
    (event,) = EventConverter()(record(Mod(KEY, '{"Name":"a","Later":5}', "{}")))
    assert (event.after or {})["Later"] == 5


def test_the_error_of_a_malformed_value_names_the_column_and_hides_the_value() -> None:
    with pytest.raises(ValueError, match="column Price of table Orders.*NUMERIC") as raised:
        EventConverter()(record(Mod(KEY, '{"Price":"secret"}', "{}")))
    assert "secret" not in str(raised.value)


def test_a_column_that_is_added_in_mid_stream_is_in_the_schema_from_then_on() -> None:
    convert = EventConverter()
    (first,) = convert(record(Mod(KEY, "{}", "{}")))
    (second,) = convert(record(Mod(KEY, '{"Size":"3"}', "{}"), columns={**COLUMNS, "Size": "INT64"}))
    assert "Size" not in first.schema.names
    assert (second.after or {})["Size"] == 3
    assert second.schema.names[-1] == "Size"


def test_a_numeric_has_the_bounds_of_its_dialect() -> None:
    assert (column_type('{"code":"NUMERIC"}').precision, column_type('{"code":"NUMERIC"}').scale) == (38, 9)
    postgres = column_type('{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}')
    assert (postgres.kind, postgres.native, postgres.precision) == (Kind.DECIMAL, "PG_NUMERIC", None)


def test_a_capture_type_that_is_altered_in_mid_stream_is_the_source_s_from_then_on() -> None:
    convert, mod = EventConverter(), Mod(KEY, '{"Name":"a"}', "{}")
    first = record(mod)
    second = replace(first, value_capture_type="NEW_ROW")
    captures = [event.source.capture for each in (first, second, first) for event in convert(each)]
    assert captures == [first.value_capture_type, "NEW_ROW", first.value_capture_type]
