"""Holds records with their event times in blocks, and selects those that the watermark has passed. Pure.

The records of a bucket may come from several readers, one of them ahead of another. All records below the watermark
have arrived, so they can be sorted by event time and written: no later record belongs before them. The others wait.
Records with the same event time keep the order in which they arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from typing_extensions import Self

from penstock.io.staging.staged_file import StagedFile

TimedRecord = tuple[int, bytes]
"""Event time in µs since 1970, and the encoded record. A plain tuple, because the sink makes one for each element."""

BLOCK_RECORDS = 4096
"""How many records `blocks_of` puts into a block."""

END_OF_TIME_US = (1 << 63) - 1
"""Above every event time."""

_event_time = itemgetter(0)


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Records of one bucket, in order.

    `times_us` and `lengths` have one entry for each record; `payload` is all records joined. So a format that only
    joins records, such as JSON Lines, writes the payload as it is, and no step loops over the records.

    `staged`: the records are a staged file, which has no final name yet. Such a block has the earliest event time only.
    It is in no checkpoint.
    """

    times_us: tuple[int, ...]
    lengths: tuple[int, ...]
    payload: bytes
    staged: StagedFile | None = None

    @classmethod
    def of(cls, records: Sequence[TimedRecord]) -> Self:
        """Return a block of `records`."""
        # One pass over the records, and `join` once: the payload of a block has thousands of them.
        times_us, encoded = zip(*records, strict=True)
        return cls.joined(times_us, encoded)

    @classmethod
    def joined(cls, times_us: Sequence[int], records: Sequence[bytes]) -> Self:
        """Return a block of `records` with their event times."""
        return cls(tuple(times_us), tuple(map(len, records)), b"".join(records))

    @classmethod
    def empty(cls) -> Self:
        """Return a block without records, which closes the open file of its bucket."""
        return cls((), (), b"")

    @property
    def earliest_us(self) -> int:
        """The lowest event time of the records."""
        return min(self.times_us)

    def contents(self) -> Iterator[bytes]:
        """Yield the records that are not empty, in order: a record may hold the rows of thousands of others."""
        start = 0
        for length in filter(None, self.lengths):
            yield self.payload[start : start + length]
            start += length

    def records(self) -> Iterator[TimedRecord]:
        """Yield the records in order."""
        start = 0
        for time_us, length in zip(self.times_us, self.lengths, strict=True):
            yield time_us, self.payload[start : start + length]
            start += length


class RecordRun(NamedTuple):
    """Encoded records of one table in order, which an earlier step has made of a batch. Never empty.

    Each list has one entry for each record: the order key, the record as the file has it, and the event time in µs
    since 1970. `keys` is None if the sink has one shard.
    """

    table: str
    keys: list[Any] | None
    records: list[bytes]
    times_us: list[int]


class BucketRun(NamedTuple):
    """Encoded records of one bucket in order, with the event time of each in µs since 1970. Never empty.

    A record may hold the rows of the records that follow it. These are empty, so that every row still counts as one.
    """

    bucket: str
    times_us: Sequence[int]
    records: Sequence[bytes]


def blocks_of(records: Sequence[TimedRecord]) -> Iterator[RecordBlock]:
    """Yield `records` in blocks of a limited size, so that a large file is not copied as a whole."""
    # The slices bound what `join` copies at once.
    for start in range(0, len(records), BLOCK_RECORDS):
        yield RecordBlock.of(records[start : start + BLOCK_RECORDS])


def split_at_watermark(
    blocks: Iterable[RecordBlock], watermark_us: int
) -> tuple[list[TimedRecord], list[TimedRecord]]:
    """Return the records below the watermark by event time, and the others in the order in which they arrived."""
    records = [record for block in blocks for record in block.records()]
    # `sorted` is stable, which keeps the order of arrival for equal times.
    passed = sorted((record for record in records if record[0] < watermark_us), key=_event_time)
    return passed, [record for record in records if record[0] >= watermark_us]


def by_event_time(blocks: Iterable[RecordBlock]) -> list[TimedRecord]:
    """Return all records by event time."""
    return split_at_watermark(blocks, END_OF_TIME_US)[0]
