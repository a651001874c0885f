"""Bytes of the values that staging keeps in the checkpoint or sends to another process.

Each encoding begins with its version. A release that changes one still reads the versions before it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import astuple
from typing import Any, Generic, TypeVar

from apache_beam import coders

from penstock.coders import VersionedCoder
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.rolling import OpenFile
from penstock.io.staging.staged_file import PublishedFile, StagedFile

Value = TypeVar("Value", StagedFile, PublishedFile)


class _ArrayCoder(VersionedCoder, Generic[Value]):
    """A dataclass of str and int fields as a JSON array, the version first. People can read it in a commit record."""

    def encode(self, value: Value) -> bytes:
        # The version comes first, so a newer release can tell an old array before it looks at the fields.
        fields = (self.versions[-1], *astuple(value))
        # A path of Linux need not be UTF-8; Python holds its other bytes as surrogates.
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "surrogateescape"
        )

    def decode(self, encoded: bytes) -> Value:
        version, *fields = json.loads(encoded.decode("utf-8", "surrogateescape"))
        self.check_version(version)
        value: Value = self.value_type(*fields)
        return value


class StagedFileCoder(_ArrayCoder[StagedFile]):
    """Encodes a `StagedFile`: ``[1, output, staged, final, length, crc32, records]``."""

    value_type = StagedFile
    what = "a publication"


class PublishedFileCoder(_ArrayCoder[PublishedFile]):
    """Encodes a `PublishedFile`: ``[1, path, length, crc32, records]``."""

    value_type = PublishedFile
    what = "a published file"


class OpenFileCoder(VersionedCoder):
    """Encodes an `OpenFile` in 33 bytes, big-endian.

    version (u8), length (i64), records (i64), earliest_us (i64), due_us (i64)
    """

    value_type = OpenFile
    what = "an open file"
    _layout = struct.Struct(">Bqqqq")

    def encode(self, value: OpenFile) -> bytes:
        return self._layout.pack(
            self.versions[-1], value.length, value.records, value.earliest_us, value.due_us
        )

    def decode(self, encoded: bytes) -> OpenFile:
        self.check_version(encoded[0])
        _, *fields = self._layout.unpack(encoded)
        return OpenFile(*fields)


class RecordBlockCoder(VersionedCoder):
    """Encodes a `RecordBlock`, big-endian.

    version 1 (u8), number of records (u32), their event times in µs (i64 each), their lengths (u32 each), the payload

    Records that are a staged file, only between the tasks of an epoch:

    version 2 (u8), the earliest event time in µs (i64), the file as `StagedFileCoder` encodes it
    """

    value_type = RecordBlock
    what = "a block of records"
    versions = (1, 2)
    _head = struct.Struct(">BI")
    _staged_head = struct.Struct(">Bq")

    def encode(self, value: RecordBlock) -> bytes:
        if value.staged is not None:
            head = self._staged_head.pack(self.versions[1], value.earliest_us)
            return head + StagedFileCoder().encode(value.staged)
        count = len(value.lengths)
        # Arrays of numbers instead of one entry per record: a block is packed in one call.
        head = self._head.pack(self.versions[0], count)
        return head + struct.pack(f">{count}q{count}I", *value.times_us, *value.lengths) + value.payload

    def decode(self, encoded: bytes) -> RecordBlock:
        self.check_version(encoded[0])
        if encoded[0] == self.versions[1]:
            _, earliest_us = self._staged_head.unpack_from(encoded)
            file = StagedFileCoder().decode(encoded[self._staged_head.size :])
            return RecordBlock((earliest_us,), (), b"", file)
        _, count = self._head.unpack_from(encoded)
        columns = struct.Struct(f">{count}q{count}I")
        numbers = columns.unpack_from(encoded, self._head.size)
        return RecordBlock(numbers[:count], numbers[count:], encoded[self._head.size + columns.size :])


def _register(*known: Any) -> None:
    for coder in known:
        coders.registry.register_coder(coder.value_type, coder)


_register(StagedFileCoder, PublishedFileCoder, RecordBlockCoder)
