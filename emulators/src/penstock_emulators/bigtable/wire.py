"""Change stream messages as bytes, cut into chunks. Pure.

A record is sent to several streams, and most of its bytes are the same for all. So they are made once, when
the record is written, by hand: building the same messages from Google's classes takes three times as long. The
tests parse everything back with those classes.

Source: google/bigtable/v2/bigtable.proto, ReadChangeStreamResponse, with its comments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from google.cloud.bigtable_v2.types import bigtable as bigtable_types
from google.cloud.bigtable_v2.types import data as data_types
from google.rpc import status_pb2

from penstock_emulators.bigtable.layout import KeyRange

USER, GARBAGE_COLLECTION, CONTINUATION = 1, 2, 3
"""Types of a DataChange."""

Response = bigtable_types.ReadChangeStreamResponse.pb()
Mutation = data_types.Mutation.pb()
StreamPartition = data_types.StreamPartition.pb()

_DONE = b"\x40\x01"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a record. Garbage collection has no cluster."""

    cluster: str
    tiebreaker: int = 0
    kind: int = USER


class RecordEncoder:
    """Makes the DataChange messages of records that come from one origin.

    A message holds about `chunk_bytes` at most; a longer SetCell value is cut, its first chunk last in its
    message and the others first in theirs.
    """

    def __init__(self, origin: Origin, chunk_bytes: int) -> None:
        """Encode once what is the same in all records."""
        # The tags of fields are written as bytes: number << 3 | 2 for a length-delimited field.
        cluster = _field(0x12, origin.cluster.encode()) if origin.cluster else b""
        self._head = b"\x08" + _varint(origin.kind) + cluster
        self._tiebreaker = b"\x28" + _varint(origin.tiebreaker) if origin.tiebreaker else b""
        self._chunk_bytes = chunk_bytes

    def messages(self, key: bytes, commit_us: int, mutations: Sequence[Any]) -> tuple[bytes, ...]:
        """Return the messages of a record of at least one mutation, without what `finished` adds.

        Mutations are parsed google.bigtable.v2.Mutation messages.
        """
        cells = [mutation.SerializeToString() for mutation in mutations]
        moment = _field(0x22, _timestamp(commit_us))
        head = b"".join((self._head, _field(0x1A, key), moment, self._tiebreaker))
        if sum(map(len, cells)) <= self._chunk_bytes:
            return (head + b"".join([_field(0x32, _field(0x12, cell)) for cell in cells]),)
        first, *others = _messages(mutations, cells, self._chunk_bytes)
        # Type CONTINUATION; the service repeats neither the key nor the time.
        return (head + first, *(b"\x08\x03" + other for other in others))


def data_change(message: bytes) -> bytes:
    """Return the response that carries a message of a record which is not its last."""
    return _field(0x0A, message)


def finished(message: bytes, token: str, watermark_us: int) -> bytes:
    """Return the response that carries the last message of a record."""
    tail = _DONE + _field(0x4A, token.encode("ascii")) + _field(0x52, _timestamp(watermark_us))
    return _field(0x0A, message + tail)


def heartbeat(keys: KeyRange, token: str, watermark_us: int) -> bytes:
    """Return a heartbeat response."""
    response = Response()
    response.heartbeat.continuation_token.partition.CopyFrom(partition_message(keys))
    response.heartbeat.continuation_token.token = token
    response.heartbeat.estimated_low_watermark.FromMicroseconds(watermark_us)
    return bytes(response.SerializeToString())


def close(
    code: int, message: str, tokens: Sequence[tuple[KeyRange, str]] = (), targets: Sequence[KeyRange] = ()
) -> bytes:
    """Return a CloseStream response: its status, continuation tokens and new partitions."""
    response = Response()
    response.close_stream.status.CopyFrom(status_pb2.Status(code=code, message=message))
    for keys, token in tokens:
        response.close_stream.continuation_tokens.add(partition=partition_message(keys), token=token)
    response.close_stream.new_partitions.extend([partition_message(target) for target in targets])
    return bytes(response.SerializeToString())


def partition_message(keys: KeyRange) -> Any:
    """Return a StreamPartition: closed start, open end, both always set as in the service's answers."""
    partition = StreamPartition()
    partition.row_range.start_key_closed = keys.start
    partition.row_range.end_key_open = keys.end
    return partition


def _messages(mutations: Sequence[Any], cells: Sequence[bytes], limit: int) -> Iterator[bytes]:
    """Yield the chunks of each message, filled up to `limit` bytes of mutations and parts of values."""
    message: list[bytes] = []
    size = 0
    for mutation, cell in zip(mutations, cells, strict=True):
        # A long value starts in the room that is left, as the service fills messages.
        for chunk, weight in _chunks(mutation, cell, limit, limit - size if size < limit else limit):
            if message and size + weight > limit:
                yield b"".join(message)
                message, size = [], 0
            message.append(chunk)
            size += weight
    yield b"".join(message)


def _chunks(mutation: Any, cell: bytes, limit: int, room: int) -> Iterator[tuple[bytes, int]]:
    """Yield a mutation as one chunk, or a long value as several, the first of at most `room` bytes.

    Each comes with its size. Family, qualifier and framing of a part of a value are not counted.
    """
    total = len(mutation.set_cell.value) if mutation.HasField("set_cell") else 0
    if total <= limit:
        yield _field(0x32, _field(0x12, cell)), len(cell)
        return
    offset, value = 0, mutation.set_cell.value
    while offset < total:
        piece = value[offset : offset + (limit if offset else room)]
        yield _chunk_of_value(mutation, piece, offset, total), len(piece)
        offset += len(piece)


def _chunk_of_value(mutation: Any, piece: bytes, offset: int, total: int) -> bytes:
    chunk = Response.MutationChunk()
    chunk.chunk_info.chunked_value_size = total
    chunk.chunk_info.chunked_value_offset = offset
    chunk.chunk_info.last_chunk = offset + len(piece) == total
    # The first chunk names the cell, and the others only carry bytes.
    if not offset:
        chunk.mutation.set_cell.family_name = mutation.set_cell.family_name
        chunk.mutation.set_cell.column_qualifier = mutation.set_cell.column_qualifier
        chunk.mutation.set_cell.timestamp_micros = mutation.set_cell.timestamp_micros
    chunk.mutation.set_cell.value = piece
    return _field(0x32, chunk.SerializeToString())


def _timestamp(us: int) -> bytes:
    """Return a google.protobuf.Timestamp; nothing here is older than 1970."""
    seconds, rest = divmod(max(us, 0), 1_000_000)
    return _seconds(seconds) + _varint(rest * 1000)


@lru_cache(maxsize=64)
# Nearly all records of a second share these bytes.
def _seconds(seconds: int) -> bytes:
    return b"\x08" + _varint(seconds) + b"\x10"


def _field(tag: int, payload: bytes) -> bytes:
    """Return a length-delimited field; `tag` is the whole tag byte."""
    size = len(payload)
    if size < 128:
        return bytes((tag, size)) + payload
    return bytes((tag,)) + _varint(size) + payload


def _varint(number: int) -> bytes:
    """Return a varint; a negative int32 takes ten bytes, as in protobuf."""
    if 0 <= number < 1 << 14:
        return bytes((number,)) if number < 128 else bytes((number & 127 | 128, number >> 7))
    if 1 << 28 <= number < 1 << 35:  # most nanoseconds
        return bytes(
            (
                number & 127 | 128,
                number >> 7 & 127 | 128,
                number >> 14 & 127 | 128,
                number >> 21 & 127 | 128,
                number >> 28,
            )
        )
    # Protobuf extends the sign to 64 bits.
    number &= (1 << 64) - 1
    octets = bytearray()
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    octets.append(number)
    return bytes(octets)
