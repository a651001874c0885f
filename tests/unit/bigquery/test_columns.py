"""Types and values of BigQuery: nothing is rounded or lost without a word."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from penstock.event import Column, ColumnType, Interval, Kind, TableSchema
from penstock.event.column_types import Field as StructField
from penstock.io.bigquery.columns import Field, bad_key, bad_name, converter, field_of, known_type

MICRO = 1_000
SECOND = 1_000_000_000
ARRAY_OF_TEXT = ColumnType(Kind.ARRAY, element=ColumnType(Kind.STRING))


def decimal(precision: int | None, scale: int | None = None) -> ColumnType:
    return ColumnType(Kind.DECIMAL, precision=precision, scale=scale)


def convert(type_: ColumnType, value: Any, *, key: bool = False, nanoseconds: Any = "refuse") -> Any:
    return converter(Column("c", type_, key_position=1 if key else None), nanoseconds)(value)


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (ColumnType(Kind.INT8), "INT64"),
        (ColumnType(Kind.UINT64), "NUMERIC"),
        (ColumnType(Kind.FLOAT32), "FLOAT64"),
        (decimal(38, 9), "NUMERIC"),
        (decimal(38, 10), "BIGNUMERIC"),
        (decimal(30, 0), "BIGNUMERIC"),
        (decimal(77, 38), "STRING"),
        (decimal(None), "STRING"),
        (ColumnType(Kind.JSON), "JSON"),
        (ColumnType(Kind.PROTO), "BYTES"),
        (ColumnType(Kind.LOCAL_TIMESTAMP), "DATETIME"),
        (ColumnType(Kind.INTERVAL), "STRING"),
        (ColumnType(Kind.ARRAY, element=ARRAY_OF_TEXT), "JSON"),
    ],
)
def test_each_type_of_the_event_model_has_a_type_that_holds_its_values(
    type_: ColumnType, expected: str
) -> None:
    assert field_of("c", type_) == Field("c", expected)


def test_an_array_is_a_repeated_column() -> None:
    assert field_of("c", ARRAY_OF_TEXT) == Field("c", "STRING", "REPEATED")


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (ColumnType(Kind.UINT64), 2**64 - 1, "18446744073709551615"),
        (decimal(38, 9), Decimal("1E+3"), "1000"),
        (decimal(None), Decimal("NaN"), "NaN"),
        (ColumnType(Kind.TIMESTAMP), -1 * SECOND, -1_000_000),
        (ColumnType(Kind.LOCAL_TIMESTAMP), SECOND + 5 * MICRO, "1970-01-01 00:00:01.000005"),
        (ColumnType(Kind.TIME), 3_661 * SECOND, "01:01:01"),
        (ColumnType(Kind.INTERVAL), Interval(1, 2, 0), "P1M2D"),
        (ARRAY_OF_TEXT, ["a", ""], ["a", ""]),
        (ColumnType(Kind.ARRAY, element=ARRAY_OF_TEXT), [["a"], None], '[["a"],null]'),
        (
            ColumnType(Kind.STRUCT, fields=(StructField("x", ColumnType(Kind.BYTES)),)),
            {"x": b"\0"},
            '{"x":"AA=="}',
        ),
    ],
)
def test_a_value_is_written_as_the_storage_write_api_takes_it(
    type_: ColumnType, value: Any, expected: Any
) -> None:
    assert convert(type_, value) == expected


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        (decimal(38, 9), Decimal("NaN"), "NaN"),
        (ColumnType(Kind.TIMESTAMP), 1, "nanoseconds"),
        (ColumnType(Kind.TIMESTAMP), float("inf"), "infinite"),
        (ColumnType(Kind.TIMESTAMP), 253_402_300_800 * SECOND, "years 1 to 9999"),
        (ColumnType(Kind.DATE), -719_163, "years 1 to 9999"),
        (ColumnType(Kind.DATE), float("-inf"), "years 1 to 9999"),
        (ARRAY_OF_TEXT, ["a", None], "NULL"),
        (ARRAY_OF_TEXT, [["a"]], "more than one dimension"),
    ],
)
def test_a_value_that_bigquery_does_not_have_is_refused_with_its_column(
    type_: ColumnType, value: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=f"column c has .*{reason}"):
        convert(type_, value)


def test_nanoseconds_are_cut_only_if_the_user_says_so_and_never_in_a_key() -> None:
    assert convert(ColumnType(Kind.TIMESTAMP), 1_999, nanoseconds="truncate") == 1
    assert convert(ColumnType(Kind.TIME), 1_999, nanoseconds="truncate") == "00:00:00.000001"
    with pytest.raises(ValueError, match="nanoseconds"):
        convert(ColumnType(Kind.TIMESTAMP), 1_999, key=True, nanoseconds="truncate")


def test_a_column_that_holds_all_values_of_the_source_is_not_altered() -> None:
    source = ColumnType(Kind.INT32, "integer")
    assert known_type(Field("c", "INT64"), source) is source
    assert known_type(Field("c", "FLOAT64"), source) is source
    assert known_type(Field("c", "STRING"), source).kind is Kind.STRING
    assert known_type(Field("c", "STRING", "REPEATED"), source).kind is Kind.ARRAY


@pytest.mark.parametrize("names", [("a b",), ("_change_type_x",), ("Name", "name"), ("ä",), ("",)])
def test_a_column_name_that_bigquery_does_not_take_is_refused(names: tuple[str, ...]) -> None:
    assert "RenameColumns" in str(bad_name(names))


def test_a_key_that_bigquery_does_not_take_is_refused() -> None:
    def key(*types: ColumnType) -> TableSchema:
        return TableSchema(tuple(Column(f"k{n}", each, False, n + 1) for n, each in enumerate(types)))

    assert bad_key(key(ColumnType(Kind.INT64), ColumnType(Kind.UUID))) is None
    assert "BYTES" in str(bad_key(key(ColumnType(Kind.BYTES))))
    assert "FLOAT64" in str(bad_key(key(ColumnType(Kind.FLOAT64))))
    assert "17 columns" in str(bad_key(key(*[ColumnType(Kind.INT64)] * 17)))
