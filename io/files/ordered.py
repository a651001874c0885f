"""Lines with their event times, and how a file takes those that the watermark has passed. Pure.

The lines of a lane may come from several readers, one ahead of the other. What lies below the watermark is
complete: sorted by event time it can be written, and nothing that comes later belongs before it. The rest
waits. Lines of one event time keep the order in which they came.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from operator import itemgetter

_HEAD = struct.Struct(">qI")

Timed = tuple[int, bytes]
"""(event time in µs since 1970, line)."""


def pack(lines: Iterable[Timed]) -> bytes:
    """Return lines as one block: for each the event time (8 bytes), the length (4 bytes), the line."""
    return b"".join(_HEAD.pack(at, len(line)) + line for at, line in lines)


def unpack(block: bytes) -> Iterator[Timed]:
    """Yield the lines of a block in their order."""
    position = 0
    while position < len(block):
        at, length = _HEAD.unpack_from(block, position)
        position += _HEAD.size + length
        yield at, block[position - length : position]


def split(blocks: Iterable[bytes], watermark_us: int) -> tuple[list[bytes], list[Timed]]:
    """Return the lines below the watermark in event-time order, and the others in the order in which they came."""
    lines = [line for block in blocks for line in unpack(block)]
    ready = sorted((line for line in lines if line[0] < watermark_us), key=itemgetter(0))
    return [line for _, line in ready], [line for line in lines if line[0] >= watermark_us]
