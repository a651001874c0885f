"""Values in the form in which the service sends them: checked, and brought to one spelling.

A value is None, a bool, a float, a string or a list, as in google.protobuf.Value. INT64, NUMERIC, DATE,
TIMESTAMP, UUID, INTERVAL and ENUM are strings, BYTES and PROTO are base64, JSON is a string that holds JSON,
FLOAT32 and FLOAT64 are numbers or the strings "NaN", "Infinity" and "-Infinity". A change record has the same
forms inside its JSON objects.

Source: google/spanner/v1/type.proto, "TypeCode" (how each type is encoded); Spanner documentation, "Data types"
(ranges). Not documented, and chosen here: the fraction of a TIMESTAMP is printed without trailing zeros, JSON
with sorted keys and without spaces, jsonb with PostgreSQL's spaces.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
import uuid
import zlib
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from penstock_emulators.simulated_spanner.column_type import ColumnType
from penstock_emulators.simulated_spanner.errors import ServiceError, failed

Value: TypeAlias = Any
"""None, bool, float, str, or a list of these."""

COMMIT_TIMESTAMP = "spanner.commit_timestamp()"
"""The value that a mutation writes for the commit timestamp of its own transaction."""

_INT64 = range(-(1 << 63), 1 << 63)
_FLOAT_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?[Zz]", re.ASCII)
_INTERVAL = re.compile(
    r"P(?!$)(?:-?\d+Y)?(?:-?\d+M)?(?:-?\d+D)?(?:T(?!$)(?:-?\d+H)?(?:-?\d+M)?(?:-?\d+(?:\.\d+)?S)?)?"
)
_NUMERIC_LIMIT, _NUMERIC_STEP = Decimal(10) ** 29, 9
_PG_BEFORE_POINT, _PG_AFTER_POINT = 131_072, 16_383


def canonical(value: Value, kind: ColumnType) -> Value:
    """Return `value` in the spelling in which the service sends it.

    Raises:
        ServiceError: the value is none of that type.
    """
    if value is None:
        return None
    if kind.element is not None:
        if not isinstance(value, list):
            raise _wrong(kind)
        return [canonical(each, kind.element) for each in value]
    try:
        return _SPELLINGS[kind.code](value, kind)
    except ServiceError:
        raise
    except (ValueError, TypeError, InvalidOperation, binascii.Error, OverflowError, RecursionError):
        raise _wrong(kind) from None


def sort_key(value: Value, kind: ColumnType) -> tuple[int, Any]:
    """Return what orders key values: NULL first, NaN before all numbers, text by code points."""
    if value is None:
        return (0, 0)
    if kind.code in ("INT64", "ENUM"):
        return (1, int(value))
    if kind.code == "NUMERIC":
        return (3, 0) if value == "NaN" else (2, Decimal(value))  # PostgreSQL's NaN is above all numbers
    if kind.code in ("FLOAT32", "FLOAT64"):
        number = _FLOAT_WORDS[value] if isinstance(value, str) else value
        return (1, 0) if math.isnan(number) else (2, number)
    if kind.code in ("BYTES", "PROTO"):
        return (1, base64.b64decode(value))
    return (1, value)


def key_position(table: str, key: tuple[Value, ...]) -> int:
    """Return the position of a row in the key space of partitions, in [0, 2**32).

    A hash, not the key's order: clients never see key ranges, only tokens, and a hash spreads any keys evenly,
    so that each split divides the load.
    """
    return zlib.crc32(repr((table, key)).encode("utf-8", "surrogatepass"))


def _wrong(kind: ColumnType) -> ServiceError:
    return ServiceError("FAILED_PRECONDITION", f"Invalid value for a column of type {kind.code}.")


def _text(value: Value) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _int64(value: Value, kind: ColumnType) -> str:
    number = int(_text(value))
    if number not in _INT64:
        raise failed(f"{kind.code} is out of range.")
    return str(number)


def _bool(value: Value, _: ColumnType) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _float(value: Value, kind: ColumnType) -> float | str:
    if isinstance(value, str):
        return value if value in _FLOAT_WORDS else _fail()
    if isinstance(value, bool):
        raise TypeError
    number = float(value)
    if kind.code == "FLOAT32":
        number = struct.unpack("<f", struct.pack("<f", number))[0]  # overflow is an error
    if math.isnan(number):
        return "NaN"
    return number if math.isfinite(number) else ("Infinity" if number > 0 else "-Infinity")


def _fail() -> Any:
    raise ValueError


def _numeric(value: Value, kind: ColumnType) -> str:
    text = _text(value).strip()
    if kind.annotation == "PG_NUMERIC":
        return _pg_numeric(text)
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError
    # Neither `normalize` nor `abs`: they round to the 28 digits of Python's default context.
    whole, _, fraction = format(number, "f").partition(".")
    fraction = fraction.rstrip("0")
    if number.copy_abs() >= _NUMERIC_LIMIT or len(fraction) > _NUMERIC_STEP:
        raise failed("Invalid NUMERIC value: at most 29 digits before and 9 after the decimal point.")
    return "0" if number == 0 else whole + ("." + fraction if fraction else "")


def _pg_numeric(text: str) -> str:
    if text.lower() == "nan":
        return "NaN"
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError
    plain = format(number, "f")  # the scale stays: 1.50 is not 1.5
    whole, _, fraction = plain.lstrip("-").partition(".")
    if len(whole) > _PG_BEFORE_POINT or len(fraction) > _PG_AFTER_POINT:
        raise failed("Invalid numeric value: too many digits.")
    # PostgreSQL has no negative zero.
    return plain.lstrip("-") if number == 0 else plain


def _bytes(value: Value, _: ColumnType) -> str:
    return base64.b64encode(base64.b64decode(_text(value), validate=True)).decode()


def _date(value: Value, _: ColumnType) -> str:
    if len(_text(value)) != 10:
        raise ValueError
    return date.fromisoformat(value).isoformat()


def _timestamp(value: Value, _: ColumnType) -> str:
    if value == COMMIT_TIMESTAMP:
        return COMMIT_TIMESTAMP
    found = _TIMESTAMP.fullmatch(_text(value))
    if found is None:
        raise ValueError
    datetime.fromisoformat(f"{found[1]}T{found[2]}")  # a real day and time
    fraction = (found[3] or "").rstrip("0")
    return f"{found[1]}T{found[2]}{'.' + fraction if fraction else ''}Z"


def _json(value: Value, kind: ColumnType) -> str:
    parsed = json.loads(_text(value), parse_float=_json_number, parse_constant=lambda _: _fail())
    separators = (", ", ": ") if kind.annotation == "PG_JSONB" else (",", ":")
    return json.dumps(parsed, separators=separators, sort_keys=True, ensure_ascii=False)


def _json_number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError
    return number


def _uuid(value: Value, _: ColumnType) -> str:
    return str(uuid.UUID(_text(value)))


def _interval(value: Value, _: ColumnType) -> str:
    return _text(value) if _INTERVAL.fullmatch(_text(value)) else _fail()


def _string(value: Value, _: ColumnType) -> str:
    _text(value).encode("utf-8")
    return value


_SPELLINGS: dict[str, Callable[[Value, ColumnType], Value]] = {
    "BOOL": _bool,
    "INT64": _int64,
    "FLOAT32": _float,
    "FLOAT64": _float,
    "NUMERIC": _numeric,
    "STRING": _string,
    "BYTES": _bytes,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
    "JSON": _json,
    "UUID": _uuid,
    "INTERVAL": _interval,
    "PROTO": _bytes,
    "ENUM": _int64,
}


def check_length(value: Value, kind: ColumnType, length: int | None, column: str) -> None:
    """Raise FAILED_PRECONDITION if a STRING(n) or BYTES(n) value is too long; `length` None is MAX."""
    if length is None or value is None:
        return
    for each in value if isinstance(value, list) else [value]:
        size = len(base64.b64decode(each)) if kind.code == "BYTES" else len(each or "")
        if size > length:
            raise failed(f"New value exceeds the maximum size limit for this column {column}: {length}.")
