"""Columns as types that Parquet, Avro, Delta, Iceberg, Spark, DuckDB and BigQuery all have. Pure.

| kind | plain kind | value |
|---|---|---|
| INT8, INT16, UINT8, UINT16 | INT32 | the same |
| UINT32 | INT64 | the same |
| UINT64 | DECIMAL(20, 0) | the same |
| DECIMAL of up to 38 digits | the same | the same; NaN and infinities are refused |
| other DECIMAL | STRING | all digits |
| JSON, ENUM, UUID, OTHER | STRING | the same |
| PROTO | BYTES | the same |
| TIME | STRING | ``HH:MM:SS``, with as many digits of the fraction as are not zero |
| INTERVAL | STRING | ISO 8601, such as ``P1Y2M3DT4.5S`` |
| ARRAY, STRUCT | the same, of plain types; STRING for a STRUCT without fields | ``{}`` |

All other kinds stay. Timestamps are in microseconds: one with nanoseconds is refused, because none of the engines that
read the files has them, and a rounded key could be another key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from penstock.event.column_types import ColumnType, Field, Interval, Kind
from penstock.event.model import ChangeEvent, Image, TableSchema
from penstock.event.replica import encode_version

DIGITS = 38
"""The most digits of a decimal number in Spark, Delta and Iceberg."""

Convert = Callable[[Any], Any]

_KINDS = {
    Kind.INT8: Kind.INT32,
    Kind.INT16: Kind.INT32,
    Kind.UINT8: Kind.INT32,
    Kind.UINT16: Kind.INT32,
    Kind.UINT32: Kind.INT64,
    Kind.JSON: Kind.STRING,
    Kind.ENUM: Kind.STRING,
    Kind.UUID: Kind.STRING,
    Kind.OTHER: Kind.STRING,
    Kind.PROTO: Kind.BYTES,
    Kind.TIME: Kind.STRING,
    Kind.INTERVAL: Kind.STRING,
}


def plain_type(type_: ColumnType) -> ColumnType:
    """Return the plain type of a column."""
    kind = type_.kind
    if kind in _KINDS:
        return ColumnType(_KINDS[kind])
    if kind is Kind.UINT64:
        return ColumnType(Kind.DECIMAL, precision=20, scale=0)
    if kind is Kind.DECIMAL:
        if (
            type_.precision is None
            or type_.precision > DIGITS
            or not 0 <= (type_.scale or 0) <= type_.precision
        ):
            return ColumnType(Kind.STRING)
        return ColumnType(Kind.DECIMAL, precision=type_.precision, scale=type_.scale or 0)
    if kind is Kind.ARRAY:
        return ColumnType(Kind.ARRAY, element=plain_type(type_.element or ColumnType(Kind.OTHER)))
    if kind is Kind.STRUCT:
        if not type_.fields:  # Parquet has no struct without fields
            return ColumnType(Kind.STRING)
        return ColumnType(
            Kind.STRUCT, fields=tuple(Field(each.name, plain_type(each.type)) for each in type_.fields)
        )
    return ColumnType(kind)


def plain_value(type_: ColumnType) -> Convert | None:
    """Return the function from a value that is not None to its plain value; None: it stays as it is."""
    match type_.kind:
        case Kind.UINT64:
            return Decimal
        case Kind.TIME:
            return time_text
        case Kind.INTERVAL:
            return interval_text
        case Kind.DECIMAL if plain_type(type_).kind is Kind.STRING:
            return str
        case Kind.ARRAY if type_.element is not None:
            element = plain_value(type_.element)
            return element and (lambda values: [None if each is None else element(each) for each in values])
        case Kind.STRUCT:
            if not type_.fields:
                return lambda value: "{}"
            rules = {each.name: rule for each in type_.fields if (rule := plain_value(each.type))}
            return _by_field(rules) if rules else None
    return None


@lru_cache(maxsize=4096)
def plain_schema(schema: TableSchema) -> TableSchema:
    """Return the columns with plain types."""
    return TableSchema(tuple(msgspec.structs.replace(each, type=plain_type(each.type)) for each in schema))


@lru_cache(maxsize=4096)
def plain_images(schema: TableSchema) -> Callable[[Image | None], Image | None]:
    """Return the function from an image to the image with plain values; columns that need no change are not touched."""
    rules = {column.name: rule for column in schema if (rule := plain_value(column.type)) is not None}

    def convert(image: Image | None) -> Image | None:
        if image is None:
            return None
        changed = {
            name: rules[name](image[name]) for name in image.keys() & rules.keys() if image[name] is not None
        }
        return image | changed if changed else image

    return convert


def event_metadata(event: ChangeEvent) -> dict[str, Any]:
    """Return what a change row says of an event besides its operation, time and images."""
    return {name: values[0] for name, values in metadata_columns([event]).items()}


def metadata_columns(events: Sequence[ChangeEvent]) -> dict[str, list[Any]]:
    """Return the same of many events, by the name of the field: a value for each event."""
    sources = [event.source for event in events]
    versions = [event.version for event in events]
    transactions = [event.transaction for event in events]
    messages = [event.message for event in events]
    return {
        "system": [each.system for each in sources],
        "server": [each.server for each in sources],
        "database": [each.database for each in sources],
        "schema": [each.schema for each in sources],
        "table": [each.table for each in sources],
        "stream": [each.stream for each in sources],
        "version": [encode_version(each) for each in versions],
        "order": [each.order for each in versions],
        "transaction": [each.transaction for each in versions],
        "sequence": [each.sequence for each in versions],
        "index": [each.index for each in versions],
        "not_sent": [list(event.unavailable) for event in events],
        "records_in_transaction": [each and each.records for each in transactions],
        "transaction_tag": [each and each.tag for each in transactions],
        "system_transaction": [each and each.system for each in transactions],
        "user": [event.user for event in events],
        "message_prefix": [each and each.prefix for each in messages],
        "message": [each and each.content for each in messages],
    }


def time_text(nanoseconds: int) -> str:
    """Return a time of day as ``HH:MM:SS.fraction``."""
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{hour:02d}:{minute:02d}:{second:02d}{digits}"


def interval_text(interval: Interval) -> str:
    """Return an interval in ISO 8601."""
    months, days, nanoseconds = interval.parts()
    date = f"{months}M" if months else ""
    date += f"{days}D" if days else ""
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    seconds, fraction = divmod(rest, 1_000_000_000)
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    time = f"T{sign}{seconds}{digits}S" if nanoseconds else ""
    return f"P{date}{time}" if date or time else "PT0S"


def _by_field(rules: dict[str, Convert]) -> Convert:
    def convert(value: dict[str, Any]) -> dict[str, Any]:
        return {
            name: rules[name](each) if name in rules and each is not None else each
            for name, each in value.items()
        }

    return convert
