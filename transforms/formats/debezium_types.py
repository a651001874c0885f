"""Columns in Debezium's types: the value of Kafka Connect, and its schema. Pure.

Values are those that a converter gets: bytes and decimals are `bytes` (JSON shows them as base64).

Source: Debezium documentation, "Debezium connector for PostgreSQL", Data type mappings; Kafka Connect,
`JsonConverter`.
"""

from __future__ import annotations

import math
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import MAX_PREC, Context, Decimal
from functools import lru_cache
from typing import Any, Literal

import msgspec

from penstock.event import Column, ColumnType, Interval, Kind
from penstock.timestamps import EPOCH, NANOS
from penstock.transforms.formats.value_text import interval_text, iso_date, time_text, whole_second

Convert = Callable[[Any], Any]
Schema = dict[str, Any]


class TypeModes(msgspec.Struct, frozen=True):
    """How types are shown, with the names and values of Debezium's configuration."""

    decimal_handling_mode: Literal["precise", "double", "string"] = "precise"
    time_precision_mode: Literal[
        "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
    ] = "adaptive"
    binary_handling_mode: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    interval_handling_mode: Literal["numeric", "string"] = "numeric"
    hstore_handling_mode: Literal["json", "map"] = "json"


class Mapping(msgspec.Struct, frozen=True):
    """A column type in Debezium: its schema, and the function from Python value to Connect value (None: no change)."""

    schema: Schema
    convert: Convert | None = None


_INTEGERS = {
    Kind.INT8: "int16",  # Debezium has no int8 column
    Kind.INT16: "int16",
    Kind.INT32: "int32",
    Kind.INT64: "int64",
    # One size larger each: Connect has no unsigned integers.
    Kind.UINT8: "int16",
    Kind.UINT16: "int32",
    Kind.UINT32: "int64",
    # No larger type exists. Values beyond 63 bits raise, see `int64`.
    Kind.UINT64: "int64",
}

# The documented values of PostgreSQL's infinite timestamps, in microseconds.
INFINITE, MINUS_INFINITE = 9223372036825200000, -9223372036832400000
INFINITE_DAY = 2**31 - 1

EXACT = Context(prec=MAX_PREC, Emax=999_999, Emin=-999_999)
"""No rounding: PostgreSQL's numeric has more digits than the 28 of Python's default context."""


Nested = Literal["kept", "null", "refused"]
"""How an array in an array is shown. No schema has one, because PostgreSQL does not declare dimensions."""


def int64(value: int, remedy: str) -> int:
    """Return an integer that the schema declares as int64.

    Raises:
        ValueError: it has more than 64 bits, and a consumer that reads it would wrap it silently.
    """
    if -(2**63) <= value < 2**63:
        return value
    raise ValueError(f"the number does not fit the 64 bits that the schema declares: {remedy}")


def mapping(
    type_: ColumnType,
    modes: TypeModes,
    as_json: bool = True,
    *,
    nested: Nested = "kept",
    bounded: bool = True,
) -> Mapping:
    """Return how a column of this type is shown.

    Args:
        type_: The type.
        modes: The options.
        as_json: For JSON, which has no NaN and no infinities.
        nested: How an array in an array is shown.
        bounded: Whether integers beyond 64 bits are refused. Without a schema, JSON can hold any integer.
    """
    kind = type_.kind
    if kind is Kind.UINT64 and bounded:
        return Mapping({"type": "int64"}, lambda value: int64(value, _LEAVE_OUT))
    if kind in _INTEGERS:
        return Mapping({"type": _INTEGERS[kind]})
    match kind:
        case Kind.BOOL:
            return Mapping({"type": "boolean"})
        case Kind.FLOAT32 | Kind.FLOAT64:
            name = "float" if kind is Kind.FLOAT32 else "double"
            return Mapping({"type": name}, json_float if as_json else None)
        case Kind.DECIMAL:
            return _decimal(type_, modes.decimal_handling_mode, as_json)
        case Kind.BYTES | Kind.PROTO:
            return _binary(modes.binary_handling_mode)
        case Kind.DATE:
            return _date(modes.time_precision_mode)
        case Kind.TIME:
            return _time(type_, modes.time_precision_mode)
        case Kind.LOCAL_TIMESTAMP:
            return _local_timestamp(type_, modes.time_precision_mode, bounded)
        case Kind.TIMESTAMP:
            convert = _zoned_json if as_json else _zoned_timestamp
            return Mapping(_named("string", "io.debezium.time.ZonedTimestamp"), convert)
        case Kind.INTERVAL if modes.interval_handling_mode == "string":
            return Mapping(_named("string", "io.debezium.time.Interval"), interval_text)
        case Kind.INTERVAL:
            schema = _named("int64", "io.debezium.time.MicroDuration")
            return Mapping(schema, _interval_microseconds if bounded else _any_interval_microseconds)
        case Kind.ARRAY:
            element = type_.element or ColumnType(Kind.OTHER)
            return array_mapping(
                mapping(element, modes, as_json, nested=nested, bounded=bounded), nested=nested
            )
        case Kind.STRUCT:
            return _struct(type_, modes, as_json, nested, bounded)
        case Kind.JSON:
            return Mapping(_named("string", "io.debezium.data.Json"))
        case Kind.UUID:
            return Mapping(_named("string", "io.debezium.data.Uuid"))
        case Kind.ENUM:
            return Mapping(_named("string", "io.debezium.data.Enum"))
    # Types of extensions and other systems keep the text of their source.
    return Mapping({"type": "string"})


def field_schema(column: Column, type_schema: Schema, *, optional: bool | None = None) -> Schema:
    """Return the Connect schema of a column from the schema of its type, with the members in the order of
    JsonConverter.

    A column of the key is optional only if the source says that it may be NULL.
    """
    schema = dict(type_schema)
    # A key is never NULL unless the source says so: Spanner allows it, PostgreSQL does not.
    nullable = column.nullable is True or (column.nullable is None and column.key_position is None)
    return {**ordered_schema(schema, nullable if optional is None else optional), "field": column.name}


def ordered_schema(schema: Schema, optional: bool) -> Schema:
    """Return a schema with `optional` where JsonConverter writes it: after the type and its parts."""
    # In the order of JsonConverter, so that records with schemas are equal byte by byte.
    names = ("type", "fields", "items", "keys", "values")
    parts: Schema = {name: schema[name] for name in names if name in schema}
    return {**parts, "optional": optional, **schema}


def _named(kind: str, name: str, version: int = 1, **members: Any) -> Schema:
    return {"type": kind, "name": name, "version": version, **members}


def json_float(value: float) -> float | str:
    """Kafka Connect writes NaN and infinities as text. `value - value` is 0.0 for finite numbers only."""
    if value - value == 0.0:
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(type_: ColumnType, mode: str, as_json: bool) -> Mapping:
    if mode == "string":
        return Mapping({"type": "string"}, plain_decimal)
    if mode == "double":
        return Mapping({"type": "double"}, (lambda value: json_float(float(value))) if as_json else float)
    # PostgreSQL's numeric without a precision: each value has its own scale, so the scale travels with it.
    if type_.scale is None:
        struct = _named("struct", "io.debezium.data.VariableScaleDecimal", doc="Variable scaled decimal")
        struct["fields"] = [
            {"type": "int32", "optional": False, "field": "scale"},
            {"type": "bytes", "optional": False, "field": "value"},
        ]
        return Mapping(struct, _variable_scale)
    scale = type_.scale
    parameters = {"scale": str(scale)}
    # A parameter of Confluent's converters, which Avro's decimal needs.
    if type_.precision is not None:
        parameters["connect.decimal.precision"] = str(type_.precision)
    schema = _named("bytes", "org.apache.kafka.connect.data.Decimal", parameters=parameters)
    return Mapping(schema, unscaled(scale))


def plain_decimal(value: Decimal) -> str:
    """Return a decimal without an exponent, as Java's `toPlainString` and Spanner do; `str` would return 1E-9."""
    return format(value, "f")


def _variable_scale(value: Decimal) -> dict[str, Any]:
    exponent = value.as_tuple().exponent
    # A Decimal with a positive exponent has zeros before the point, which a scale of 0 shows.
    scale = max(0, -exponent) if isinstance(exponent, int) else 0
    return {"scale": scale, "value": unscaled(scale)(value)}


@lru_cache(maxsize=256)
def unscaled(scale: int) -> Callable[[Decimal], bytes]:
    """Return the function from a decimal to its value times 10**scale: the shortest two's complement, big-endian.

    It raises a ValueError for NaN, an infinity, or more digits after the point than the scale.
    """
    # PostgreSQL has negative scales, and ten to a negative power is a float.
    factor, divisor = 10 ** max(scale, 0), 10 ** max(-scale, 0)

    def convert(value: Decimal) -> bytes:
        try:
            # Integers are computed and compared in two thirds of the time of Decimals, and without rounding.
            numerator, denominator = value.as_integer_ratio()
        except (ValueError, OverflowError):
            raise ValueError(
                "NaN and infinities do not fit decimal_handling_mode=precise: use decimal_handling_mode=string or "
                "double (debezium.decimal_handling_mode in a job), or send refused events to dead letters"
            ) from None
        number, rest = divmod(numerator * factor, denominator * divisor)
        if rest:
            raise ValueError(
                f"a number has more than the {scale} digits after the point that its column declares"
            )
        if number >= 0:
            return number.to_bytes(number.bit_length() // 8 + 1, "big")
        # A negative power of two needs one bit less than its absolute value.
        return number.to_bytes((~number).bit_length() // 8 + 1, "big", signed=True)

    return convert


def _binary(mode: str) -> Mapping:
    if mode == "bytes":
        return Mapping({"type": "bytes"})
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
    # The schema of the column is int32, so the largest numbers stand for the infinities.
    if value - value == 0:
        return int(value)
    return INFINITE_DAY if value > 0 else -INFINITE_DAY - 1


def _iso_date(days: float) -> str:
    if days - days != 0:
        return "infinity" if days > 0 else "-infinity"
    return iso_date(int(days))


def _time(type_: ColumnType, mode: str) -> Mapping:
    if mode == "isostring":
        return Mapping(_named("string", "io.debezium.time.IsoTime"), _iso_time)
    if mode == "connect":
        return Mapping(
            _named("int32", "org.apache.kafka.connect.data.Time"), lambda value: value // 1_000_000
        )
    if mode == "nanoseconds":
        return Mapping(_named("int64", "io.debezium.time.NanoTime"))
    # Milliseconds are exact for up to three digits.
    if mode == "adaptive" and _digits(type_) <= 3:
        return Mapping(_named("int32", "io.debezium.time.Time"), lambda value: value // 1_000_000)
    return Mapping(_named("int64", "io.debezium.time.MicroTime"), lambda value: value // 1_000)


def _iso_time(value: int) -> str:
    return f"{time_text(value)}Z"


def _local_timestamp(type_: ColumnType, mode: str, bounded: bool) -> Mapping:
    if mode == "isostring":
        return Mapping(_named("string", "io.debezium.time.IsoTimestamp"), _zoned_timestamp)
    if mode == "connect":
        return Mapping(
            _named("int64", "org.apache.kafka.connect.data.Timestamp"), _in_units(1_000_000, bounded)
        )
    digits = _digits(type_)
    if mode == "nanoseconds" or (mode.startswith("adaptive") and digits > 6):
        return Mapping(_named("int64", "io.debezium.time.NanoTimestamp"), _in_units(1, bounded))
    if mode.startswith("adaptive") and digits <= 3:
        return Mapping(_named("int64", "io.debezium.time.Timestamp"), _in_units(1_000_000, bounded))
    return Mapping(_named("int64", "io.debezium.time.MicroTimestamp"), _in_units(1_000, bounded))


def _in_units(nanoseconds: int, bounded: bool) -> Convert:
    def convert(value: float) -> int:
        # Infinities are floats, and their difference is NaN.
        if value - value == 0:
            units = int(value // nanoseconds)
            return int64(units, _OTHER_PRECISION) if bounded else units
        return infinite if value > 0 else minus_infinite

    # The connector's infinities are moments in microseconds; nanoseconds end at 64 bits.
    infinite, minus_infinite = infinities(nanoseconds)
    return convert


def infinities(nanoseconds: int) -> tuple[int, int]:
    """Return the values for infinity and -infinity in timestamps whose unit has `nanoseconds` nanoseconds."""
    if nanoseconds == 1:
        return 2**63 - 1, -(2**63)
    return INFINITE * 1000 // nanoseconds, MINUS_INFINITE * 1000 // nanoseconds


def _digits(type_: ColumnType) -> int:
    """Return the digits of a second that the type keeps; `scale` says so for times and timestamps."""
    return 6 if type_.scale is None else type_.scale


def _zoned_timestamp(value: float) -> str:
    """Return RFC 3339 in UTC with as many digits after the point as are needed, which is how Java writes it."""
    if isinstance(value, float):  # only infinities are floats
        return "infinity" if value > 0 else "-infinity"
    seconds, nanos = divmod(value, NANOS)
    return f"{whole_second(seconds)}.{nanos:09d}".rstrip("0") + "Z" if nanos else f"{whole_second(seconds)}Z"


def zoned_timestamp(value: float, digits: int) -> str:
    """Return RFC 3339 in UTC with this number of digits after the point; any year."""
    if isinstance(value, float):  # only infinities are floats
        return "infinity" if value > 0 else "-infinity"
    seconds, nanos = divmod(value, NANOS)
    return (
        f"{whole_second(seconds)}.{nanos:09d}"[: digits - 9 or None] + "Z"
        if digits
        else f"{whole_second(seconds)}Z"
    )


def _zoned_json(value: float) -> datetime | str:
    """As `_zoned_timestamp`, or a datetime that msgspec writes in the same form, in half of the time."""
    if isinstance(value, int):
        micros, nanos = divmod(value, 1000)
        # msgspec writes six digits or none: a last digit of 0 is one too many.
        if not nanos and micros % 10:
            try:
                return EPOCH + timedelta(0, 0, micros)
            except OverflowError:  # outside of the years 1 to 9999
                return _zoned_timestamp(value)
    return _zoned_timestamp(value)


def _any_interval_microseconds(value: Interval | float) -> int:
    if isinstance(value, float):  # only infinities are floats
        raise ValueError(
            "an infinite interval has no number of microseconds: use interval_handling_mode=string"
        )
    # A month is 365.25 / 12 days, as Debezium documents.
    days = value.months * 365.25 / 12 + value.days
    return round(days * 86_400_000_000) + value.nanoseconds // 1000


def _interval_microseconds(value: Interval | float) -> int:
    return int64(_any_interval_microseconds(value), "use interval_handling_mode=string")


_OTHER_PRECISION = "use time_precision_mode=isostring, or microseconds in place of nanoseconds"
_LEAVE_OUT = "leave the column out"


def array_mapping(element: Mapping, *, nested: Nested = "kept", optional: bool = True) -> Mapping:
    """Return how an array is shown whose elements are shown as `element`. `optional`: elements may be null."""
    schema = {"type": "array", "items": ordered_schema(element.schema, optional)}
    convert = element.convert
    # PostgreSQL declares no dimensions, so a value may be a list where the schema has a single element.
    is_declared = element.schema["type"] == "array"
    if convert is None and (is_declared or nested == "kept"):
        return Mapping(schema)

    def shown(values: list[Any]) -> list[Any]:
        return [
            None
            if value is None
            else inner(value)
            if isinstance(value, list) and not is_declared
            else value
            if convert is None
            else convert(value)
            for value in values
        ]

    inner = {"kept": shown, "null": lambda values: None, "refused": _refuse_nested}[nested]
    return Mapping(schema, shown)


def _refuse_nested(values: list[Any]) -> Any:
    raise ValueError(
        "the schema of the column has no arrays of arrays: use JSON without schemas, or debezium_exact, which shows "
        "the inner arrays as null"
    )


def _struct(type_: ColumnType, modes: TypeModes, as_json: bool, nested: Nested, bounded: bool) -> Mapping:
    inner = {
        field.name: mapping(field.type, modes, as_json, nested=nested, bounded=bounded)
        for field in type_.fields
    }
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
            # A field of a newer schema than the plan's passes unchanged.
            rule = inner[name].convert if name in inner else None
            shown[name] = each if each is None or rule is None else rule(each)
        return shown

    return Mapping({"type": "struct", "fields": fields}, convert)
