"""Keys as texts, and digests of rows. Pure.

A key is the text that the table sinks store for it (`key_text`): a JSON array of the values of the event's key.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import msgspec

from penstock.event.column_types import Interval, Kind
from penstock.event.model import TableSchema


def _enc_hook(value: object) -> object:
    if isinstance(value, Interval):
        return value.parts()
    raise NotImplementedError(f"a row holds a {type(value).__name__}")


_encode = msgspec.msgpack.Encoder(enc_hook=_enc_hook, decimal_format="string").encode
_decode = msgspec.json.Decoder().decode


def row_digest(values: Iterable[Any]) -> bytes:
    """Return 16 bytes that rows with equal values share."""
    return blake2b(_encode(list(values)), digest_size=16).digest()


def key_values(schema: TableSchema, key: str) -> list[Any]:
    """Return the values of a key, as events have them. `schema`: of the source's events."""
    read: dict[Kind, Callable[[str], Any]] = {
        Kind.BYTES: b64decode,
        Kind.PROTO: b64decode,
        Kind.DECIMAL: Decimal,
    }
    return [
        read[column.type.kind](value) if value is not None and column.type.kind in read else value
        for column, value in zip(schema.key_columns, _decode(key), strict=True)
    ]
