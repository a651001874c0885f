"""The remaining work of a snapshot as one value: key ranges of tables at one timestamp, then a change stream. Pure.

    frontier = ScanFrontier(timestamp, tables, ranges, stream=Frontier.starting_at(timestamp + 1))
    frontier = frontier.advanced({3: '["17"]'})   # the rows of range 3 up to and including the key 17 were claimed
    frontier = frontier.apply(RangeRead(3))       # … and all others of this range
    frontier.settled()                            # the frontier of the change stream, when no range remains

Each row is read at `timestamp`, however late, so progress within a range is the last key that was claimed. A restart
reads only rows after it. No session, transaction or partition token is part of a frontier, so nothing in it expires.

The change stream opens only in a *whole* frontier without ranges. A dealt part does not know whether other parts still
have rows to read, and a change must not be emitted before the row that it changes. For the same reason the change
stream opens between two bundles and never within one: `can_progress` is false for a whole frontier without ranges.

Growth: one entry per key range that is not finished, with two keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from penstock.errors import LineageError
from penstock.io.change_streams.range_dealing import deal_numbers

STREAM = "change stream"
"""The key under which a frontier reports the change stream that waits for the snapshot."""


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


class RowsRead(NamedTuple):
    """Rows of the range `number` were claimed, up to and including `key`."""

    number: int
    key: str


class RangeRead(NamedTuple):
    """All rows of the range `number` were claimed."""

    number: int


@dataclass(frozen=True, slots=True)
class ScanFrontier:
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
    def done(self) -> bool:
        """Whether no work remains, now or later."""
        return not self.ranges and self.stream is None

    @property
    def can_progress(self) -> bool:
        """Whether this bundle can read a range."""
        return bool(self.ranges) and not self.resting

    @property
    def readable(self) -> Collection[int]:
        """The key ranges that may be read now."""
        return self.ranges.keys()

    @property
    def waiting(self) -> Collection[str]:
        """The change stream, while it waits for the snapshot."""
        return () if self.stream is None else (STREAM,)

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

    def advanced(self, positions: Mapping[int, str]) -> ScanFrontier:
        """Return the frontier after the rows up to these keys, by the number of the range."""
        if not positions:
            return self
        # Only the ranges that have moved are made again.
        moved = {number: self.ranges[number].after(key) for number, key in positions.items()}
        return replace(self, ranges={**self.ranges, **moved})

    def apply(self, step: RangeRead) -> ScanFrontier:
        """Return the frontier without a range that is finished.

        Raises:
            LineageError: the range is not part of this frontier.
        """
        if step.number not in self.ranges:
            raise LineageError(f"the end of key range {step.number}, which is not being read")
        return replace(
            self, ranges={number: each for number, each in self.ranges.items() if number != step.number}
        )

    def exhausted(self) -> ScanFrontier:
        """Return the same frontier without remaining work."""
        return replace(self, ranges={}, stream=None)

    def settled(self) -> Any:
        """Return the change stream's frontier if this is a whole frontier without ranges, otherwise this one."""
        # A part does not know whether other parts still have ranges, so only the whole begins the stream.
        if self.ranges or self.stream is None or self.dealt:
            # `resting` ends with its bundle.
            return replace(self, resting=False) if self.resting else self
        return self.stream

    def deal(self, n: int) -> list[ScanFrontier]:
        """Return at most `n` frontiers, none empty, that can be read in parallel; `join` is the exact inverse.

        Ranges are dealt as `deal_numbers` says. The change stream goes to the first part.

        Raises:
            ValueError: this is a dealt part itself; `join` first.
        """
        if self.dealt:
            raise ValueError("a dealt part cannot be dealt again: join all parts first")
        parts = deal_numbers(self.ranges, n)
        # The stream is one restriction, so exactly one part carries it.
        return [
            replace(
                self,
                ranges={number: self.ranges[number] for number in part},
                stream=self.stream if index == 0 else None,
                dealt=len(parts) > 1,
                resting=False,
            )
            for index, part in enumerate(parts)
        ]

    @staticmethod
    def join(parts: Sequence[ScanFrontier]) -> Any:
        """Return one whole frontier from all parts of a deal, however far each has been read.

        It is the frontier of the change stream if no range remains. Parts without remaining work may be left out.

        Raises:
            LineageError: two parts hold the same range or the change stream, or belong to different snapshots.
            ValueError: no parts.
        """
        if not parts:
            raise ValueError("there are no parts to join")
        ranges: dict[int, KeyRange] = {}
        for part in parts:
            # Parts of another snapshot would have rows of another time.
            if (part.timestamp, part.tables) != (parts[0].timestamp, parts[0].tables):
                raise LineageError("two parts belong to different snapshots")
            if not ranges.keys().isdisjoint(part.ranges):
                raise LineageError("two parts of a snapshot hold the same key range")
            ranges.update(part.ranges)
        streams = [part.stream for part in parts if part.stream is not None]
        if len(streams) > 1:
            raise LineageError("two parts of a snapshot hold its change stream")
        whole = replace(
            parts[0], ranges=ranges, stream=streams[0] if streams else None, dealt=False, resting=False
        )
        return whole.settled()
