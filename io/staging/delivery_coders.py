"""Bytes of the values of sinks that send rows: in the checkpoint, or between processes.

Each encoding is a version byte, then msgpack.
"""

from __future__ import annotations

import msgspec
from apache_beam import coders

from penstock.coders import VersionedCoder
from penstock.event.coder import decode_event, encode_event
from penstock.io.staging.batch import DeliveredBatch, StagedBatch
from penstock.io.staging.refused import RefusedEvent


class StagedBatchCoder(VersionedCoder):
    """Encodes a `StagedBatch`: a map of its fields."""

    value_type = StagedBatch
    what = "a staged batch"

    def encode(self, value: StagedBatch) -> bytes:
        return b"\x01" + msgspec.msgpack.encode(value)

    def decode(self, encoded: bytes) -> StagedBatch:
        self.check_version(encoded[0] if encoded else None)
        return _decode_staged(memoryview(encoded)[1:])


class DeliveredBatchCoder(VersionedCoder):
    """Encodes a `DeliveredBatch`: a map of its fields."""

    value_type = DeliveredBatch
    what = "a delivered batch"

    def encode(self, value: DeliveredBatch) -> bytes:
        return b"\x01" + msgspec.msgpack.encode(value)

    def decode(self, encoded: bytes) -> DeliveredBatch:
        self.check_version(encoded[0] if encoded else None)
        return _decode_delivered(memoryview(encoded)[1:])


class RefusedEventCoder(VersionedCoder):
    """Encodes a `RefusedEvent`: an array of the encoded event, the target and the reason."""

    value_type = RefusedEvent
    what = "a refused event"

    def encode(self, value: RefusedEvent) -> bytes:
        return b"\x01" + msgspec.msgpack.encode((encode_event(value.event), value.target, value.reason))

    def decode(self, encoded: bytes) -> RefusedEvent:
        self.check_version(encoded[0] if encoded else None)
        event, target, reason = msgspec.msgpack.decode(memoryview(encoded)[1:])
        return RefusedEvent(decode_event(event), target, reason)


_decode_staged = msgspec.msgpack.Decoder(StagedBatch).decode
_decode_delivered = msgspec.msgpack.Decoder(DeliveredBatch).decode

for _coder in (StagedBatchCoder, DeliveredBatchCoder, RefusedEventCoder):
    coders.registry.register_coder(_coder.value_type, _coder)
