"""Columns in YDB's types: the value in JSON, the way back, and the name of the type. Pure.

| column | YDB type | JSON |
|---|---|---|
| BOOL; integers | Bool; Int8 … Uint64 | bool; number |
| FLOAT32, FLOAT64 | Float, Double | number with 9 or 17 digits; `"nan"`, `"inf"`, `"-inf"` |
| DECIMAL | Decimal, DyNumber | text: `"3.321"`, `".3321e1"` |
| STRING, ENUM, OTHER | Utf8 | text |
| BYTES, PROTO | String | base64 |
| UUID | Uuid | text |
| JSON | Json, JsonDocument, Yson | the JSON value itself |
| DATE, TIMESTAMP, LOCAL_TIMESTAMP | Date, Datetime, Timestamp | `"2020-08-12T00:00:00.000000Z"` |
| the same with `extended_dates` | Date32, Datetime64, Timestamp64 | number of days, seconds, microseconds |
| INTERVAL | Interval, Interval64 if the source is YDB | number of microseconds |
| INTERVAL, TIME of other sources | Utf8 | ISO 8601 text |
| ARRAY, STRUCT | Json | JSON array, JSON object |

Not carried: the difference between NULL and the JSON value null, the layout of JSON text, trailing zeros of a
DyNumber.

Sources: YDB documentation, "Change Data Capture" (Record structure), and `ToJson` in YDB's
`change_record_cdc_serializer.cpp`.
"""

from __future__ import annotations

import math
import re
import struct
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import msgspec

from penstock.event import ColumnType, Interval, Kind
from penstock.timestamps import parse_timestamp
from penstock.transforms.formats.value_text import (
    interval_text,
    parse_interval,
    parse_time,
    time_text,
    whole_second,
)

Convert = Callable[[Any], Any]

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_END_DAY = date(2106, 1, 1).toordinal() - _EPOCH_DAY
# Date32, Datetime64 and Timestamp64. Source: YDB source code, `MIN_DATE32` and `MAX_DATE32`.
_FIRST_DAY, _LAST_DAY = -53_375_809, 53_375_807
_END_MICROS = _END_DAY * 86_400_000_000


class Mapping(msgspec.Struct, frozen=True):
    """A column type in YDB.

    `name` is YDB's type. `show` goes from the Python value to a value for JSON (None: no change), `parse` from the
    bytes of a JSON value that is not null to the Python value.
    """

    name: str
    show: Convert | None
    parse: Convert


_KINDS = {
    "Bool": Kind.BOOL,
    "Int8": Kind.INT8,
    "Int16": Kind.INT16,
    "Int32": Kind.INT32,
    "Int64": Kind.INT64,
    "Uint8": Kind.UINT8,
    "Uint16": Kind.UINT16,
    "Uint32": Kind.UINT32,
    "Uint64": Kind.UINT64,
    "Float": Kind.FLOAT32,
    "Double": Kind.FLOAT64,
    "Date": Kind.DATE,
    "Datetime": Kind.TIMESTAMP,
    "Timestamp": Kind.TIMESTAMP,
    "Interval": Kind.INTERVAL,
    "Date32": Kind.DATE,
    "Datetime64": Kind.TIMESTAMP,
    "Timestamp64": Kind.TIMESTAMP,
    "Interval64": Kind.INTERVAL,
    "Decimal": Kind.DECIMAL,
    "DyNumber": Kind.DECIMAL,
    "String": Kind.BYTES,
    "Utf8": Kind.STRING,
    "Uuid": Kind.UUID,
    "Json": Kind.JSON,
    "JsonDocument": Kind.JSON,
    "Yson": Kind.JSON,
}
_BY_KIND = {kind: name for name, kind in reversed(_KINDS.items())} | {
    Kind.DECIMAL: "Decimal",
    Kind.TIMESTAMP: "Timestamp",
    Kind.LOCAL_TIMESTAMP: "Timestamp",
    Kind.PROTO: "String",
    Kind.ARRAY: "Json",
    Kind.STRUCT: "Json",
}
_EXTENDED = {"Date": "Date32", "Timestamp": "Timestamp64"}
_DECIMAL = re.compile(r"Decimal\((\d+), ?(\d+)\)")


def column_type(name: str) -> ColumnType:
    """Return the column type for YDB's name of a type, such as ``Uint64`` or ``Decimal(22,9)``.

    A type that this release does not know is OTHER: its values stay JSON text.
    """
    match = _DECIMAL.fullmatch(name)
    if match is not None:
        return ColumnType(Kind.DECIMAL, name, int(match[1]), int(match[2]))
    return ColumnType(_KINDS.get(name, Kind.OTHER), name)


def type_mapping(type_: ColumnType, extended_dates: bool = False) -> Mapping:
    """Return how a column of this type stands in a record."""
    if type_.kind is Kind.ARRAY:
        return _array(type_, extended_dates)
    if type_.kind is Kind.STRUCT:
        return _struct(type_, extended_dates)
    name = _type_name(type_, extended_dates)
    show, parse = _RULES[type_.kind if name == "Utf8" else name.partition("(")[0]]
    return Mapping(name, show, parse)


def _type_name(type_: ColumnType, extended_dates: bool) -> str:
    """Return YDB's name of a type: its own for columns of YDB, else the one that holds the kind."""
    if _KINDS.get(type_.native.partition("(")[0]) is type_.kind:
        return type_.native
    if type_.kind is Kind.DECIMAL and type_.precision is not None and type_.scale is not None:
        return f"Decimal({type_.precision},{type_.scale})"
    if type_.kind is Kind.INTERVAL:
        return "Utf8"  # months and days, which YDB's Interval does not have
    name = _BY_KIND.get(type_.kind, "Utf8")
    return _EXTENDED.get(name, name) if extended_dates else name


_as_int = msgspec.json.Decoder(int).decode
_as_bool = msgspec.json.Decoder(bool).decode
_as_text = msgspec.json.Decoder(str).decode
_as_float_or_text = msgspec.json.Decoder(float | str).decode
_as_raw_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_as_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _show_double(value: float) -> Any:
    return msgspec.Raw(b"%.17g" % value) if value - value == 0 else _not_finite(value)


def _show_float(value: float) -> Any:
    return msgspec.Raw(b"%.9g" % value) if value - value == 0 else _not_finite(value)


def _not_finite(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _show_decimal(value: Decimal) -> str:
    if value.is_finite():
        return format(value, "f")
    return "nan" if value.is_nan() else "inf" if value > 0 else "-inf"


def _show_dynumber(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError("a DyNumber is neither NaN nor infinite")
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    if not text:
        return "0"
    return f"{'-' if sign else ''}.{text.rstrip('0')}e{len(text) + int(exponent)}"


def _show_date(value: float) -> str:
    if not 0 <= value < _END_DAY:
        raise ValueError("a Date lies between 1970 and 2105: use extended_dates=True")
    return f"{date.fromordinal(int(value) + _EPOCH_DAY).isoformat()}T00:00:00.000000Z"


def _show_timestamp(value: float) -> str:
    seconds, micros = divmod(_whole_micros(value), 1_000_000)
    if not 0 <= value < _END_MICROS * 1000:
        raise ValueError("a Timestamp lies between 1970 and 2105: use extended_dates=True")
    return f"{whole_second(seconds)}.{micros:06d}Z"


def _show_datetime(value: float) -> str:
    text = _show_timestamp(value)
    if not text.endswith(".000000Z"):
        raise ValueError("a Datetime has whole seconds")
    return text


def _finite_integer(value: float) -> int:
    if not isinstance(value, int):
        raise ValueError("YDB has no infinite dates and timestamps")
    return value


def _days64(value: float) -> int:
    days = _finite_integer(value)
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise ValueError("a date of YDB lies between the years 144169 BC and 148106")
    return days


def _micros64(value: float) -> int:
    micros = _whole_micros(value)
    _days64(micros // 86_400_000_000)
    return micros


def _whole_micros(value: float) -> int:
    micros, nanos = divmod(_finite_integer(value), 1000)
    if nanos:
        raise ValueError("YDB has microseconds and the value has nanoseconds")
    return micros


def _whole_seconds(value: float) -> int:
    seconds, micros = divmod(_micros64(value), 1_000_000)
    if micros:
        raise ValueError("a Datetime64 has whole seconds")
    return seconds


def _interval_micros(value: Interval) -> int:
    if value.months or value.days:
        raise ValueError("an Interval of YDB has neither months nor days")
    return _whole_micros(value.nanoseconds)


def _show_json(text: str) -> Any:
    # `format` checks the text and takes spaces out. Numbers keep all their digits, which decoding would lose.
    return msgspec.Raw(msgspec.json.format(text.encode(), indent=-1))


def _parse_float(raw: Any) -> float:
    return float(_as_float_or_text(raw))


def _parse_float32(raw: Any) -> float:
    # Nine digits name the nearest value of 32 bits, not the value itself.
    single: float = struct.unpack("f", struct.pack("f", _parse_float(raw)))[0]
    return single


def _parse_decimal(raw: Any) -> Decimal:
    return Decimal(_as_text(raw))


def _parse_date(raw: Any) -> int:
    return date.fromisoformat(_as_text(raw)[:10]).toordinal() - _EPOCH_DAY


def _json_text(raw: Any) -> str:
    return bytes(raw).decode()


_TIME_TEXT = (_show_timestamp, lambda raw: parse_timestamp(_as_text(raw)))
_TEXT = (None, _as_text)
_INTERVAL_MICROS = (_interval_micros, lambda raw: Interval(nanoseconds=_as_int(raw) * 1000))
_JSON = (_show_json, _json_text)

# Choose the rule by YDB's type. For columns of Utf8 choose it by the kind, which says what the text means.
_RULES: dict[str, tuple[Convert | None, Convert]] = {
    "Bool": (None, _as_bool),
    **{name: (None, _as_int) for name in _KINDS if name.startswith(("Int", "Uint"))},
    "Float": (_show_float, _parse_float32),
    "Double": (_show_double, _parse_float),
    "Decimal": (_show_decimal, _parse_decimal),
    "DyNumber": (_show_dynumber, _parse_decimal),
    "String": (lambda value: b64encode(value).decode(), lambda raw: a2b_base64(_as_text(raw))),
    "Uuid": _TEXT,
    "Json": _JSON,
    "JsonDocument": _JSON,
    "Yson": _JSON,
    "Date": (_show_date, _parse_date),
    "Datetime": (_show_datetime, _TIME_TEXT[1]),
    "Timestamp": _TIME_TEXT,
    "Interval": _INTERVAL_MICROS,
    "Date32": (_days64, _as_int),
    "Datetime64": (_whole_seconds, lambda raw: _as_int(raw) * 1_000_000_000),
    "Timestamp64": (_micros64, lambda raw: _as_int(raw) * 1000),
    "Interval64": _INTERVAL_MICROS,
    Kind.STRING: _TEXT,
    Kind.ENUM: _TEXT,
    Kind.OTHER: _TEXT,
    Kind.TIME: (time_text, lambda raw: parse_time(_as_text(raw))),
    Kind.INTERVAL: (interval_text, lambda raw: parse_interval(_as_text(raw))),
}


def _array(type_: ColumnType, extended_dates: bool) -> Mapping:
    element = type_mapping(type_.element or ColumnType(Kind.OTHER), extended_dates)
    show, parse = element.show, element.parse
    # PostgreSQL's arrays of several dimensions are nested lists of one element type.
    is_scalar = type_.element is not None and type_.element.kind not in (Kind.ARRAY, Kind.JSON)

    def shown(values: list[Any]) -> list[Any]:
        return [
            None
            if value is None
            else shown(value)
            if is_scalar and isinstance(value, list)
            else show and show(value)
            for value in values
        ]

    def parsed(raw: Any) -> list[Any]:
        return [
            _unless_null(each, parsed if is_scalar and bytes(each)[:1] == b"[" else parse)
            for each in _as_raw_list(raw)
        ]

    return Mapping("Json", show and shown, parsed)


def _struct(type_: ColumnType, extended_dates: bool) -> Mapping:
    inner = {field.name: type_mapping(field.type, extended_dates) for field in type_.fields}

    def show(value: dict[str, Any]) -> dict[str, Any]:
        shown = {}
        for name, each in value.items():
            rule = inner[name].show if name in inner else None
            shown[name] = each if each is None or rule is None else rule(each)
        return shown

    def parse(raw: Any) -> dict[str, Any]:
        return {
            name: _unless_null(each, inner[name].parse if name in inner else msgspec.json.decode)
            for name, each in _as_raw_object(raw).items()
        }

    return Mapping("Json", show, parse)


def _unless_null(raw: Any, parse: Convert) -> Any:
    return None if bytes(raw) == b"null" else parse(raw)
