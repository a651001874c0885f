"""Keys as texts, and values as bytes. Pure.

A key is the text that the table sinks store for it (`key_text`): a JSON array of the values of the event's key.
"""

from __future__ import annotations

from base64 import b64decode
from decimal import Decimal
from typing import Any

import msgspec

from penstock.event.column_types import Interval, Kind
from penstock.event.model import TableSchema


def _enc_hook(value: object) -> object:
    if isinstance(value, Interval):
        return value.parts()
    raise NotImplementedError(f"a row holds a {type(value).__name__}")


INTEGERS = frozenset(
    (Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64, Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64)
)
NO_KEY = "null"
"""Stands for the key of rows of a target that have none: another program has written them."""

_encode = msgspec.msgpack.Encoder(enc_hook=_enc_hook, decimal_format="string").encode
_decode = msgspec.json.Decoder().decode


def encode_values(values: Any) -> bytes:
    """Return the bytes that equal values of rows share. Values that are decoded from them have the same bytes."""
    try:
        return _encode(values)
    except OverflowError:  # a time after the year 2262, in nanoseconds
        return _encode(_short(values))


def _short(value: Any) -> Any:
    """Return a value with texts in place of integers that MessagePack cannot hold."""
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(each) for each in value]
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


def key_values(schema: TableSchema, key: str) -> list[Any]:
    """Return the values of a key, as events have them. `schema`: of the source's events.

    Raises:
        ValueError: the text is no key of the table: another program has written it.
    """
    try:
        pairs = zip(schema.key_columns, _decode(key), strict=True)
        return [None if value is None else _key_value(column.type.kind, value) for column, value in pairs]
    except (TypeError, ArithmeticError, msgspec.MsgspecError) as error:
        raise ValueError("not a key of the table") from error


def _key_value(kind: Kind, value: Any) -> Any:
    if kind in (Kind.BYTES, Kind.PROTO):
        return b64decode(value)
    if kind is Kind.DECIMAL:
        return Decimal(value)
    if kind in INTEGERS and not isinstance(value, int):
        raise ValueError(f"a key of another type than {kind}")
    return value
