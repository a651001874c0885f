"""Decides when the open file of a bucket is closed. Pure; the time is an argument.

A bucket has at most one open file. It is not yet a file on a disk, but state of the pipeline: its records, and an
`OpenFile`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from typing_extensions import Self

from penstock.io.staging.blocks import END_OF_TIME_US, RecordBlock

MAX_US = 366 * 86_400 * 1_000_000
"""The longest time for which a file may stay open. A later due time would fit neither a timer nor a checkpoint."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open file without its records. Times are in microseconds since 1970.

    `length` is the bytes of its `records` records, `earliest_us` the lowest event time of them, which holds the output
    watermark. `due_us` is the processing time at which the file rolls.
    """

    length: int
    records: int
    earliest_us: int
    due_us: int

    def with_block(self, block: RecordBlock) -> Self:
        """Return the file with the records of `block` added."""
        return replace(
            self,
            length=self.length + len(block.payload),
            records=self.records + len(block.lengths),
            earliest_us=min(self.earliest_us, block.earliest_us),
        )

    def due_at_once(self) -> Self:
        """Return the file as one that rolls as soon as possible."""
        return replace(self, due_us=0)


@dataclass(frozen=True, slots=True)
class RollingPolicy:
    """A file rolls `after_us` after its first record arrived, or when it has `at_bytes` or more.

    `after_us` 0 means that it rolls in every epoch. The file is then due in the past, and a processing-time timer in
    the past fires in the epoch that sets it, after all elements of that epoch.
    """

    after_us: int
    at_bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.after_us <= MAX_US:
            raise ValueError(
                f"roll_seconds must be 0 (every epoch) to {MAX_US // 1_000_000:,} (a year), "
                f"got {self.after_us // 1_000_000}."
            )
        if self.at_bytes < 1:
            raise ValueError(f"roll_bytes must be 1 or more, got {self.at_bytes}.")

    def open(self, now_us: int) -> OpenFile:
        """Return an empty file that is opened now."""
        # `END_OF_TIME_US` is above every record, so the first block sets the earliest time.
        return OpenFile(0, 0, END_OF_TIME_US, now_us + self.after_us if self.after_us else 0)

    def due_us(self, file: OpenFile, now_us: int) -> int:
        """Return when `file` rolls.

        This is `file.due_us`, but never more than `after_us` from now: the wall clock may have been set back since the
        file was opened, and the file must not wait until the clock has caught up.
        """
        return min(file.due_us, now_us + self.after_us)

    def is_full(self, file: OpenFile) -> bool:
        """Return whether the file rolls because of its size."""
        return file.length >= self.at_bytes
