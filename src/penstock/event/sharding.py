"""Assigns an event to a shard, by a hash of its table and key that is the same in every process and run. Pure."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from penstock.event.column_types import Interval
from penstock.event.model import ChangeEvent, Image, Source


def key_bytes(event: ChangeEvent) -> bytes:
    """Return bytes that are equal for events of one row and different for all others: the table and its key values."""
    return _row_bytes(event.source, event.key)


def shard_of(event: ChangeEvent, shards: int) -> int:
    """Return the shard of an event, by the CRC-32 of `key_bytes`. A copy of a SCHEMA event names its shard."""
    if event.schema_change is not None:
        return event.schema_change.shard
    return shard_of_row(event.source, event.key, shards)


def shard_of_row(source: Source, key: Image | None, shards: int) -> int:
    """Return the shard of the events with this source and key."""
    return zlib.crc32(_row_bytes(source, key)) % shards if shards > 1 else 0


class ShardOfKey:
    """The function `shard_of_row` for the keys of one source."""

    def __init__(self, source: Source, shards: int) -> None:
        self._source, self._shards = source, shards
        # The key is the last part of the bytes, and no key is one byte. So the checksum of the rest is made once.
        self._checksum = zlib.crc32(_row_bytes(source, None)[:-1])

    def __call__(self, key: Image | None) -> int:
        if self._shards == 1:
            return 0
        try:
            values = _msgpack.encode(None if key is None else tuple(key.values()))
        except OverflowError:
            return shard_of_row(self._source, key, self._shards)
        return zlib.crc32(values, self._checksum) % self._shards


def _row_bytes(source: Source, key: Image | None) -> bytes:
    values = None if key is None else tuple(key.values())
    return _encode((source.system, source.server, source.database, source.schema, source.table, values))


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
