"""Types and values of columns in BigQuery. Pure.

| Kind | BigQuery | Value in a row of the Storage Write API |
|---|---|---|
| BOOL | BOOL | the same |
| INT8 … INT64, UINT8 … UINT32 | INT64 | the same |
| UINT64 | NUMERIC | decimal text |
| FLOAT32, FLOAT64 | FLOAT64 | the same, also NaN and infinities |
| DECIMAL with up to 29 digits before and 9 after the point | NUMERIC | decimal text; NaN and infinities are refused |
| DECIMAL with up to 38 digits before and 38 after the point | BIGNUMERIC | the same |
| other DECIMAL, also without limits | STRING | all digits |
| STRING, ENUM, UUID, OTHER, INTERVAL | STRING | text; an interval in ISO 8601 |
| JSON | JSON | the text as the source sent it |
| BYTES, PROTO | BYTES | the same |
| DATE | DATE | days since 1970-01-01 |
| TIME | TIME | ``HH:MM:SS.ffffff`` |
| TIMESTAMP | TIMESTAMP | microseconds since 1970-01-01T00:00:00Z |
| LOCAL_TIMESTAMP | DATETIME | ``YYYY-MM-DD HH:MM:SS.ffffff`` |
| ARRAY | REPEATED | NULL becomes an empty array; an array with NULL inside is refused |
| ARRAY of ARRAY, STRUCT | JSON | as `penstock.event.plain_json` writes them |

Years outside of 1 to 9999 and infinite times are refused. BigQuery has microseconds: a time with nanoseconds is refused
or truncated, as the user chose; in a key it is always refused, because a truncated key could be another key.

Source: BigQuery documentation, "Data type conversions" of the Storage Write API.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from penstock.event.column_types import ColumnType, Kind
from penstock.event.model import Column, TableSchema
from penstock.event.plain_json import image_json
from penstock.event.plain_types import interval_text, time_text
from penstock.io.bigquery.options import Nanoseconds

Convert = Callable[[Any], Any]

KEY_TYPES = frozenset(
    ("BIGNUMERIC", "BOOL", "DATE", "DATETIME", "INT64", "NUMERIC", "STRING", "TIMESTAMP"),
)
"""Types that BigQuery takes in a primary key."""

COMMITTED_AT = "_penstock_committed_at"
"""The column of a replica table with the commit time of the row's newest change."""

KEY_COLUMNS = 16
"""The most columns of a primary key."""

# The names that BigQuery allows without its flexible column names, which the Storage Write API would need
# encoded.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}", re.ASCII)
_RESERVED = (
    "_TABLE_",
    "_FILE_",
    "_PARTITION",
    "_ROW_TIMESTAMP",
    "__ROOT__",
    "_COLIDENTIFIER",
    "_CHANGE_SEQUENCE_NUMBER",
    "_CHANGE_TYPE",
    "_CHANGE_TIMESTAMP",
)
"""Prefixes that no column name may have."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column of BigQuery: `type` in GoogleSQL, such as INT64; `mode` is NULLABLE, REQUIRED or REPEATED."""

    name: str
    type: str
    mode: str = "NULLABLE"


# Kinds that are not listed become STRING.
_TYPES = {
    Kind.BOOL: "BOOL",
    Kind.UINT64: "NUMERIC",
    Kind.FLOAT32: "FLOAT64",
    Kind.FLOAT64: "FLOAT64",
    Kind.JSON: "JSON",
    Kind.STRUCT: "JSON",
    Kind.BYTES: "BYTES",
    Kind.PROTO: "BYTES",
    Kind.DATE: "DATE",
    Kind.TIME: "TIME",
    Kind.TIMESTAMP: "TIMESTAMP",
    Kind.LOCAL_TIMESTAMP: "DATETIME",
}
_INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32")


def field_of(name: str, type_: ColumnType) -> Field:
    """Return the column of BigQuery for a column of the source."""
    if type_.kind is Kind.ARRAY:
        element = type_.element or ColumnType(Kind.OTHER)
        # REPEATED cannot be nested, and a STRUCT would have to declare its fields.
        if element.kind in (Kind.ARRAY, Kind.STRUCT):
            return Field(name, "JSON")
        return Field(name, _scalar(element), "REPEATED")
    return Field(name, _scalar(type_))


def _scalar(type_: ColumnType) -> str:
    if type_.kind in _INTEGERS:
        return "INT64"
    if type_.kind is Kind.DECIMAL:
        return _decimal(type_)
    return _TYPES.get(type_.kind, "STRING")


def _decimal(type_: ColumnType) -> str:
    # PostgreSQL's numeric without limits has more digits than any number of BigQuery.
    if type_.precision is None:
        return "STRING"
    scale = type_.scale or 0
    whole = type_.precision - scale
    # NUMERIC has 29 digits before the point and 9 after it; BIGNUMERIC has 38 and 38.
    if 0 <= scale <= 9 and whole <= 29:
        return "NUMERIC"
    return "BIGNUMERIC" if 0 <= scale <= 38 and whole <= 38 else "STRING"


_KNOWN = {
    "BOOL": ColumnType(Kind.BOOL),
    "INT64": ColumnType(Kind.INT64),
    "FLOAT64": ColumnType(Kind.FLOAT64),
    "NUMERIC": ColumnType(Kind.DECIMAL, "NUMERIC", 38, 9),
    "BIGNUMERIC": ColumnType(Kind.DECIMAL, "BIGNUMERIC", 76, 38),
    "JSON": ColumnType(Kind.JSON),
    "BYTES": ColumnType(Kind.BYTES),
    "DATE": ColumnType(Kind.DATE),
    "TIME": ColumnType(Kind.TIME),
    "TIMESTAMP": ColumnType(Kind.TIMESTAMP),
    "DATETIME": ColumnType(Kind.LOCAL_TIMESTAMP),
}
# BigQuery converts a column from the first to the second.
_WIDER = {("INT64", "FLOAT64"), ("NUMERIC", "BIGNUMERIC")}


def known_type(field: Field, source: ColumnType) -> ColumnType:
    """Return the type that a column of the target has, in terms of the source.

    The type of the source, if the column holds all of its values.
    """
    wanted = field_of(field.name, source)
    same_mode = (field.mode == "REPEATED") is (wanted.mode == "REPEATED")
    holds = same_mode and (field.type == wanted.type or (wanted.type, field.type) in _WIDER)
    if holds:
        return source
    # A type that this version does not know can still be written as text.
    known = _KNOWN.get(field.type, ColumnType(Kind.STRING, field.type))
    return ColumnType(Kind.ARRAY, element=known) if field.mode == "REPEATED" else known


def bad_name(names: Iterable[str]) -> str | None:
    """Return why columns with these names cannot be in one table, or None."""
    seen: set[str] = set()
    for name in names:
        if not _NAME.fullmatch(name) or name.upper().startswith(_RESERVED):
            return (
                f"column {name!r} has a name that BigQuery or the Storage Write API does not take: rename it with "
                "RenameColumns to letters, digits and underscores"
            )
        # BigQuery compares names of columns without case.
        if name.lower() in seen:
            return (
                f"column {name!r} differs from another one only by case, which BigQuery ignores: rename it with "
                "RenameColumns"
            )
        seen.add(name.lower())
    return None


def bad_key(schema: TableSchema) -> str | None:
    """Return why the key of the source cannot be a primary key of BigQuery, or None."""
    keys = schema.key_columns
    if len(keys) > KEY_COLUMNS:
        return f"the primary key has {len(keys)} columns, and BigQuery takes {KEY_COLUMNS}: use mode='log'"
    for column in keys:
        field = field_of(column.name, column.type)
        if field.mode == "REPEATED" or field.type not in KEY_TYPES:
            return (
                f"key column {column.name} would be {field.type}, which BigQuery does not take in a primary key: use "
                "mode='log', or convert the column before the sink"
            )
    return None


def converter(column: Column, nanoseconds: Nanoseconds) -> Convert:
    """Return the function from a value that is not None to the value of the row.

    The function raises ValueError for a value that BigQuery cannot hold. The text shows no value.
    """
    in_key = column.key_position is not None
    # A key that is cut could equal another key, and two rows would become one.
    convert = _of_type(column.name, column.type, nanoseconds == "truncate" and not in_key)

    def named(value: Any) -> Any:
        try:
            return convert(value)
        except (ValueError, OverflowError, TypeError) as error:
            # The message of another class may show the value.
            known = str(error) if type(error) is ValueError else "a value that BigQuery cannot hold"
            raise ValueError(f"column {column.name} has {known}") from None

    return named


def _of_type(name: str, type_: ColumnType, truncate: bool) -> Convert:
    kind = type_.kind
    if kind is Kind.ARRAY:
        element = type_.element or ColumnType(Kind.OTHER)
        if element.kind not in (Kind.ARRAY, Kind.STRUCT):
            return _array(_of_type(name, element, truncate))
    if kind in (Kind.ARRAY, Kind.STRUCT):
        return _json_of(name, type_)
    if kind is Kind.DECIMAL:
        # Without limits the column is STRING, which holds NaN and infinities too.
        return _any_decimal if _decimal(type_) == "STRING" else _finite_decimal
    make = _CONVERTERS.get(kind)
    return _same if make is None else make(truncate)


def _same(value: Any) -> Any:
    return value


def _array(convert: Convert) -> Convert:
    def converted(values: list[Any]) -> list[Any]:
        # BigQuery has no NULL in an array. Leaving it out would change the positions of the other elements.
        if any(each is None for each in values):
            raise ValueError("an array with NULL inside, which BigQuery does not have")
        # PostgreSQL does not declare dimensions, so only the value shows them.
        if any(isinstance(each, list) for each in values):
            raise ValueError("an array of more than one dimension, which BigQuery does not have")
        return [convert(each) for each in values]

    return converted


def _json_of(name: str, type_: ColumnType) -> Convert:
    schema = TableSchema((Column(name, type_),))

    def text(value: Any) -> str:
        # The function for whole images, so that values in JSON look the same in every sink.
        whole = image_json(schema, {name: value})
        return str(msgspec.json.decode(whole or "", type=dict[str, msgspec.Raw])[name], "utf-8")

    return text


def _any_decimal(value: Decimal) -> str:
    return str(value)


def _finite_decimal(value: Decimal | int) -> str:
    number = Decimal(value)
    if not number.is_finite():
        raise ValueError("NaN or an infinity, which NUMERIC and BIGNUMERIC do not have")
    # `str` would write an exponent, which NUMERIC does not take.
    return format(number, "f")


_YEAR_1 = -719_162  # days from 1970-01-01 to 0001-01-01
_YEAR_10000 = 2_932_897
_MICROS_PER_DAY = 86_400_000_000


def _date(_: bool) -> Convert:
    def days(value: int | float) -> int:
        # Only infinities are floats.
        if isinstance(value, float) or not _YEAR_1 <= value < _YEAR_10000:
            raise ValueError("a date outside of the years 1 to 9999")
        return value

    return days


def _micros(truncate: bool) -> Callable[[int], int]:
    def micros(value: int) -> int:
        whole, rest = divmod(value, 1000)
        if rest and not truncate:
            raise ValueError(
                "a time with nanoseconds, and BigQuery has microseconds (nanoseconds='truncate' cuts them, except in "
                "keys)"
            )
        return whole

    return micros


def _timestamp(truncate: bool) -> Convert:
    to_micros = _micros(truncate)

    def timestamp(value: int | float) -> int:
        if isinstance(value, float):
            raise ValueError("an infinite time")
        micros = to_micros(value)
        if not _YEAR_1 * _MICROS_PER_DAY <= micros < _YEAR_10000 * _MICROS_PER_DAY:
            raise ValueError("a time outside of the years 1 to 9999")
        return micros

    return timestamp


def _datetime(truncate: bool) -> Convert:
    timestamp = _timestamp(truncate)

    def text(value: int | float) -> str:
        moment = datetime(1970, 1, 1) + timedelta(microseconds=timestamp(value))
        return moment.isoformat(sep=" ", timespec="microseconds")

    return text


def _time(truncate: bool) -> Convert:
    to_micros = _micros(truncate)
    return lambda value: time_text(to_micros(value) * 1000)


def _interval(_: bool) -> Convert:
    def text(value: Any) -> str:
        if isinstance(value, float):
            raise ValueError("an infinite interval")
        return interval_text(value)

    return text


def _float(_: bool) -> Convert:
    return float


_CONVERTERS: dict[Kind, Callable[[bool], Convert]] = {
    Kind.FLOAT32: _float,
    Kind.FLOAT64: _float,
    Kind.UINT64: lambda _: _finite_decimal,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp,
    Kind.LOCAL_TIMESTAMP: _datetime,
    Kind.INTERVAL: _interval,
}
