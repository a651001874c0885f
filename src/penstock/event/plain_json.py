"""Images as JSON text, for rows of several tables that must have one layout. Pure.

The values are the plain ones (`penstock.event.plain_types`): decimals as text, bytes as base64, dates, times and
timestamps in ISO 8601 with microseconds, NaN and infinities as text. SQL's JSON functions read them, such as Spark's
`from_json`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from penstock.event.column_types import ColumnType, Kind
from penstock.event.model import Image, TableSchema
from penstock.event.plain_types import plain_images, plain_schema

_EPOCH, _DAY_ZERO = datetime(1970, 1, 1), date(1970, 1, 1)
encode_json = msgspec.json.Encoder(decimal_format="string", uuid_format="canonical").encode
"""Encodes what `json_values` returns."""


def image_json(schema: TableSchema, image: Image | None, *, nanoseconds: bool = False) -> str | None:
    """Return an image as a JSON object; None stays None.

    With `nanoseconds` a timestamp that has them is written with nine digits. Otherwise it is refused.

    Raises:
        ValueError: a timestamp has nanoseconds, or a date is outside of the years 1 to 9999.
    """
    if image is None:
        return None
    return encode_json(json_values(schema, image, nanoseconds=nanoseconds)).decode()


def json_values(schema: TableSchema, image: Image, *, nanoseconds: bool = False) -> dict[str, Any]:
    """Return the columns of an image as values for `encode_json`; see `image_json`."""
    plain = plain_images(schema)(image) or {}
    rules = _rules(schema, nanoseconds)
    return {
        name: rules[name](value) if value is not None and name in rules else value
        for name, value in plain.items()
    }


@lru_cache(maxsize=4096)
def _rules(schema: TableSchema, nanoseconds: bool) -> dict[str, Callable[[Any], Any]]:
    return {
        column.name: rule
        for column in plain_schema(schema)
        if (rule := _rule(column.name, column.type, nanoseconds))
    }


def _rule(name: str, type_: ColumnType, nanoseconds: bool) -> Callable[[Any], Any] | None:
    if type_.kind in (Kind.TIMESTAMP, Kind.LOCAL_TIMESTAMP):
        suffix = "Z" if type_.kind is Kind.TIMESTAMP else ""
        return lambda value: _moment(name, value, nanoseconds) + suffix
    if type_.kind is Kind.DATE:
        return lambda value: _date(name, value)
    if type_.kind in (Kind.FLOAT32, Kind.FLOAT64):
        return lambda value: value if math.isfinite(value) else str(value)
    if type_.kind is Kind.ARRAY and type_.element and (inner := _rule(name, type_.element, nanoseconds)):
        return lambda values: [None if each is None else inner(each) for each in values]
    if type_.kind is Kind.STRUCT:
        rules = {field.name: rule for field in type_.fields if (rule := _rule(name, field.type, nanoseconds))}
        return lambda value: {
            field: rules[field](each) if field in rules and each is not None else each
            for field, each in value.items()
        }
    return None


def _moment(name: str, value: Any, nanoseconds: bool) -> str:
    refused = ValueError(f"column {name} has a timestamp with nanoseconds or outside of the years 1 to 9999")
    rest = value % 1000  # NaN for an infinite timestamp of PostgreSQL
    if rest and not (nanoseconds and isinstance(value, int)):
        raise refused
    try:
        text = (_EPOCH + timedelta(microseconds=value // 1000)).isoformat(timespec="microseconds")
    except OverflowError:
        raise refused from None
    return f"{text}{rest:03d}" if rest else text


def _date(name: str, days: Any) -> str:
    try:
        return (_DAY_ZERO + timedelta(days=days)).isoformat()
    except (OverflowError, ValueError, TypeError):
        raise ValueError(f"column {name} has a date outside of the years 1 to 9999") from None
