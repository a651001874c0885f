"""One spelling for each value, over the whole range of each type."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_emulators.simulated_spanner.column_type import (
    GOOGLESQL,
    POSTGRESQL,
    ColumnType,
    json_text,
    named_type,
)
from penstock_emulators.simulated_spanner.errors import ServiceError
from penstock_emulators.simulated_spanner.history import random_value
from penstock_emulators.simulated_spanner.timestamp import format_timestamp, parse_timestamp
from penstock_emulators.simulated_spanner.value import canonical, sort_key

PG_NUMERIC = ColumnType("NUMERIC", annotation="PG_NUMERIC")
NAMES = {
    GOOGLESQL: [
        "BOOL",
        "INT64",
        "FLOAT32",
        "FLOAT64",
        "NUMERIC",
        "STRING",
        "BYTES",
        "DATE",
        "TIMESTAMP",
        "JSON",
        "UUID",
        "INTERVAL",
    ],
    POSTGRESQL: [
        "bigint",
        "boolean",
        "real",
        "double precision",
        "numeric",
        "varchar",
        "bytea",
        "date",
        "jsonb",
    ],
}


@pytest.mark.parametrize(
    ("dialect", "name"), [(dialect, name) for dialect in NAMES for name in NAMES[dialect]]
)
@given(seed=st.integers(0, 1 << 32))
def test_the_canonical_form_of_a_canonical_value_is_unchanged(dialect: str, name: str, seed: int) -> None:
    kind = named_type(dialect, name)
    assert kind is not None
    array = ColumnType("ARRAY", kind)
    for each in (kind, array):
        once = canonical(random_value(each, random.Random(seed)), each)
        assert canonical(once, each) == once


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (ColumnType("INT64"), "0009223372036854775807", "9223372036854775807"),
        (ColumnType("NUMERIC"), "1.500", "1.5"),
        (ColumnType("NUMERIC"), "-0.0", "0"),
        (ColumnType("NUMERIC"), "9" * 29 + "." + "9" * 9, "9" * 29 + "." + "9" * 9),
        (PG_NUMERIC, "1.500", "1.500"),
        (PG_NUMERIC, "NaN", "NaN"),
        (ColumnType("FLOAT64"), "NaN", "NaN"),
        (ColumnType("FLOAT64"), 0.1, 0.1),
        (ColumnType("FLOAT32"), 0.1, 0.10000000149011612),
        (ColumnType("TIMESTAMP"), "0001-01-01T00:00:00.120000000Z", "0001-01-01T00:00:00.12Z"),
        (ColumnType("TIMESTAMP"), "9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
        (ColumnType("JSON"), '{"b": [1, null], "a": "é"}', '{"a":"é","b":[1,null]}'),
        (ColumnType("JSON"), "null", "null"),
        (ColumnType("UUID"), "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ],
)
def test_each_value_has_one_canonical_form(kind: ColumnType, given: object, expected: object) -> None:
    assert canonical(given, kind) == expected


@pytest.mark.parametrize(
    ("code", "given"),
    [
        ("INT64", "9223372036854775808"),
        ("INT64", 1.0),
        ("BOOL", "true"),
        ("NUMERIC", "1e30"),
        ("NUMERIC", "0.0000000001"),
        ("FLOAT32", 1e39),
        ("DATE", "2026-02-30"),
        ("TIMESTAMP", "2026-01-01"),
        ("BYTES", "not base64!"),
        ("JSON", "{"),
        ("UUID", "x"),
        ("INTERVAL", "P"),
        ("STRING", 5.0),
    ],
)
def test_wrong_values_are_refused(code: str, given: object) -> None:
    with pytest.raises(ServiceError) as error:
        canonical(given, ColumnType(code))
    assert error.value.code == "FAILED_PRECONDITION"


def test_keys_sort_null_first_and_numbers_by_value() -> None:
    int64, float64 = ColumnType("INT64"), ColumnType("FLOAT64")
    assert sorted(["10", None, "9", "-1"], key=lambda v: sort_key(v, int64)) == [None, "-1", "9", "10"]
    floats = [1.5, "Infinity", None, "NaN", "-Infinity"]
    assert sorted(floats, key=lambda v: sort_key(v, float64)) == [None, "NaN", "-Infinity", 1.5, "Infinity"]


def test_types_are_printed_as_in_change_records() -> None:
    assert (
        json_text(ColumnType("ARRAY", ColumnType("STRING")))
        == '{"array_element_type":{"code":"STRING"},"code":"ARRAY"}'
    )
    assert json_text(PG_NUMERIC) == '{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}'


@given(moment=st.integers(-62_135_596_800 * 10**9, 253_402_300_799 * 10**9))
def test_timestamps_survive_formatting_and_parsing(moment: int) -> None:
    assert parse_timestamp(format_timestamp(moment)) == moment
