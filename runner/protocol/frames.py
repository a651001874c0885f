"""What travels between levels: frames with a header that says who made them. Pure.

Three kinds. DATA holds encoded elements of one edge, at most about a megabyte, numbered per (edge, target)
so that a consumer takes them in the producer's order. REPORT closes what one task attempt sends to one
target: how many DATA frames of each edge to expect, and the watermarks of its stages. CONTROL is a task's
report to the driver, handed on from level to level.

The header carries the nonce of the attempt that made the frame. A consumer that sees two nonces of one
producer, or a number of frames that differs from the report, says so; the driver then aborts the epoch.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct(">BHI16sHI")

FRAME_BYTES = 1 << 20
"""Size at which a DATA frame is sent off; 16 such blocks shuffle three times faster than 400k records.

What is written last may be larger than that: one element, or the values of one key that were written together.
"""


class Kind(enum.IntEnum):
    """What a frame holds."""

    DATA = 1
    REPORT = 2
    CONTROL = 3


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `level`, `partition` and `nonce` name the producing attempt; `number` counts from 0."""

    kind: Kind
    level: int
    partition: int
    nonce: str
    edge: int
    number: int
    payload: bytes

    def pack(self) -> bytes:
        """The frame as bytes for the exchange."""
        head = _HEADER.pack(
            self.kind, self.level, self.partition, self.nonce.encode("ascii"), self.edge, self.number
        )
        return head + self.payload

    @classmethod
    def unpack(cls, data: bytes) -> Frame:
        """The inverse of `pack`."""
        kind, level, partition, nonce, edge, number = _HEADER.unpack_from(data)
        payload = data[_HEADER.size :]
        return cls(Kind(kind), level, partition, nonce.decode("ascii"), edge, number, payload)


class InOrder:
    """Hands on the DATA frames of each producer and edge in their number's order, holding back early ones."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, int, int], int] = {}
        self._early: dict[tuple[int, int, int], dict[int, Frame]] = {}

    def take(self, frame: Frame) -> Iterator[Frame]:
        """Yield `frame` if it is the next of its kind, and any that waited for it."""
        lane = (frame.level, frame.partition, frame.edge)
        waiting = self._early.setdefault(lane, {})
        waiting[frame.number] = frame
        while (number := self._next.get(lane, 0)) in waiting:
            self._next[lane] = number + 1
            yield waiting.pop(number)
