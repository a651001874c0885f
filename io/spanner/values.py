"""Converts the JSON text of a row to Python values, for every column type of Spanner. Pure.

INT64 and NUMERIC arrive as strings, BYTES and PROTO as base64, NaN and infinities as strings.

Source: google.spanner.v1.TypeCode ("Encoded as …") and Cloud Spanner documentation, "Change streams partitions,
records, and queries" (Data change records).
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any, TypedDict

import msgspec

from penstock.event.column_types import ColumnType, Field, Interval, Kind
from penstock.event.float32 import shortest
from penstock.event.model import Image, TableSchema
from penstock.timestamps import parse_timestamp

_EPOCH_DAY = date(1970, 1, 1).toordinal()

_KINDS = {
    "BOOL": Kind.BOOL,
    "INT64": Kind.INT64,
    "FLOAT32": Kind.FLOAT32,
    "FLOAT64": Kind.FLOAT64,
    "NUMERIC": Kind.DECIMAL,
    "STRING": Kind.STRING,
    "BYTES": Kind.BYTES,
    "DATE": Kind.DATE,
    "TIMESTAMP": Kind.TIMESTAMP,
    "JSON": Kind.JSON,
    "UUID": Kind.UUID,
    "INTERVAL": Kind.INTERVAL,
    "ENUM": Kind.ENUM,
    "PROTO": Kind.PROTO,
    "ARRAY": Kind.ARRAY,
    "STRUCT": Kind.STRUCT,
}


def column_type(text: str) -> ColumnType:
    """Return the logical type of a google.spanner.v1.Type, given as the JSON text of a change record.

    A type that this release does not know is OTHER: its values stay as JSON has them.
    """
    return _column_type(json.loads(text))


def _column_type(spanner: dict[str, Any]) -> ColumnType:
    code = spanner.get("code", "")
    # PG_NUMERIC, PG_JSONB, PG_OID: types of the PostgreSQL dialect, in the same wire form.
    native = spanner.get("type_annotation") or code
    numeric = native == "NUMERIC"  # the GoogleSQL type has 29 digits before the point and 9 after it
    element = spanner.get("array_element_type")
    struct = spanner.get("struct_type", {}).get("fields", ())
    return ColumnType(
        _KINDS.get(code, Kind.OTHER),
        native,
        precision=38 if numeric else None,
        scale=9 if numeric else None,
        element=_column_type(element) if element else None,
        fields=tuple(Field(field.get("name", ""), _column_type(field["type"])) for field in struct),
        name=spanner.get("proto_type_fqn", ""),
    )


class RowDecoder:
    """Decodes one side of a mod, a JSON object, to column name and Python value; for one table.

    In its lax mode msgspec turns "17" into 17 and "NaN" into nan in C. A row then costs little more than with a decoder
    that leaves all values as they are, and a fraction of conversions in Python.
    """

    def __init__(self, table: str, schema: TableSchema) -> None:
        self._table = table
        self._types = {column.name: column.type for column in schema}
        wire = {name: wire_type(type_) for name, type_ in self._types.items()}
        row = TypedDict("row", wire, total=False)  # type: ignore[misc]
        self._decode: Callable[[str], Any] = msgspec.json.Decoder(row, strict=False).decode
        rest = {name: rest_of_conversion(type_) for name, type_ in self._types.items()}
        self._rest = [(name, convert) for name, convert in rest.items() if convert is not None]

    def __call__(self, text: str) -> Image:
        """Return the columns of the JSON object `text`. The empty text stands for NULL and has no columns.

        Raises:
            ValueError: a value does not have the form of its type; the message names table and column, not the value.
        """
        if not text:
            return {}
        try:
            image: Image = self._decode(text)
            for name, convert in self._rest:
                value = image.get(name)
                if value is not None:
                    image[name] = convert(value)
        except ValueError:
            return self._by_column(text)
        # A typed decoder drops members that its type does not have, which would lose a column. Each member has one
        # `":`. If a value contains these characters too, the counts differ as well, and the slow path gives the
        # same result.
        return image if text.count('":') == len(image) else self._by_column(text)

    def _by_column(self, text: str) -> Image:
        """As `__call__`, one column at a time: for forms that only emulators send, and for the error message."""
        image: Image = msgspec.json.decode(text, type=dict[str, Any])
        for name, value in image.items():
            type_ = self._types.get(name, _UNKNOWN)
            try:
                image[name] = None if value is None else python_value(type_, value)
            except (ValueError, TypeError, ArithmeticError):
                raise ValueError(
                    f"column {name} of table {self._table}: the value does not have the form of a {type_.native}"
                ) from None
        return image


def python_value(type_: ColumnType, value: Any) -> Any:
    """Return the Python value of a JSON value that is not null.

    Raises:
        ValueError, TypeError, ArithmeticError: the value does not have the form of its type.
    """
    if type_.kind is Kind.ARRAY:
        element = type_.element or _UNKNOWN
        # Google's emulator sends a NULL inside an ARRAY<INT64> as the string "NULL" (build of June 2025).
        null = "NULL" if element.kind in (Kind.INT64, Kind.DECIMAL) else None
        return [None if each is None or each == null else python_value(element, each) for each in value]
    convert = _FROM_JSON.get(type_.kind)
    return value if convert is None else convert(value)


_UNKNOWN = ColumnType(Kind.OTHER, "column that the record does not describe")


def wire_type(type_: ColumnType) -> Any:
    """Return the type that msgspec decodes a column to: its final type where msgspec has it, else the JSON value."""
    if type_.kind is Kind.ARRAY and type_.element and type_.element.kind in _DECODED_BY_MSGSPEC:
        return list[wire_type(type_.element)] | None  # type: ignore[misc]
    if type_.kind is Kind.DATE:
        return date | None
    return _DECODED_BY_MSGSPEC.get(type_.kind, Any)


_DECODED_BY_MSGSPEC: dict[Kind, Any] = {
    Kind.BOOL: bool | None,
    Kind.INT64: int | None,
    Kind.FLOAT32: float | None,
    Kind.FLOAT64: float | None,
    Kind.DECIMAL: Decimal | None,
    Kind.STRING: str | None,
}
# Not BYTES: lax msgspec takes the base64 text "null", which is a value of three bytes, for NULL.


def rest_of_conversion(type_: ColumnType) -> Callable[[Any], Any] | None:
    """Return what turns the value that msgspec decoded, if it is not None, into the final one."""
    if type_.kind is Kind.DATE:
        return lambda value: value.toordinal() - _EPOCH_DAY
    if type_.kind is Kind.FLOAT32:
        return shortest
    if type_.kind in _DECODED_BY_MSGSPEC:
        return None
    if type_.kind is Kind.ARRAY:
        if type_.element is not None and type_.element.kind is Kind.FLOAT32:
            return lambda values: [None if each is None else shortest(each) for each in values]
        in_c = type_.element is not None and type_.element.kind in _DECODED_BY_MSGSPEC
        return None if in_c else lambda value: python_value(type_, value)
    return _FROM_JSON.get(type_.kind)


def _float(value: float | str) -> float:
    return float(value)  # "NaN", "Infinity", "-Infinity"; a whole number arrives as an integer


def _decimal(value: str | float) -> Decimal:
    return Decimal(value if isinstance(value, str) else str(value))


def _date(text: str) -> int:
    year, month, day = text.split("-")  # Google's emulator writes the year 1 as "1-01-01"
    return date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY


def _timestamp(text: str) -> int:
    try:
        return parse_timestamp(text)
    except ValueError:
        if text.find("-") == 4:
            raise
    year, dash, rest = text.partition("-")  # Google's emulator writes the year 1 as "1-01-01T00:00:00Z"
    return parse_timestamp(f"{year:0>4}{dash}{rest}")


_INTERVAL = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:[.,](\d{1,9}))?S)?)?",
    re.ASCII,
)


def _interval(text: str) -> Interval:
    """Parse ISO 8601 as Spanner writes it: ``P1Y2M3DT4H5M6.789S``, each part with a sign."""
    match = _INTERVAL.fullmatch(text)
    if match is None or len(text) < 3:
        raise ValueError("not an ISO 8601 duration")
    years, months, days, hours, minutes = (int(part or 0) for part in match.groups()[:5])
    nanoseconds = int(match[7] or 0) * 1_000_000_000 + int((match[8] or "0").ljust(9, "0"))
    time = (hours * 60 + minutes) * 60_000_000_000 + (-nanoseconds if match[6] else nanoseconds)
    return Interval(years * 12 + months, days, time)


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_FROM_JSON: dict[Kind, Callable[[Any], Any]] = {
    Kind.INT64: int,
    Kind.FLOAT32: lambda value: shortest(_float(value)),
    Kind.FLOAT64: _float,
    Kind.DECIMAL: _decimal,
    Kind.BYTES: a2b_base64,
    Kind.PROTO: a2b_base64,
    Kind.DATE: _date,
    Kind.TIMESTAMP: _timestamp,
    Kind.INTERVAL: _interval,
    Kind.JSON: _json_text,
    Kind.ENUM: str,
}
