"""One partition of a change stream: when it lives, and the log of its records.

Source: Spanner documentation, "Change stream partitions, records, and queries": a partition's records are
ordered by commit timestamp and, within one, by record sequence.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock_emulators.simulated_spanner.record import DataChange, LoggedRecord

Place: TypeAlias = tuple[int, int]
"""(timestamp in nanoseconds, sequence) of a record in its partition: where a query has got to."""


@dataclass(slots=True)
class Partition:
    """A partition with its records.

    It can be read from `start` to `end`, both inclusive; `end` is None while it lives. Its last record, at
    `end`, says what follows it. `queries` counts the queries that asked for its token.
    """

    token: str
    start: int
    parents: tuple[str, ...] = ()
    end: int | None = None
    queries: int = 0
    places: list[Place] = field(default_factory=list)
    records: list[LoggedRecord] = field(default_factory=list)
    encoded: list[bytes | None] = field(default_factory=list)

    def append(self, record: LoggedRecord) -> None:
        """Append a record, which must be later than the last."""
        place = (record.timestamp, record.sequence)
        # A reader continues after a place, so a record must never appear before one that was sent.
        assert not self.places or self.places[-1] < place, "records of a partition are in order"
        self.places.append(place)
        self.records.append(record)
        self.encoded.append(None)

    def seal(self, encode: Callable[[LoggedRecord], bytes]) -> None:
        """Encode the new records and drop their mods: as bytes they take a tenth of the memory."""
        index = len(self.records) - 1
        # From the end: older records are sealed already.
        while index >= 0 and self.encoded[index] is None:
            record = self.records[index]
            self.encoded[index] = encode(record)
            if isinstance(record, DataChange):
                # The mods are in the bytes; the rest of the record is still asked for.
                self.records[index] = replace(record, mods=())
            index -= 1

    def lives_at(self, timestamp: int) -> bool:
        """Return whether a query without a token, starting at `timestamp`, names this partition."""
        return self.start <= timestamp and (self.end is None or timestamp < self.end)

    def between(self, after: Place, until: int) -> range:
        """Return the indexes of the records after the place `after`, up to the timestamp `until`, inclusive."""
        low = bisect_right(self.places, after)
        # A sequence of -1 is before every record of the next nanosecond, so the bound is exact.
        return range(low, max(low, bisect_left(self.places, (until + 1, -1))))

    def forget_before(self, timestamp: int) -> None:
        """Drop records below `timestamp`, because they are older than the retention."""
        count = bisect_left(self.places, (timestamp, -1))
        del self.places[:count], self.records[:count], self.encoded[:count]
