"""Assigns an event to a shard, by a hash of its table and key that is the same in every process and run. Pure."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from penstock.event.column_types import Interval
from penstock.event.model import ChangeEvent


def key_bytes(event: ChangeEvent) -> bytes:
    """Return bytes that are equal for events of one row and different for all others: the table and its key values."""
    values = None if event.key is None else tuple(event.key.values())
    source = event.source
    return _encode((source.system, source.server, source.database, source.schema, source.table, values))


def shard_of(event: ChangeEvent, shards: int) -> int:
    """Return the shard of an event, by the CRC-32 of `key_bytes`."""
    return zlib.crc32(key_bytes(event)) % shards if shards > 1 else 0


def _enc_hook(value: Any) -> Any:
    if isinstance(value, Interval):
        return value.parts()
    raise NotImplementedError(f"a key holds a {type(value).__name__}")


_msgpack = msgspec.msgpack.Encoder(enc_hook=_enc_hook)


def _encode(value: tuple[Any, ...]) -> bytes:
    try:
        return _msgpack.encode(value)
    except OverflowError:  # an integer beyond 64 bits, such as a timestamp of the year 1 in nanoseconds
        return repr(value).encode()
