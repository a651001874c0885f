"""The rule of rolling: when the open file of a lane is closed. Pure; time comes in as a number.

A lane has at most one open file, which is state of the pipeline and no file yet: its lines, and this small
value. It is due `roll_us` after its first line was taken in, or at once when it is full.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Self

from apache_beam import coders

SOON_US = 500_000
"""How long a due file waits whose earliest line is exactly at the watermark."""
LONGEST_US = 366 * 86_400 * 1_000_000
"""The longest that a file may wait: what is due after the end of time fits neither a timer nor a checkpoint."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """What the sink remembers of a lane's open file besides its lines. Times are microseconds since 1970.

    `earliest_us` is the lowest event time in it and holds the output watermark; `due_us` is the processing
    time at which it rolls.
    """

    length: int
    earliest_us: int
    due_us: int

    def with_block(self, length: int, event_us: int) -> Self:
        """Return the file after a block of `length` bytes whose earliest event time is `event_us`."""
        return type(self)(self.length + length, min(self.earliest_us, event_us), self.due_us)

    def due_at_once(self) -> Self:
        """Return the file as one that rolls as soon as it can."""
        return type(self)(self.length, self.earliest_us, 0)


@dataclass(frozen=True, slots=True)
class RollRule:
    """Roll a file `after_us` after its first line came, or when it has `at_bytes` or more.

    `after_us` 0 means every epoch: such a file is due in the past, and a timer in the past fires in the
    epoch that sets it, after all of that epoch's lines.
    """

    after_us: int
    at_bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.after_us <= LONGEST_US:
            raise ValueError(
                f"roll_seconds must be 0 (every epoch) to {LONGEST_US // 1_000_000:,} (a year), "
                f"got {self.after_us // 1_000_000}."
            )
        if self.at_bytes < 1:
            raise ValueError(f"roll_bytes must be 1 or more, got {self.at_bytes}.")

    def open(self, now_us: int) -> OpenFile:
        """Return an empty file that is opened now."""
        return OpenFile(0, (1 << 63) - 1, now_us + self.after_us if self.after_us else 0)

    def due_us(self, file: OpenFile, now_us: int) -> int:
        """Return when the file rolls. If the clock was set back, `file.due_us` may be too far ahead."""
        return min(file.due_us, now_us + self.after_us)

    def is_full(self, file: OpenFile) -> bool:
        """Return whether the file rolls at once."""
        return file.length >= self.at_bytes


class OpenFileCoder(coders.Coder):
    """Encodes an `OpenFile` in 25 bytes: version, then length, earliest_us, due_us as signed big-endian."""

    _layout = struct.Struct(">Bqqq")
    _version = 1

    def encode(self, value: OpenFile) -> bytes:
        return self._layout.pack(self._version, value.length, value.earliest_us, value.due_us)

    def decode(self, encoded: bytes) -> OpenFile:
        version, *fields = self._layout.unpack(encoded)
        if version != self._version:
            raise ValueError(
                f"an open file of format version {version} cannot be read; this Penstock reads version "
                f"{self._version}. Resume with the Penstock that wrote the checkpoint, or newer."
            )
        return OpenFile(*fields)

    def is_deterministic(self) -> bool:
        return True

    def to_type_hint(self) -> type[Any]:
        return OpenFile
