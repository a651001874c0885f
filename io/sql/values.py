"""Values of the event model as the text that PostgreSQL reads, and the column type for each. Pure.

| kind | PostgreSQL |
|---|---|
| BOOL | boolean |
| INT8, INT16, UINT8 | smallint |
| INT32, UINT16 | integer |
| INT64, UINT32 | bigint |
| UINT64 | numeric(20) |
| FLOAT32, FLOAT64 | real, double precision |
| DECIMAL | numeric, with the source's precision and scale |
| STRING, ENUM, OTHER | text |
| BYTES, PROTO | bytea |
| DATE, TIME | date, time |
| TIMESTAMP, LOCAL_TIMESTAMP | timestamptz, timestamp |
| INTERVAL | interval |
| JSON, STRUCT | jsonb |
| UUID | uuid |
| ARRAY | array of the element's type |

PostgreSQL's times have microseconds. Nothing is rounded: a value with nanoseconds raises `ValueError`, unless the
column is of a text type, which takes all digits. A value that the column cannot hold is refused by the server.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from penstock.event.column_types import ColumnType, Interval, Kind
from penstock.event.model import Image, TableSchema
from penstock.timestamps import NANOS

Text = Callable[[Any], str]

_PLAIN = {
    Kind.BOOL: "boolean",
    Kind.INT8: "smallint",
    Kind.INT16: "smallint",
    Kind.INT32: "integer",
    Kind.INT64: "bigint",
    Kind.UINT8: "smallint",
    Kind.UINT16: "integer",
    Kind.UINT32: "bigint",
    Kind.UINT64: "numeric(20,0)",
    Kind.FLOAT32: "real",
    Kind.FLOAT64: "double precision",
    Kind.STRING: "text",
    Kind.ENUM: "text",
    Kind.OTHER: "text",
    Kind.BYTES: "bytea",
    Kind.PROTO: "bytea",
    Kind.DATE: "date",
    Kind.TIME: "time without time zone",
    Kind.TIMESTAMP: "timestamp with time zone",
    Kind.LOCAL_TIMESTAMP: "timestamp without time zone",
    Kind.INTERVAL: "interval",
    Kind.JSON: "jsonb",
    Kind.STRUCT: "jsonb",
    Kind.UUID: "uuid",
}
_TEXT_TYPES = ("text", "character varying", "character")


def sql_type(type_: ColumnType) -> str:
    """Return the type of a new column, in the words of PostgreSQL's `format_type`."""
    if type_.kind is Kind.ARRAY:
        return f"{sql_type(type_.element) if type_.element else 'text'}[]"
    if type_.kind is Kind.DECIMAL:
        precision, scale = type_.precision, type_.scale or 0
        # PostgreSQL limits both; a wider number fits into a numeric without limits.
        if precision is None or precision > 1000 or not 0 <= scale <= precision:
            return "numeric"
        return f"numeric({precision},{scale})"
    return _PLAIN[type_.kind]


@lru_cache(maxsize=4096)
def text_writer(type_: ColumnType, sql: str) -> Text:
    """Return the function from a value to its text, for a column with the type `sql`."""
    if type_.kind is Kind.ARRAY and type_.element is not None and sql.endswith("[]"):
        return _array(text_writer(type_.element, sql.removesuffix("[]")))
    if type_.kind in (Kind.ARRAY, Kind.STRUCT):
        return lambda value: json_text(json_value(value))
    nanos = sql.startswith(_TEXT_TYPES)
    return _TIMES[type_.kind](nanos) if type_.kind in _TIMES else _WRITERS.get(type_.kind, _any)


def json_image(schema: TableSchema, image: Image | None) -> str | None:
    """Return an image as a JSON object: numbers of any size as numbers, bytes in base64, times as ISO 8601 text."""
    if image is None:
        return None
    types = {column.name: column.type for column in schema}
    return json_text({name: json_value(value, types.get(name)) for name, value in image.items()})


def json_value(value: Any, type_: ColumnType | None = None) -> Any:
    """Return what a JSON encoder accepts; NaN and infinities become text."""
    if value is None:
        return None
    if type_ is not None:
        if type_.kind is Kind.ARRAY and isinstance(value, list):
            return [json_value(each, type_.element) for each in value]
        if type_.kind is Kind.STRUCT and isinstance(value, dict):
            types = {field.name: field.type for field in type_.fields}
            return {name: json_value(each, types.get(name)) for name, each in value.items()}
        if type_.kind is Kind.JSON:
            return msgspec.Raw(value.encode())
        if type_.kind in _TIMES:
            return _TIMES[type_.kind](True)(value)
    if isinstance(value, dict):
        return {name: json_value(each) for name, each in value.items()}
    if isinstance(value, list):
        return [json_value(each) for each in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Interval):
        return _interval(True)(value)
    if isinstance(value, bool | int | str):
        return value
    # A Decimal has more digits than a double, and JSON has no NaN.
    return _any(value) if not math.isfinite(value) else msgspec.Raw(_any(value).encode())


def json_text(value: Any) -> str:
    """Return a value of `json_value` as JSON."""
    return _json.encode(value).decode()


_json = msgspec.json.Encoder()


def _any(value: Any) -> str:
    return str(value)


def _bool(value: bool) -> str:
    return "t" if value else "f"


def _bytes(value: bytes) -> str:
    return "\\x" + value.hex()


def _float(value: float) -> str:
    return repr(value) if math.isfinite(value) else _infinity(value)


def _infinity(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinity" if value > 0 else "-infinity"


def _date(nanos: bool) -> Text:
    return _date_text


def _date_text(value: int | float) -> str:
    if isinstance(value, float):
        return _infinity(value)
    day, era = _day_and_era(value)
    return day + era


def _timestamp(zone: str) -> Callable[[bool], Text]:
    def with_precision(nanos: bool) -> Text:
        def text(value: int | float) -> str:
            if isinstance(value, float):
                return _infinity(value)
            days, rest = divmod(value, 86_400 * NANOS)
            day, era = _day_and_era(days)
            return f"{day} {_clock(rest, nanos)}{zone}{era}"

        return text

    return with_precision


def _time(nanos: bool) -> Text:
    return lambda value: _clock(value, nanos)


def _clock(value: int, nanos: bool) -> str:
    seconds, fraction = divmod(value, NANOS)
    digits = f"{fraction:09d}" if nanos else f"{_microseconds(fraction):06d}"
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{digits}"


def _interval(nanos: bool) -> Callable[[Interval | float], str]:
    def text(value: Interval | float) -> str:
        if not isinstance(value, Interval):
            return _infinity(value)
        # Of the absolute value: the fraction of a negative number would count in the other direction.
        whole, fraction = divmod(abs(value.nanoseconds), NANOS)
        digits = f"{fraction:09d}" if nanos else f"{_microseconds(fraction):06d}"
        sign = "-" if value.nanoseconds < 0 else ""
        return f"{value.months} mons {value.days} days {sign}{whole}.{digits} secs"

    return text


def _microseconds(nanos: int) -> int:
    whole, rest = divmod(nanos, 1000)
    if rest:
        raise ValueError("the value has nanoseconds, and the column has microseconds: make it a text column")
    return whole


def _day_and_era(days: int) -> tuple[str, str]:
    """Return ``YYYY-MM-DD`` and the era, for any number of days since 1970: PostgreSQL has years beyond 1 to 9999.

    Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
    """
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    year = year_of_era + era * 400 + (month <= 2)
    # There is no year 0 in SQL: the year before 1 is 1 BC.
    return (
        (f"{year:04d}-{month:02d}-{day:02d}", "")
        if year > 0
        else (f"{1 - year:04d}-{month:02d}-{day:02d}", " BC")
    )


def _array(element: Text) -> Text:
    def text(value: list[Any]) -> str:
        return "{" + ",".join(map(part, value)) + "}"

    def part(value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, list):
            return text(value)
        # Each element is quoted, so none is taken for NULL, a brace or a delimiter.
        escaped = element(value).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'

    return text


_WRITERS: dict[Kind, Text] = {
    Kind.BOOL: _bool,
    Kind.BYTES: _bytes,
    Kind.PROTO: _bytes,
    Kind.FLOAT32: _float,
    Kind.FLOAT64: _float,
}
_TIMES: dict[Kind, Callable[[bool], Text]] = {
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp("+00"),
    Kind.LOCAL_TIMESTAMP: _timestamp(""),
    Kind.INTERVAL: _interval,
}
