"""The remaining work of a snapshot as one value: key ranges of tables at one timestamp, then a change stream. Pure.

    frontier = ScanFrontier(timestamp, tables, ranges, stream=Frontier.starting_at(timestamp + 1))
    frontier = frontier.advanced({3: '["17"]'})   # the rows of range 3 up to and including the key 17 were claimed
    frontier = frontier.apply(RangeRead(3))       # … and all others of this range
    frontier.settled()                            # the frontier of the change stream, when no range remains

Each row is read at `timestamp`, however late, so progress within a range is the last key that was claimed. A restart
reads only rows after it. No session, transaction or partition token is part of a frontier, so nothing in it expires.

Growth: one entry per key range that is not finished, with two keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.io.change_streams.range_frontier import RangeFrontier


@dataclass(frozen=True, slots=True)
class Table:
    """A table and the columns to read.

    The first `key_size` columns are the primary key, in the order of the key. `positions` has the ordinal position of
    each column in the table, from 1.
    """

    name: str
    columns: tuple[str, ...]
    positions: tuple[int, ...]
    key_size: int


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows of one table, in the order of its primary key.

    `table` is an index into the frontier's tables. `start` and `end` are JSON arrays of key values in the form of
    google.spanner.v1.Type; the empty text means the first and the last key. `start` is exclusive if `start_open`,
    otherwise inclusive. `end` is exclusive.
    """

    table: int
    start: str = ""
    end: str = ""
    start_open: bool = False

    def after(self, key: str) -> KeyRange:
        """Return the rest of the range, without the rows up to and including `key`."""
        # Open: the row with this key is claimed already.
        return replace(self, start=key, start_open=True)


@dataclass(frozen=True, slots=True)
class ScanFrontier(RangeFrontier):
    """Key ranges to read at `timestamp`, by number, and the change stream that is read after them (None: nothing).

    `stream` starts after `timestamp`. `readable_until` is the time (nanoseconds) until which the service keeps the
    changes after `timestamp`; None: no change stream, or it is not known. `capture` is the value capture type of the
    change stream. `dealt` says that this is one part of several and knows nothing of the others.

    `resting` ends a bundle between two ranges. It is no work and is not encoded.
    """

    timestamp: int
    tables: tuple[Table, ...]
    ranges: Mapping[int, KeyRange]
    stream: Any = None
    readable_until: int | None = None
    capture: str = ""
    dealt: bool = False
    resting: bool = False

    @property
    def snapshot(self) -> Any:
        """The time and the tables."""
        return self.timestamp, self.tables

    @property
    def can_progress(self) -> bool:
        """Whether this bundle can read a range."""
        return bool(self.ranges) and not self.resting

    @property
    def end(self) -> int | None:
        """The last timestamp to read, inclusive; None: without end."""
        end: int | None = self.timestamp if self.stream is None else self.stream.end
        return end

    @property
    def watermark(self) -> int | None:
        """The snapshot's timestamp until no work remains: each row has it, and each later change is above it."""
        return None if self.done else self.timestamp

    @property
    def summary(self) -> str:
        """The remaining work, in words."""
        return f"{len(self.ranges)} key ranges of a snapshot{' and a change stream' if self.stream else ''}"

    def settled(self) -> Any:
        # `resting` ends with its bundle.
        return RangeFrontier.settled(replace(self, resting=False) if self.resting else self)
