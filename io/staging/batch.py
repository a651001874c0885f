"""A staged batch: the events of one shard in one epoch, as it is named by a commit record. Pure.

A small batch is part of its publication, because a file would cost two requests and a sync. A larger one is a staged
file, which is deleted by the clean-up once a later record is committed.

    content   blocks, each: length (u32, big-endian), an encoded `RecordBlock` whose records are encoded events
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.delivery import Delivery
from penstock.io.staging.errors import OutputError
from penstock.io.staging.store import store_of
from penstock.tables import EVERY_TABLE, TableSelection

INLINE_BYTES = 32 * 1024
"""A batch of at most this many bytes is part of its publication."""

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """The publication of a batch.

    `output` and `staged` name the file, relative to the output; both are empty if `content` is the batch itself.
    `length` is in bytes, `crc32` covers the whole content, `records` counts the events.
    """

    delivery: Delivery
    records: int
    length: int
    crc32: int
    output: str = ""
    staged: str = ""
    content: bytes = b""

    def read(self) -> bytes:
        """Return the content.

        Raises:
            OutputError: the staged file is gone or was changed.
        """
        if not self.staged:
            # An empty name means that the batch is in the record.
            return self.content
        # The output of the batch and not the sink's: the pipeline may have been resumed with another one.
        content = store_of(self.output).read(self.staged)
        # Checked again, although a store keeps checksums: a person may have edited or truncated the file.
        if len(content) != self.length or zlib.crc32(content) != self.crc32:
            raise OutputError(
                f"the staged file {self.staged} in {self.output} is not what was staged (length or checksum). "
                "Restore the file, then resume the pipeline."
            )
        return content


@dataclass(frozen=True, slots=True)
class DeliveredBatch:
    """Output of a sink for each delivered batch. `refused` of the `records` went to the error output."""

    delivery: Delivery
    records: int
    refused: int


@dataclass(frozen=True, slots=True)
class EventBlocks:
    """The format of a batch of events; see `penstock.io.staging.FileFormat`."""

    suffix: ClassVar[str] = ".events"
    encode: Callable[[RecordBlock], bytes]

    def content(self, blocks: Iterable[RecordBlock]) -> Iterator[bytes]:
        """Yield each block with its length in front."""
        for block in blocks:
            encoded = self.encode(block)
            yield _LENGTH.pack(len(encoded))
            yield encoded


@dataclass(slots=True)
class StagedEvents:
    """The events of a batch; see `penstock.io.staging.delivery.EventBatch`. Read when they are first needed.

    Only events of the tables of `selection`: a filter that was added after the batch was staged holds for it too. An
    event of no table, such as a message of the log, is always there.
    """

    batch: StagedBatch
    decode_block: Callable[[bytes], RecordBlock]
    decode_record: Callable[[bytes], Iterable[Any]]
    selection: TableSelection = EVERY_TABLE
    _content: bytes | None = field(default=None, init=False)

    def __len__(self) -> int:
        # Without a selection the number is known, and the content need not be read.
        return self.batch.records if self.selection == EVERY_TABLE else sum(1 for _ in self)

    def __iter__(self) -> Iterator[Any]:
        if self._content is None:
            self._content = self.batch.read()
        # The position is local, so that two iterations do not disturb each other.
        content, start = self._content, 0
        every = self.selection == EVERY_TABLE
        while start < len(content):
            (length,) = _LENGTH.unpack_from(content, start)
            start += _LENGTH.size
            for record in self.decode_block(content[start : start + length]).contents():
                for event in self.decode_record(record):
                    source = event.source
                    if every or not source.table or self.selection.has(source.schema, source.table):
                        yield event
            start += length
