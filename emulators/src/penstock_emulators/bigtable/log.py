"""The change log of one table: records in the order in which they were applied, and the clock for their timestamps.

Pure except for the injected clock. A sequence number is a place in the log and is never used twice, also not after
old records were deleted. The caller appends under the row's lock, so the log has the order of application.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple


class Record(NamedTuple):
    """One change of one row: committed at `commit_us`, ready to be sent as `messages`.

    `messages` are serialized DataChange messages, one for each message to send; the last lacks the
    fields that differ from stream to stream (`done`, `token` and the watermark). A tuple, because
    every write makes one: a frozen dataclass costs four times as much.
    """

    key: bytes
    commit_us: int
    messages: tuple[bytes, ...]


class CommitClock:
    """Commit timestamps in microseconds: strictly increasing, and above every watermark that was sent."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        """Take the time from `now_us`."""
        self._now_us = now_us
        self._last_us = 0

    def take(self, count: int, begun_us: int) -> int:
        """Return the first of `count` consecutive timestamps for changes whose writing began at `begun_us`.

        None is before `begun_us`, so that a reader that starts at a time gets every change written after it. The last
        is now, unless less than `count` microseconds have passed since then or since the last timestamp.
        """
        # Three limits: the order of the log, the start of the write, and the present.
        first = max(self._last_us + 1, begun_us, self._now_us() - count + 1)
        self._last_us = first + count - 1
        return first

    def watermark_us(self) -> int:
        """Return now. Every later commit gets a later timestamp."""
        # The watermark itself is taken: a later commit at this time would be below it.
        self._last_us = max(self._last_us, self._now_us())
        return self._last_us


class Log:
    """Records of one table, from sequence `first` (inclusive) to `end` (exclusive)."""

    def __init__(self) -> None:
        """An empty log."""
        self.first = 0
        self._records: list[Record] = []
        self._ascending = True

    @property
    def end(self) -> int:
        """The sequence number of the next record."""
        return self.first + len(self._records)

    def extend(self, records: Iterable[Record]) -> None:
        """Append records. Their commit timestamps ascend and are above all timestamps in the log."""
        self._records.extend(records)

    def inject(self, record: Record) -> None:
        """Append a record with any commit timestamp."""
        # Only injected records may break the order, and then the bisection is wrong.
        if self._records and record.commit_us < self._records[-1].commit_us:
            self._ascending = False
        self._records.append(record)

    def read(self, sequence: int, count: int) -> Sequence[Record]:
        """Return at most `count` records from `sequence` on, which is not before `first`."""
        place = sequence - self.first
        return self._records[place : place + count]

    def sequence_at(self, commit_us: int) -> int:
        """Return the first sequence number whose record is committed at or after `commit_us`; else `end`.

        Where injected records break the order, the first such; records committed before may follow it.
        """
        if self._ascending:
            place = bisect_left(self._records, commit_us, key=lambda record: record.commit_us)
            return self.first + place
        for place, record in enumerate(self._records):
            if record.commit_us >= commit_us:
                return self.first + place
        return self.end

    def forget(self, before_us: int) -> int:
        """Drop the records at the front that were committed before `before_us`; return how many."""
        gone = 0
        # From the front only: a late record behind a younger one stays until its turn.
        while gone < len(self._records) and self._records[gone].commit_us < before_us:
            gone += 1
        del self._records[:gone]
        self.first += gone
        return gone
