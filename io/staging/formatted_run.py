"""Formatted events in a staged batch.

    encoded = FormatBeforeCommit(format, "Kafka at …", refuses=False)(event)     # in the task that has the event
    events = decode_staged(encoded)                                              # in the sender, after the commit

So nothing is formatted after the commit. A record of a staged batch is an encoded event, or a run of formatted events
of one source. The first byte tells them apart: it is the version of an encoded event, and 0xFE of a run. In a block
(`penstock.io.staging.blocks.BucketRun`) a run is followed by an empty record for each of its events but the first.

The rest of a run is a block of LZ4 with its length (u32, big-endian) before compression in front: records of a format
repeat most of their text, and pass through Spark's exchange and a file. The block is a msgpack array: source, loader,
shared, events.
An event is an array: op, id, version, of_row, records (each: topic, key, value, timestamp, headers), reason, origin.
`loader` names the function that makes the event from `shared` and `origin`, ``module:name``; if it is empty, `origin`
is the encoded event.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import msgspec
import pyarrow as pa

from penstock.event.coder import decode_event, encode_event
from penstock.event.model import ChangeEvent, Source
from penstock.io.staging.format import Format
from penstock.io.staging.formatted_event import FormattedEvent, QueueRecord, format_event
from penstock.io.staging.row_refused import row_refused

_RUN = b"\xfe"
_LENGTH = struct.Struct(">I")
_lz4 = pa.Codec("lz4_raw")


class _Entry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    op: str
    id: str
    version: str
    of_row: bool
    records: tuple[QueueRecord, ...]
    reason: str
    # Not decoded: only an error output needs the event itself.
    origin: msgspec.Raw


class _Run(msgspec.Struct, frozen=True, gc=False, array_like=True):
    source: Source
    loader: str
    shared: msgspec.Raw
    entries: list[_Entry]


class FormatBeforeCommit:
    """The function from an event to its staged record, as a value that can be pickled.

    `target` names the target in messages. An event that the format cannot express raises a `RowRefusedError`. With
    `refuses` it is staged, and the sender refuses it.
    """

    def __init__(self, format: Format, target: str, *, refuses: bool) -> None:
        self._format, self._target, self._refuses = format, target, refuses

    def __call__(self, event: ChangeEvent) -> bytes:
        formatted = format_event(event, self._format)
        if formatted.reason and not self._refuses:
            raise row_refused(event, self._target, formatted.reason)
        entry = (
            formatted.op,
            formatted.id,
            formatted.version,
            formatted.of_row,
            formatted.records,
            formatted.reason,
            encode_event(event),
        )
        return encode_run(encoded_source(event.source), "", None, [entry])


def encode_run(source: msgspec.Raw, loader: str, shared: Any, entries: Sequence[tuple[Any, ...]]) -> bytes:
    """Return the staged record of a run; `source` is of `encoded_source`. See above for the other values."""
    encoded = _encode((source, loader, shared, entries))
    return _RUN + _LENGTH.pack(len(encoded)) + _lz4.compress(encoded, asbytes=True)


def decode_staged(record: bytes) -> Iterator[ChangeEvent | FormattedEvent]:
    """Yield the events of a staged record, formatted or not.

    Raises:
        ValueError: it is no such record.
    """
    # It stands for an event of the run before it.
    if not record:
        return
    if not record.startswith(_RUN):
        yield decode_event(record)
        return
    (length,) = _LENGTH.unpack_from(record, len(_RUN))
    compressed = memoryview(record)[len(_RUN) + _LENGTH.size :]
    run = _decode(_lz4.decompress(compressed, length, asbytes=True))
    for each in run.entries:
        yield FormattedEvent(
            run.source,
            each.op,
            each.id,
            each.version,
            each.of_row,
            each.records,
            each.reason,
            _EventOf(run.loader, run.shared, each.origin),
        )


class _EventOf(msgspec.Struct, frozen=True, gc=False):
    """Makes the event of an entry, which is seldom needed."""

    loader: str
    shared: msgspec.Raw
    origin: msgspec.Raw

    def __call__(self) -> ChangeEvent:
        if not self.loader:
            return decode_event(msgspec.msgpack.decode(self.origin))
        module, _, name = self.loader.partition(":")
        event: ChangeEvent = getattr(import_module(module), name)(self.shared, self.origin)
        return event


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Run).decode


@lru_cache(maxsize=4096)
def encoded_source(source: Source) -> msgspec.Raw:
    """Return the encoded source of runs. Many of them share it, so it is made once."""
    return msgspec.Raw(msgspec.msgpack.encode(source))
