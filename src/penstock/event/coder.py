"""The bytes of a `ChangeEvent`: deterministic, and with a version.

    version   one byte, 1
    event     msgpack array: source, op, timestamp, key, before, after, version, schema, transaction, message, cells,
              user; then incremental and place, if one of them is set; then schema_change, if it is set

`source` and `schema` are the same for many events, so their bytes are made once and copied. Images are msgpack maps in
the order of their columns. Values that msgpack does not have are extensions: 1 is an integer outside of 64 bits (two's
complement, big-endian), 2 a decimal number (its text), 3 an `Interval` (msgpack array of its three parts).
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec
from apache_beam import coders

from penstock.coders import VersionedCoder
from penstock.event.column_types import ColumnType, Interval, Kind
from penstock.event.model import (
    CellChange,
    ChangeEvent,
    Column,
    Message,
    Op,
    SchemaChange,
    Source,
    TableSchema,
    Transaction,
    TransactionPlace,
    Version,
)

VERSION = 1

_BIG_INTEGER, _DECIMAL, _INTERVAL = 1, 2, 3


class _Encoded(msgspec.Struct, array_like=True, gc=False):
    """The layout of an event; the fields have the order of the format."""

    source: msgspec.Raw
    op: Op
    timestamp: Any  # beyond the years 1677 to 2262 it does not fit into 64 bits
    key: dict[str, Any] | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    version: Version
    schema: msgspec.Raw
    transaction: Transaction | None
    message: Message | None
    cells: tuple[CellChange, ...]
    user: str
    incremental: bool = False
    place: TransactionPlace | None = None
    schema_change: SchemaChange | None = None


def encode_event(event: ChangeEvent) -> bytes:
    """Return the bytes of an event.

    Equal events have equal bytes if the columns of their images have the same order.
    """
    schema = event.schema
    encoded = schema.encoded
    if encoded is None:
        encoded = schema.encoded = _encode(schema.columns)
    key, before, after = event.key, event.before, event.after
    for column in _columns_to_wrap(schema):
        key, before, after = _wrapped(column, key), _wrapped(column, before), _wrapped(column, after)
    layout: tuple[Any, ...] = (
        _source_bytes(event.source),
        event.op,
        event.timestamp,
        key,
        before,
        after,
        event.version,
        msgspec.Raw(encoded),
        event.transaction,
        event.message,
        event.cells,
        event.user,
    )
    if event.schema_change is not None:
        layout += (event.incremental, event.place, event.schema_change)
    elif event.incremental or event.place is not None:
        layout += (event.incremental, event.place)
    try:
        return b"\x01" + _encode(layout)
    except OverflowError:
        return b"\x01" + _encode(_with_big_integers(layout))


def decode_event(data: bytes) -> ChangeEvent:
    """Return the event of `encode_event`.

    Raises:
        ValueError: a version that this release does not know, or bytes that are no event.
    """
    if data[:1] != b"\x01":
        ChangeEventCoder().check_version(data[0] if data else None)
    layout = _decode_layout(memoryview(data)[1:])
    return ChangeEvent(
        _source(bytes(layout.source)),
        layout.op,
        layout.timestamp,
        layout.key,
        layout.before,
        layout.after,
        layout.version,
        _schema(bytes(layout.schema)),
        layout.transaction,
        layout.message,
        layout.cells,
        layout.user,
        layout.incremental,
        layout.place,
        layout.schema_change,
    )


class ChangeEventCoder(VersionedCoder):
    """Beam's coder of `ChangeEvent`."""

    value_type = ChangeEvent
    what = "a change event"

    def encode(self, event: ChangeEvent) -> bytes:
        return encode_event(event)

    def decode(self, encoded: bytes) -> ChangeEvent:
        return decode_event(encoded)


coders.registry.register_coder(ChangeEvent, ChangeEventCoder)


def _enc_hook(value: Any) -> Any:
    if isinstance(value, Interval):
        return msgspec.msgpack.Ext(_INTERVAL, _encode(value.parts()))
    raise NotImplementedError(
        f"an image holds a {type(value).__name__}; penstock.event.column_types lists the types of values"
    )


def _ext_hook(code: int, data: memoryview) -> Any:
    if code == _BIG_INTEGER:
        return int.from_bytes(data, "big", signed=True)
    if code == _DECIMAL:
        return Decimal(str(data, "ascii"))
    if code == _INTERVAL:
        return Interval(*msgspec.msgpack.decode(data))
    raise ValueError(f"unknown extension {code} in a change event")


_encode = msgspec.msgpack.Encoder(enc_hook=_enc_hook).encode
_decode_layout = msgspec.msgpack.Decoder(_Encoded, ext_hook=_ext_hook).decode
_decode_columns = msgspec.msgpack.Decoder(tuple[Column, ...]).decode


@lru_cache(maxsize=4096)
def _source_bytes(source: Source) -> msgspec.Raw:
    return msgspec.Raw(_encode(source))


@lru_cache(maxsize=4096)
def _source(encoded: bytes) -> Source:
    return msgspec.msgpack.decode(encoded, type=Source)


@lru_cache(maxsize=4096)
def _schema(encoded: bytes) -> TableSchema:
    schema = TableSchema(_decode_columns(encoded))
    schema.encoded = encoded
    return schema


@lru_cache(maxsize=4096)
def _columns_to_wrap(schema: TableSchema) -> tuple[str, ...]:
    """Return the columns that may hold decimals: msgspec writes a Decimal as text, which would come back as text."""
    return tuple(column.name for column in schema if _holds_decimals(column.type))


def _holds_decimals(type_: ColumnType) -> bool:
    inner = [type_.element] if type_.element else [field.type for field in type_.fields]
    return type_.kind is Kind.DECIMAL or any(map(_holds_decimals, inner))


def _wrapped(column: str, image: dict[str, Any] | None) -> dict[str, Any] | None:
    value = None if image is None else image.get(column)
    return image if image is None or value is None else {**image, column: _with_extensions(value)}


def _with_extensions(value: Any) -> Any:
    """Return the value with each Decimal in it as an extension."""
    if isinstance(value, Decimal):
        return msgspec.msgpack.Ext(_DECIMAL, str(value).encode("ascii"))
    if isinstance(value, list):
        return [_with_extensions(each) for each in value]
    if isinstance(value, dict):
        return {name: _with_extensions(each) for name, each in value.items()}
    return value


def _with_big_integers(value: Any) -> Any:
    """Return the value with each integer that does not fit into 64 bits as an extension."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return msgspec.msgpack.Ext(
            _BIG_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
        )
    if isinstance(value, list | tuple):
        return [_with_big_integers(each) for each in value]
    if isinstance(value, dict):
        return {name: _with_big_integers(each) for name, each in value.items()}
    return value
