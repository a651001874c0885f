"""Columns in Debezium's types: the value in JSON, and its schema of Kafka Connect. Pure.

Source: Debezium documentation, "Debezium connector for PostgreSQL", Data type mappings; Kafka Connect,
`JsonConverter`.
"""

from __future__ import annotations

import math
from base64 import b64encode, urlsafe_b64encode
from binascii import b2a_base64
from collections.abc import Callable
from datetime import date
from decimal import MAX_PREC, Context, Decimal
from typing import Any, Literal

import msgspec

from penstock.event import Column, ColumnType, Interval, Kind
from penstock.timestamps import NANOS
from penstock.transforms.formats.value_text import fraction, interval_text, time_text, whole_second

Convert = Callable[[Any], Any]
Schema = dict[str, Any]


class TypeModes(msgspec.Struct, frozen=True):
    """How types are shown; names and values are those of Debezium's configuration."""

    decimal_handling_mode: Literal["precise", "double", "string"] = "precise"
    time_precision_mode: Literal[
        "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
    ] = "adaptive"
    binary_handling_mode: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    interval_handling_mode: Literal["numeric", "string"] = "numeric"


class Mapping(msgspec.Struct, frozen=True):
    """A column type in Debezium: its schema, and the function from Python value to JSON value (None: no change)."""

    schema: Schema
    convert: Convert | None = None


_INTEGERS = {
    Kind.INT8: "int16",  # Debezium has no int8 column
    Kind.INT16: "int16",
    Kind.INT32: "int32",
    Kind.INT64: "int64",
    Kind.UINT8: "int16",
    Kind.UINT16: "int32",
    Kind.UINT32: "int64",
    Kind.UINT64: "int64",
}

# The documented values of PostgreSQL's infinite timestamps, in every unit.
INFINITE, MINUS_INFINITE = 9223372036825200000, -9223372036832400000
INFINITE_DAY = 2**31 - 1

EXACT = Context(prec=MAX_PREC, Emax=999_999, Emin=-999_999)
"""No rounding: PostgreSQL's numeric has more digits than the 28 of Python's default context."""


def mapping(type_: ColumnType, modes: TypeModes) -> Mapping:
    """Return how a column of this type is shown."""
    kind = type_.kind
    if kind in _INTEGERS:
        return Mapping({"type": _INTEGERS[kind]})
    match kind:
        case Kind.BOOL:
            return Mapping({"type": "boolean"})
        case Kind.FLOAT32 | Kind.FLOAT64:
            return Mapping({"type": "float" if kind is Kind.FLOAT32 else "double"}, _finite)
        case Kind.DECIMAL:
            return _decimal(type_, modes.decimal_handling_mode)
        case Kind.BYTES | Kind.PROTO:
            return _binary(modes.binary_handling_mode)
        case Kind.DATE:
            return _date(modes.time_precision_mode)
        case Kind.TIME:
            return _time(type_, modes.time_precision_mode)
        case Kind.LOCAL_TIMESTAMP:
            return _local_timestamp(type_, modes.time_precision_mode)
        case Kind.TIMESTAMP:
            return Mapping(_named("string", "io.debezium.time.ZonedTimestamp"), _zoned_timestamp)
        case Kind.INTERVAL if modes.interval_handling_mode == "string":
            return Mapping(_named("string", "io.debezium.time.Interval"), interval_text)
        case Kind.INTERVAL:
            return Mapping(_named("int64", "io.debezium.time.MicroDuration"), _interval_microseconds)
        case Kind.ARRAY:
            return _array(type_, modes)
        case Kind.STRUCT:
            return _struct(type_, modes)
        case Kind.JSON:
            return Mapping(_named("string", "io.debezium.data.Json"))
        case Kind.UUID:
            return Mapping(_named("string", "io.debezium.data.Uuid"))
        case Kind.ENUM:
            return Mapping(_named("string", "io.debezium.data.Enum"))
    return Mapping({"type": "string"})


def field_schema(column: Column, type_schema: Schema, *, optional: bool | None = None) -> Schema:
    """Return the Connect schema of a column from that of its type, with the members in the order of JsonConverter."""
    schema = dict(type_schema)
    kind = schema.pop("type")
    nullable = column.nullable is not False and column.key_position is None
    return {
        "type": kind,
        "optional": nullable if optional is None else optional,
        **schema,
        "field": column.name,
    }


def _named(kind: str, name: str, version: int = 1, **members: Any) -> Schema:
    return {"type": kind, "name": name, "version": version, **members}


def _finite(value: float) -> float | str:
    """Kafka Connect writes NaN and infinities as text. `value - value` is 0.0 for finite numbers only."""
    if value - value == 0.0:
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(type_: ColumnType, mode: str) -> Mapping:
    if mode == "string":
        return Mapping({"type": "string"}, str)
    if mode == "double":
        return Mapping({"type": "double"}, lambda value: _finite(float(value)))
    if type_.scale is None:
        struct = _named("struct", "io.debezium.data.VariableScaleDecimal")
        struct["fields"] = [
            {"type": "int32", "optional": False, "field": "scale"},
            {"type": "bytes", "optional": False, "field": "value"},
        ]
        return Mapping(struct, _variable_scale)
    scale = type_.scale
    parameters = {"scale": str(scale)}
    if type_.precision is not None:
        parameters["connect.decimal.precision"] = str(type_.precision)
    schema = _named("bytes", "org.apache.kafka.connect.data.Decimal", parameters=parameters)
    return Mapping(schema, lambda value: _unscaled(value, scale))


def _variable_scale(value: Decimal) -> dict[str, Any]:
    exponent = value.as_tuple().exponent
    scale = max(0, -exponent) if isinstance(exponent, int) else 0
    return {"scale": scale, "value": _unscaled(value, scale)}


def _unscaled(value: Decimal, scale: int) -> str:
    """Return base64 of the value times 10**scale, as the shortest two's complement, big-endian.

    Raises:
        ValueError: NaN, an infinity, or more digits after the point than the scale.
    """
    if not value.is_finite():
        raise ValueError("NaN and infinities do not fit decimal_handling_mode=precise: use string or double")
    scaled = value.scaleb(scale, EXACT)
    number = int(scaled)
    if number != scaled:
        raise ValueError(
            f"a number has more than the {scale} digits after the point that its column declares"
        )
    length = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return b2a_base64(number.to_bytes(length, "big", signed=True), newline=False).decode()


def _binary(mode: str) -> Mapping:
    if mode == "bytes":
        return Mapping({"type": "bytes"})  # msgspec writes bytes as base64, as JsonConverter does
    if mode == "base64":
        return Mapping({"type": "string"}, lambda value: b64encode(value).decode())
    if mode == "base64-url-safe":
        return Mapping({"type": "string"}, lambda value: urlsafe_b64encode(value).decode())
    return Mapping({"type": "string"}, bytes.hex)


def _date(mode: str) -> Mapping:
    if mode == "isostring":
        return Mapping(_named("string", "io.debezium.time.IsoDate"), lambda days: f"{_iso_date(days)}Z")
    name = "org.apache.kafka.connect.data.Date" if mode == "connect" else "io.debezium.time.Date"
    return Mapping(_named("int32", name), _days)


def _days(value: float) -> int:
    if value - value == 0:
        return int(value)
    return INFINITE_DAY if value > 0 else -INFINITE_DAY - 1


def _iso_date(days: float) -> str:
    if days - days != 0:
        return "infinity" if days > 0 else "-infinity"
    return date.fromordinal(int(days) + date(1970, 1, 1).toordinal()).isoformat()


def _time(type_: ColumnType, mode: str) -> Mapping:
    if mode == "isostring":
        return Mapping(_named("string", "io.debezium.time.IsoTime"), _iso_time)
    if mode == "connect":
        return Mapping(
            _named("int32", "org.apache.kafka.connect.data.Time"), lambda value: value // 1_000_000
        )
    if mode == "nanoseconds":
        return Mapping(_named("int64", "io.debezium.time.NanoTime"))
    if mode == "adaptive" and _digits(type_) <= 3:
        return Mapping(_named("int32", "io.debezium.time.Time"), lambda value: value // 1_000_000)
    return Mapping(_named("int64", "io.debezium.time.MicroTime"), lambda value: value // 1_000)


def _iso_time(value: int) -> str:
    return f"{time_text(value)}Z"


def _local_timestamp(type_: ColumnType, mode: str) -> Mapping:
    if mode == "isostring":
        return Mapping(_named("string", "io.debezium.time.IsoTimestamp"), _zoned_timestamp)
    if mode == "connect":
        return Mapping(_named("int64", "org.apache.kafka.connect.data.Timestamp"), _in_units(1_000_000))
    digits = _digits(type_)
    if mode == "nanoseconds" or (mode.startswith("adaptive") and digits > 6):
        return Mapping(_named("int64", "io.debezium.time.NanoTimestamp"), _in_units(1))
    if mode.startswith("adaptive") and digits <= 3:
        return Mapping(_named("int64", "io.debezium.time.Timestamp"), _in_units(1_000_000))
    return Mapping(_named("int64", "io.debezium.time.MicroTimestamp"), _in_units(1_000))


def _in_units(nanoseconds: int) -> Convert:
    def convert(value: float) -> int:
        if value - value == 0:
            return int(value // nanoseconds)
        return INFINITE if value > 0 else MINUS_INFINITE

    return convert


def _digits(type_: ColumnType) -> int:
    """Return the digits of a second that the type keeps; `scale` says so for times and timestamps."""
    return 6 if type_.scale is None else type_.scale


def _zoned_timestamp(value: float) -> str:
    """Return RFC 3339 in UTC with as many digits after the point as are needed, which is how Java writes it."""
    if value - value != 0:
        return "infinity" if value > 0 else "-infinity"
    seconds, nanos = divmod(int(value), NANOS)
    return f"{whole_second(seconds)}{fraction(nanos)}Z"


def _interval_microseconds(value: Interval) -> int:
    # A month is 365.25 / 12 days, as Debezium documents.
    days = value.months * 365.25 / 12 + value.days
    return round(days * 86_400_000_000) + value.nanoseconds // 1000


def _array(type_: ColumnType, modes: TypeModes) -> Mapping:
    element = mapping(type_.element or ColumnType(Kind.OTHER), modes)
    items = dict(element.schema)
    schema = {"type": "array", "items": {"type": items.pop("type"), "optional": True, **items}}
    convert = element.convert
    if convert is None:
        return Mapping(schema)
    return Mapping(schema, lambda values: [None if value is None else convert(value) for value in values])


def _struct(type_: ColumnType, modes: TypeModes) -> Mapping:
    inner = {field.name: mapping(field.type, modes) for field in type_.fields}
    fields = [
        {
            "type": each.schema["type"],
            "optional": True,
            **{k: v for k, v in each.schema.items() if k != "type"},
            "field": name,
        }
        for name, each in inner.items()
    ]

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        shown = {}
        for name, each in value.items():
            rule = inner[name].convert if name in inner else None
            shown[name] = each if each is None or rule is None else rule(each)
        return shown

    return Mapping({"type": "struct", "fields": fields}, convert)
