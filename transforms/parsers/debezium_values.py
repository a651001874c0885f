"""Parses Debezium's JSON values to Python values, by the schema of Kafka Connect. Pure.

`column_type` goes from a Connect schema to a column type, `value_parser` to the function that reads its values.
Both are the way back from `debezium_types`. Where a mode is narrower than the type (milliseconds, double,
MicroDuration), the value that the record holds comes back.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from binascii import a2b_base64
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec

from penstock.event import ColumnType, Field, Interval, Kind
from penstock.event.float32 import shortest
from penstock.transforms.formats.debezium_types import (
    EXACT,
    INFINITE_DAY,
    Schema,
    infinities,
)
from penstock.transforms.formats.value_text import (
    parse_interval,
    parse_iso_date,
    parse_iso_timestamp,
    parse_time,
)

Parse = Callable[[Any], Any]

_MILLI, _MICRO, _NANO = 1_000_000, 1_000, 1

_as_int = msgspec.json.Decoder(int).decode
_as_bool = msgspec.json.Decoder(bool).decode
_as_text = msgspec.json.Decoder(str).decode
# JSON has no NaN and no infinities: they come as texts.
_as_number_or_text = msgspec.json.Decoder(float | str).decode
_as_raw_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_as_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

_PLAIN = {
    "boolean": Kind.BOOL,
    "int8": Kind.INT8,
    "int16": Kind.INT16,
    "int32": Kind.INT32,
    "int64": Kind.INT64,
    "float": Kind.FLOAT32,
    "double": Kind.FLOAT64,
    "string": Kind.STRING,
    "bytes": Kind.BYTES,
}


def column_type(schema: Schema) -> ColumnType:
    """Return the column type of a Connect schema. A type that this release does not know is OTHER."""
    kind, name = schema["type"], schema.get("name", "")
    if kind == "array":
        return ColumnType(Kind.ARRAY, element=column_type(schema["items"]))
    if name == "org.apache.kafka.connect.data.Decimal":
        parameters = schema.get("parameters", {})
        precision = parameters.get("connect.decimal.precision")
        return ColumnType(Kind.DECIMAL, name, precision and int(precision), int(parameters["scale"]))
    if name == "io.debezium.data.VariableScaleDecimal":
        return ColumnType(Kind.DECIMAL, name)
    if name in _NAMED:
        # The digits say how exact the value is, which the name of the type fixes.
        found, digits, _ = _NAMED[name]
        return ColumnType(found, name, scale=digits)
    if kind == "struct":
        fields = tuple(Field(field["field"], column_type(field)) for field in schema["fields"])
        return ColumnType(Kind.STRUCT, fields=fields)
    # A schema of another connector may have types that are not listed here.
    return ColumnType(_PLAIN.get(kind, Kind.OTHER), name or kind)


def value_parser(schema: Schema, type_: ColumnType, binary_handling_mode: str = "bytes") -> Parse:
    """Return the function from the bytes of a JSON value that is not null to the Python value of the type."""
    kind, name = schema["type"], schema.get("name", "")
    if kind == "array":
        element = value_parser(schema["items"], type_.element or ColumnType(Kind.OTHER), binary_handling_mode)

        def parse_array(raw: Any) -> list[Any]:
            # Arrays of arrays have the schema of their elements.
            return [
                _unless_null(each, parse_array if bytes(each)[:1] == b"[" else element)
                for each in _as_raw_list(raw)
            ]

        return parse_array
    if name == "org.apache.kafka.connect.data.Decimal":
        scale = int(schema["parameters"]["scale"])
        return lambda raw: _decimal(a2b_base64(_as_text(raw)), scale)
    if name == "io.debezium.data.VariableScaleDecimal":
        return _variable_scale
    if name in _NAMED:
        return _NAMED[name][2]
    if kind == "struct":
        return _struct_parser(schema, type_, binary_handling_mode)
    if kind == "string":
        if type_.kind in (Kind.BYTES, Kind.PROTO):
            # The mode of the connector cannot be read from the record.
            return _BINARY[binary_handling_mode]
        return _FROM_TEXT.get(type_.kind, _as_text)
    # A double has no decimal in it: the shortest text that gives the same double is the value that was meant.
    if type_.kind is Kind.DECIMAL:  # decimal_handling_mode=double
        return lambda raw: Decimal(str(_as_number_or_text(raw)))
    return _FROM_PLAIN.get(kind, msgspec.json.decode)


def _struct_parser(schema: Schema, type_: ColumnType, binary_handling_mode: str) -> Parse:
    types = {field.name: field.type for field in type_.fields}
    parsers = {
        field["field"]: value_parser(
            field, types.get(field["field"], column_type(field)), binary_handling_mode
        )
        for field in schema["fields"]
    }

    def parse(raw: Any) -> dict[str, Any]:
        return {
            # A field that the schema does not have stays as JSON has it.
            name: _unless_null(each, parsers.get(name, msgspec.json.decode))
            for name, each in _as_raw_object(raw).items()
        }

    return parse


def _unless_null(raw: Any, parse: Parse) -> Any:
    # Compared as bytes: a parser of the type would reject null.
    return None if bytes(raw) == b"null" else parse(raw)


def _float(raw: Any) -> float:
    return float(_as_number_or_text(raw))


def _float32(raw: Any) -> float:
    # A float of 32 bits was written with the digits of a double; the shortest digits are the original.
    return shortest(_float(raw))


def _decimal(unscaled: bytes, scale: int) -> Decimal:
    return Decimal(int.from_bytes(unscaled, "big", signed=True)).scaleb(-scale, EXACT)


def _variable_scale(raw: Any) -> Decimal:
    parts = msgspec.json.decode(raw)
    return _decimal(a2b_base64(parts["value"]), parts["scale"])


def _days(raw: Any) -> float:
    days = _as_int(raw)
    # The way back from `debezium_types._days`.
    if days == INFINITE_DAY:
        return float("inf")
    return float("-inf") if days == -INFINITE_DAY - 1 else days


def _date_text(raw: Any) -> float:
    text = _as_text(raw).removesuffix("Z")
    return float(text) if "inf" in text else parse_iso_date(text)


def _timestamp_text(raw: Any) -> float:
    text = _as_text(raw)
    return float(text) if "inf" in text else parse_iso_timestamp(text)


def _in_units(nanoseconds: int) -> Parse:
    def parse(raw: Any) -> float:
        value = _as_int(raw)
        # PostgreSQL's infinite times are fixed numbers in each unit.
        if value in infinite:
            return float("inf") if value > 0 else float("-inf")
        return value * nanoseconds

    infinite = infinities(nanoseconds)
    return parse


def _time_text(raw: Any) -> int:
    return parse_time(_as_text(raw).removesuffix("Z"))


def _times(nanoseconds: int) -> Parse:
    return lambda raw: _as_int(raw) * nanoseconds


def content_parser(schema: Schema | None, binary_handling_mode: str) -> Parse:
    """Return the function from the bytes of a JSON value to the content of a message.

    `schema` of the content, if the record has one. A schema of bytes says base64 in every mode.
    """
    if schema is not None and schema["type"] == "bytes":
        return _FROM_PLAIN["bytes"]
    # "bytes" is base64 in JSON. `_BINARY` is for columns, where a text is no base64 in this mode.
    return _FROM_PLAIN["bytes"] if binary_handling_mode == "bytes" else _BINARY[binary_handling_mode]


_BINARY: dict[str, Parse] = {
    "bytes": _as_text,
    "base64": lambda raw: a2b_base64(_as_text(raw)),
    "base64-url-safe": lambda raw: urlsafe_b64decode(_as_text(raw)),
    "hex": lambda raw: bytes.fromhex(_as_text(raw)),
}
# Columns whose schema is a bare string: decimals in string mode, and what the Spanner connector sends as text.
_FROM_TEXT: dict[Kind, Parse] = {
    Kind.DECIMAL: lambda raw: Decimal(_as_text(raw)),
    Kind.DATE: _date_text,
    Kind.TIMESTAMP: _timestamp_text,
}
_FROM_PLAIN: dict[str, Parse] = {
    "boolean": _as_bool,
    **dict.fromkeys(("int8", "int16", "int32", "int64"), _as_int),
    "float": _float32,
    "double": _float,
    "bytes": lambda raw: a2b_base64(_as_text(raw)),
}
_CONNECT, _TIME, _DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."
_NAMED: dict[str, tuple[Kind, int | None, Parse]] = {
    f"{_CONNECT}Date": (Kind.DATE, None, _days),
    f"{_TIME}Date": (Kind.DATE, None, _days),
    f"{_TIME}IsoDate": (Kind.DATE, None, _date_text),
    f"{_CONNECT}Time": (Kind.TIME, 3, _times(_MILLI)),
    f"{_TIME}Time": (Kind.TIME, 3, _times(_MILLI)),
    f"{_TIME}MicroTime": (Kind.TIME, 6, _times(_MICRO)),
    f"{_TIME}NanoTime": (Kind.TIME, 9, _times(_NANO)),
    f"{_TIME}IsoTime": (Kind.TIME, 9, _time_text),
    f"{_CONNECT}Timestamp": (Kind.LOCAL_TIMESTAMP, 3, _in_units(_MILLI)),
    f"{_TIME}Timestamp": (Kind.LOCAL_TIMESTAMP, 3, _in_units(_MILLI)),
    f"{_TIME}MicroTimestamp": (Kind.LOCAL_TIMESTAMP, 6, _in_units(_MICRO)),
    f"{_TIME}NanoTimestamp": (Kind.LOCAL_TIMESTAMP, 9, _in_units(_NANO)),
    f"{_TIME}IsoTimestamp": (Kind.LOCAL_TIMESTAMP, 9, _timestamp_text),
    f"{_TIME}ZonedTimestamp": (Kind.TIMESTAMP, None, _timestamp_text),
    f"{_TIME}Interval": (Kind.INTERVAL, None, lambda raw: parse_interval(_as_text(raw))),
    f"{_TIME}MicroDuration": (Kind.INTERVAL, None, lambda raw: Interval(nanoseconds=_as_int(raw) * 1000)),
    f"{_DATA}Json": (Kind.JSON, None, _as_text),
    f"{_DATA}Uuid": (Kind.UUID, None, _as_text),
    f"{_DATA}Enum": (Kind.ENUM, None, _as_text),
}
