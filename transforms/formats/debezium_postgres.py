"""Columns of PostgreSQL as Debezium's PostgreSQL connector shows them, where they differ from other systems. Pure.

| native type | schema | value |
|---|---|---|
| bit(1) | boolean | |
| bit(n), bit varying | io.debezium.data.Bits | little-endian, without zero bytes at the end |
| money | Decimal with scale 2 | |
| point | io.debezium.data.geometry.Point | x, y and WKB |
| time with time zone | io.debezium.time.ZonedTime | in UTC |
| timestamp(p) with time zone | io.debezium.time.ZonedTimestamp | always p digits after the point |
| hstore | io.debezium.data.Json, or a map | |
| xml, ltree, tsvector | a named string | |

A column that the connector leaves out (geometry, multiranges, composites) keeps the text of PostgreSQL, except under
`debezium_exact`.

Recorded: the engine of Debezium 3.6.3 on PostgreSQL 17; see tests/golden/postgres. Source of the rules for defaults:
Debezium documentation, "Debezium connector for PostgreSQL", Default values.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable
from decimal import Decimal
from hashlib import md5
from struct import Struct
from typing import Any
from uuid import UUID

import msgspec

from penstock.event import Column, ColumnType, Kind
from penstock.event.keys import without_trailing_zeros
from penstock.io.postgres import text_values
from penstock.timestamps import NANOS
from penstock.transforms.formats.debezium_types import (
    EXACT,
    Mapping,
    Nested,
    Schema,
    TypeModes,
    array_mapping,
    json_float,
    mapping,
    zoned_timestamp,
)
from penstock.transforms.formats.value_text import time_text

NO_DEFAULT = object()
"""A column without a default that a schema can state."""

_POINT = Struct("<BIdd").pack
_LENGTH = re.compile(r"\((\d+)\)")
_MONEY_SCALE = 2
"""Number of digits after the point of a `money` value."""
_DAY = 86_400 * NANOS


def postgres_mapping(
    type_: ColumnType, modes: TypeModes, as_json: bool, exact: bool, nested: Nested
) -> Mapping | None:
    """Return how a column of this type is shown; None if `exact` and the connector leaves it out."""
    native = type_.native
    # An array has the rule of its element. The connector has no rule for some arrays and leaves their columns
    # out.
    if type_.element is not None:
        element = postgres_mapping(type_.element, modes, as_json, exact, nested)
        if element is None or (exact and type_.element.native in _NO_ARRAYS):
            return None
        # The connector declares the elements of these arrays as required.
        required = type_.element.kind is Kind.ENUM or type_.element.native == "tsvector"
        return array_mapping(element, nested=nested, optional=not required)
    make = _MAPPINGS.get(native.partition("(")[0])
    if make is not None:
        return make(type_, modes, as_json)
    if native in _NAMED_TEXT:
        # These types have no Python value here; their text is passed on under the name that Debezium gives it.
        return Mapping({"type": "string", "name": _NAMED_TEXT[native], "version": 1})
    match type_.kind:
        case Kind.TIMESTAMP:
            # PostgreSQL's default precision. The connector always writes as many digits as the column declares.
            digits = 6 if type_.scale is None else type_.scale
            schema = {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1}
            return Mapping(schema, lambda value: zoned_timestamp(value, digits))
        case Kind.ENUM if type_.labels:
            allowed = {"allowed": ",".join(type_.labels)}
            return Mapping(
                {"type": "string", "name": "io.debezium.data.Enum", "version": 1, "parameters": allowed}
            )
    if exact:
        if (type_.kind in (Kind.OTHER, Kind.UINT64) and native not in _PLAIN_TEXT) or native in (
            "xid",
            "cid",
        ):
            return None
        # The connector reads no value for the type `name`; a record of it has null.
        if native == "name":
            return Mapping({"type": "string"}, lambda value: None)
        if make_exact := _EXACT.get(type_.kind):
            return make_exact(mapping(type_, modes, as_json), modes)
    return mapping(type_, modes, as_json)


_NAMED_TEXT = {
    "xml": "io.debezium.data.Xml",
    "ltree": "io.debezium.data.Ltree",
    "tsvector": "io.debezium.data.Tsvector",
}
_RANGES = ("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange")
_PLAIN_TEXT = frozenset(("inet", "cidr", "macaddr", "macaddr8", *_RANGES))
_NO_ARRAYS = frozenset(("interval", "money", "xml", "name", "point"))


def _bits(type_: ColumnType, modes: TypeModes, as_json: bool) -> Mapping:
    found = _LENGTH.search(type_.native)
    # bit(1) is a boolean in Debezium, whatever its use.
    if found and found[1] == "1":
        return Mapping({"type": "boolean"}, lambda text: text == "1")
    # bit varying without a length: Debezium declares the largest Java integer.
    length = found[1] if found else "2147483647"
    schema = {
        "type": "bytes",
        "name": "io.debezium.data.Bits",
        "version": 1,
        "parameters": {"length": length},
    }
    return Mapping(schema, _bit_bytes)


def _bit_bytes(text: str) -> bytes:
    number = int(text or "0", 2)
    # As Java's `BitSet.toByteArray`.
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def _money(type_: ColumnType, modes: TypeModes, as_json: bool) -> Mapping:
    decimal = ColumnType(Kind.DECIMAL, "money", scale=_MONEY_SCALE)
    inner = mapping(decimal, modes, as_json)
    assert inner.convert is not None
    convert = inner.convert
    return Mapping(inner.schema, lambda text: convert(_amount(text)))


def _amount(text: str) -> Decimal:
    """Read the text of a money value in any locale: its last two digits are the fraction."""
    # The locale decides the separators and the currency, so only digits and the sign are looked at.
    digits = "".join(re.findall(r"\d", text))
    number = Decimal(int(digits)).scaleb(-_MONEY_SCALE, EXACT)
    return -number if "-" in text or "(" in text else number


def _point(type_: ColumnType, modes: TypeModes, as_json: bool) -> Mapping:
    fields = [
        {"type": "double", "optional": False, "field": "x"},
        {"type": "double", "optional": False, "field": "y"},
        {"type": "bytes", "optional": True, "field": "wkb"},
        {"type": "int32", "optional": True, "field": "srid"},
    ]
    schema = {
        "type": "struct",
        "fields": fields,
        "name": "io.debezium.data.geometry.Point",
        "version": 1,
        "doc": "Geometry (POINT)",
    }
    shown: Callable[[float], Any] = json_float if as_json else float

    def convert(text: str) -> dict[str, Any]:
        x, y = map(float, text.strip("()").split(","))
        # Little-endian, geometry type 1. Java has one NaN, without a sign.
        wkb = _POINT(1, 1, *(math.nan if part != part else part for part in (x, y)))
        return {"x": shown(x), "y": shown(y), "wkb": wkb, "srid": None}

    return Mapping(schema, convert)


def _zoned_time(type_: ColumnType, modes: TypeModes, as_json: bool) -> Mapping:
    return Mapping({"type": "string", "name": "io.debezium.time.ZonedTime", "version": 1}, _time_in_utc)


_OFFSET = re.compile(r"([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?$")


def _time_in_utc(text: str) -> str:
    found = _OFFSET.search(text)
    if found is None:
        raise ValueError("a time without its time zone")
    sign, hours, minutes, seconds = found.groups()
    # An offset of PostgreSQL may have seconds: historic time zones do.
    offset = (int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)) * NANOS
    local = text_values.time(text[: found.start()])
    # Times wrap at midnight: the day is not part of the value.
    return time_text((local - offset if sign == "+" else local + offset) % _DAY) + "Z"


def _hstore(type_: ColumnType, modes: TypeModes, as_json: bool) -> Mapping:
    if modes.hstore_handling_mode == "json":
        schema: Schema = {"type": "string", "name": "io.debezium.data.Json", "version": 1}
        return Mapping(schema, lambda text: msgspec.json.encode(_pairs(text)).decode())
    schema = {
        "type": "map",
        "keys": {"type": "string", "optional": False},
        "values": {"type": "string", "optional": True},
    }
    return Mapping(schema, _pairs)


_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)(?:, )?', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _pairs(text: str) -> dict[str, str | None]:
    pairs: dict[str, str | None] = {}
    at = 0
    while at < len(text):
        # Matched one pair after the other: values contain commas and arrows inside of quotes.
        found = _PAIR.match(text, at)
        if found is None:
            raise ValueError("not the text of an hstore")
        key, value = found.groups()
        pairs[_ESCAPED.sub(r"\1", key)] = None if value is None else _ESCAPED.sub(r"\1", value)
        at = found.end()
    return pairs


_MAPPINGS: dict[str, Callable[[ColumnType, TypeModes, bool], Mapping]] = {
    "bit": _bits,
    "bit varying": _bits,
    "money": _money,
    "point": _point,
    "time": lambda type_, modes, as_json: (
        mapping(type_, modes, as_json) if type_.kind is Kind.TIME else _zoned_time(type_, modes, as_json)
    ),
    "time with time zone": _zoned_time,
    "hstore": _hstore,
}


# Values that the connector cannot represent are converted as the connector converts them. Only `debezium_exact` uses
# these rules.

# The days that the connector writes for infinite dates, recorded from its engine.
_INFINITE_DAYS = {math.inf: -2147472692, -math.inf: -2147472691}


def _exact_decimal(shown: Mapping, modes: TypeModes) -> Mapping:
    convert = shown.convert
    assert convert is not None
    if modes.decimal_handling_mode == "double":
        return shown
    as_text = modes.decimal_handling_mode == "string"
    has_own_scale = shown.schema.get("name") == "io.debezium.data.VariableScaleDecimal"

    def exact(value: Decimal) -> Any:
        if value.is_finite():
            # The connector strips trailing zeros where the column declares no scale.
            return convert(without_trailing_zeros(value) if has_own_scale else value)
        if not as_text:
            return None
        return "NAN" if value.is_nan() else "POSITIVE_INFINITY" if value > 0 else "NEGATIVE_INFINITY"

    return Mapping(shown.schema, exact)


def _exact_date(shown: Mapping, modes: TypeModes) -> Mapping:
    convert = shown.convert
    assert convert is not None
    return Mapping(shown.schema, lambda days: convert(_INFINITE_DAYS.get(days, days)))


def _exact_time(shown: Mapping, modes: TypeModes) -> Mapping:
    convert = shown.convert
    if convert is None or modes.time_precision_mode != "isostring":
        return shown
    # 24:00:00 is a time in PostgreSQL. Java's LocalTime has no such time and starts again at 0.
    return Mapping(shown.schema, lambda value: convert(value % _DAY))


def _exact_timestamp(shown: Mapping, modes: TypeModes) -> Mapping:
    convert = shown.convert
    if convert is None or modes.time_precision_mode != "isostring":
        return shown
    return Mapping(shown.schema, lambda value: _INFINITE_MOMENTS.get(value) or convert(value))


# The texts that the connector writes for infinite timestamps, recorded from its engine.
_INFINITE_MOMENTS = {math.inf: "+294247-01-10T04:00:25.2Z", -math.inf: "-290308-12-21T19:59:27.6Z"}

_EXACT: dict[Kind, Callable[[Mapping, TypeModes], Mapping]] = {
    Kind.DECIMAL: _exact_decimal,
    Kind.DATE: _exact_date,
    Kind.TIME: _exact_time,
    Kind.LOCAL_TIMESTAMP: _exact_timestamp,
}


# Defaults.

# A function call, with or without a schema and parentheses.
_FUNCTION = re.compile(r"\(*[\w.]+\(")
_LITERAL = re.compile(r"'((?:[^']|'')*)'")
_STATED: dict[Kind, Callable[[str], Any]] = {
    Kind.BOOL: text_values.boolean,
    Kind.INT16: int,
    Kind.INT32: int,
    Kind.INT64: int,
    Kind.FLOAT32: float,
    Kind.FLOAT64: float,
    Kind.DECIMAL: Decimal,
    Kind.STRING: str,
    Kind.JSON: str,
    Kind.ENUM: str,
    Kind.UUID: str,
    Kind.DATE: text_values.date,
    Kind.TIME: text_values.time,
    Kind.LOCAL_TIMESTAMP: text_values.timestamp,
    Kind.TIMESTAMP: text_values.timestamp_with_time_zone,
    Kind.INTERVAL: text_values.interval,
}
_OF_A_FUNCTION = {
    Kind.BOOL: False,
    Kind.INT16: 0,
    Kind.INT32: 0,
    Kind.INT64: 0,
    Kind.FLOAT32: 0.0,
    Kind.FLOAT64: 0.0,
    Kind.STRING: "",
    Kind.UUID: str(UUID(int=0)),
}
_TEMPORAL = frozenset((Kind.DATE, Kind.TIME, Kind.LOCAL_TIMESTAMP, Kind.TIMESTAMP))


def default_value(column: Column, shown: Mapping) -> Any:
    """Return the default of a column as its schema states it, or `NO_DEFAULT`.

    The connector does not run expressions: the default of a function call is a zero of the type.
    """
    expression, type_ = column.default, column.type
    # The connector states no default for domains and citext. Enums have a name too, and may have a default.
    if expression is None or (type_.name and type_.kind is not Kind.ENUM) or type_.native == "citext":
        return NO_DEFAULT
    try:
        value = _python_value(expression, type_, shown)
        return value if value is NO_DEFAULT or shown.convert is None else shown.convert(value)
    # A default that cannot be read is left out of the schema: it is no reason to fail an event.
    except (ValueError, ArithmeticError, IndexError):
        return NO_DEFAULT


def _python_value(expression: str, type_: ColumnType, shown: Mapping) -> Any:
    kind = type_.kind
    literal = _LITERAL.search(expression)
    if type_.native.startswith("bit") or type_.native == "xml":
        return literal[1].replace("''", "'") if literal else NO_DEFAULT
    if kind not in _STATED or shown.schema["type"] == "struct":
        return NO_DEFAULT
    is_function = _FUNCTION.match(expression) is not None
    # `CURRENT_TIMESTAMP` and its like are no calls in their text, but not literals either.
    if is_function or (literal is None and kind in _TEMPORAL):
        if kind is Kind.DECIMAL:
            return Decimal(0).scaleb(-(type_.scale or 0))
        return 0 if kind in _TEMPORAL else _OF_A_FUNCTION.get(kind, NO_DEFAULT)
    # A literal has quotes and a cast (`'x'::text`); a number has neither.
    text = literal[1].replace("''", "'") if literal else expression.strip("()")
    if kind is Kind.BOOL:
        return text in ("t", "true")
    value = _STATED[kind](text)
    if kind is Kind.DECIMAL:
        if not value.is_finite():
            return NO_DEFAULT
        return (
            value if type_.scale is None else value.quantize(Decimal(1).scaleb(-type_.scale), context=EXACT)
        )
    return value


# Columns that were not sent.


def required_value(type_: ColumnType, shown: Mapping) -> Any:
    """Return what the connector puts into a required column without a value."""
    schema = shown.schema
    if type_.kind is Kind.TIMESTAMP:
        return "1970-01-01T00:00:00Z"
    if schema.get("name") == "io.debezium.time.ZonedTime":
        return "00:00:00Z"
    if schema["type"] == "string" and schema.get("name") == "io.debezium.data.Json":
        return "{}" if type_.native == "hstore" else ""
    if type_.native == "point" and shown.convert:
        return shown.convert("(0,0)")
    if type_.native == "money" and shown.convert:
        return shown.convert("0.00")
    if shown.convert is not None and type_.kind in _ZEROS:
        zero = _ZEROS[type_.kind]
        if type_.kind is Kind.DECIMAL:
            zero = Decimal(0).scaleb(-(type_.scale or 0))
        return shown.convert(zero)
    return _EMPTY.get(schema["type"])


_ZEROS: dict[Kind, Any] = {
    Kind.DATE: 0,
    Kind.TIME: 0,
    Kind.LOCAL_TIMESTAMP: 0,
    Kind.INTERVAL: text_values.interval("PT0S"),
    Kind.DECIMAL: None,
}
_EMPTY: dict[str, Any] = {
    "boolean": False,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "float": 0.0,
    "double": 0.0,
    "string": "",
    "bytes": b"",
    "array": [],
    "map": {},
}


def unchanged_value(type_: ColumnType, schema: Schema, placeholder: str, missing: Any) -> Any:
    """Return the placeholder of a large value that did not change, or `missing` if the schema allows none."""
    kind = schema["type"]
    if type_.native == "hstore":
        pairs = {placeholder: placeholder}
        return pairs if kind == "map" else msgspec.json.encode(pairs).decode()
    if kind == "string":
        return placeholder
    if kind == "bytes" and "name" not in schema:
        return placeholder.encode()
    if kind == "array":
        return _unchanged_array(schema["items"], placeholder, missing)
    return missing


def unchanged_forms(placeholder: str) -> list[Any]:
    """Return the values of `unchanged_value` for all types, as JSON has them."""
    # JSON shows bytes as base64, so one placeholder has several texts.
    pairs = {placeholder: placeholder}
    texts = [placeholder, b64encode(placeholder.encode()).decode()]
    arrays = [[text] for text in (*texts, str(_named_uuid(placeholder)))]
    return [*texts, *arrays, list(placeholder.encode()), pairs, msgspec.json.encode(pairs).decode()]


def _unchanged_array(items: Schema, placeholder: str, missing: Any) -> Any:
    kind, name = items["type"], items.get("name", "")
    if name == "io.debezium.data.Uuid":
        return [str(_named_uuid(placeholder))]
    if kind == "string":
        return [placeholder]
    if kind == "bytes" and not name:
        return [placeholder.encode()]
    # An array of numbers holds the bytes of the placeholder as numbers: that is what the connector does.
    if kind in ("int16", "int32", "int64") and name in ("", "io.debezium.time.Date", _CONNECT_DATE):
        return list(placeholder.encode())
    return missing


_CONNECT_DATE = "org.apache.kafka.connect.data.Date"


def _named_uuid(text: str) -> UUID:
    """Return Java's `UUID.nameUUIDFromBytes`: the MD5 digest as a UUID of version 3."""
    return UUID(bytes=md5(text.encode(), usedforsecurity=False).digest(), version=3)
