"""The remaining work of a scan: ranges of tables, then the change stream. Pure.

    scan = scan.apply(RangeRead(3))   # all rows of range 3 were claimed
    parts = scan.deal(4)              # ranges that workers read in parallel
    scan.join(parts)                  # the frontier of the change stream, when no range remains

All rows of a scan are read at one moment of the database, by any worker. A source adds its ranges and its tables.

The change stream opens only in a *whole* frontier without ranges. A dealt part does not know whether other parts still
have rows to read, and a change must not be emitted before the row that it changes. For the same reason the change
stream opens between two bundles and never within one: `can_progress` is false for a whole frontier without ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol

from typing_extensions import Self

from penstock.errors import LineageError
from penstock.io.change_streams.frontier import TableMove
from penstock.io.change_streams.range_dealing import deal_numbers


class RangeAdvanced(NamedTuple):
    """Rows of the range `number` were claimed, up to `progress`, which the source defines."""

    number: int
    progress: Any


class RangeRead(NamedTuple):
    """All rows of the range `number` were claimed."""

    number: int


class Range(Protocol):
    """A part of a table."""

    def after(self, progress: Any) -> Self:
        """Return the rest of the range, without the rows up to `progress`."""


class RangeFrontier:
    """The part of a scan's frontier that does not depend on the source. Subclasses are frozen dataclasses.

    They have the fields `ranges` (by number), `stream` (the frontier of what is read after them; None: nothing, or
    another part has it) and `dealt` (this is one part of several and knows nothing of the others).
    """

    __slots__ = ()

    ranges: Mapping[int, Any]
    stream: Any
    dealt: bool

    stream_key: ClassVar[str] = "change stream"
    """The key under which the stream that waits is reported."""
    needs_stream: ClassVar[bool] = False
    """Whether a whole frontier always has a stream."""

    @property
    def snapshot(self) -> Any:
        """The same value in all parts of one scan."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether no work remains, now or later."""
        return not self.ranges and self.stream is None

    @property
    def can_progress(self) -> bool:
        """Whether this bundle can read a range."""
        return bool(self.ranges)

    @property
    def readable(self) -> Collection[int]:
        """The ranges."""
        return self.ranges.keys()

    @property
    def waiting(self) -> Collection[str]:
        """The change stream, while it waits for the rows."""
        return () if self.stream is None else (self.stream_key,)

    @property
    def table_moves(self) -> tuple[TableMove, ...]:
        """The tables that joined and left, as the stream remembers them."""
        return getattr(self.stream, "table_moves", ())

    def advanced(self, positions: Mapping[int, Any]) -> Self:
        """Return the frontier with some ranges read further; `positions`: the progress of each, by its number."""
        if not positions:
            return self
        # Only the ranges that have moved are made again.
        moved = {number: self.ranges[number].after(progress) for number, progress in positions.items()}
        return self._with(ranges={**self.ranges, **moved})

    def apply(self, step: Any) -> Self:
        """Return the frontier without a range that is finished.

        Raises:
            LineageError: the range is not part of this frontier.
        """
        self.check_range(step.number)
        return self.without({step.number})

    def check_range(self, number: int) -> None:
        """Check that a range is part of this frontier.

        Raises:
            LineageError: it is not.
        """
        if number not in self.ranges:
            raise LineageError(f"the end of range {number}, which is not read here")

    def without(self, numbers: Collection[int]) -> Self:
        """Return the frontier without some ranges."""
        # A copy, and not a new dictionary of the others: this runs for each range.
        ranges = dict(self.ranges)
        for number in numbers:
            del ranges[number]
        return self._with(ranges=ranges)

    def exhausted(self) -> Self:
        """Return the same frontier without remaining work."""
        return self._with(ranges={}, stream=None)

    def settled(self) -> Any:
        """Return the frontier of the change stream if this is a whole frontier without ranges, otherwise this one."""
        if self.ranges or self.stream is None or self.dealt:
            return self
        return self.followed()

    def followed(self) -> Any:
        """Return the frontier of the change stream after all rows."""
        return self.stream

    def deal(self, n: int) -> list[Self]:
        """Return at most `n` frontiers that can be read in parallel; `join` is the inverse.

        Ranges are dealt as `deal_numbers` says. The first part has the change stream.

        Raises:
            ValueError: this is a dealt part itself; `join` first.
        """
        if self.dealt:
            raise ValueError("a dealt part cannot be dealt again: join all parts first")
        parts = deal_numbers(self.ranges, n)
        # The stream is one restriction, so exactly one part has it.
        others = self.exhausted()
        return [
            of._with(ranges={each: self.ranges[each] for each in part}, dealt=len(parts) > 1)
            for of, part in zip([self, *[others] * len(parts)], parts, strict=False)
        ]

    @staticmethod
    def join(parts: Sequence[Any]) -> Any:
        """Return one whole frontier from all parts of a deal, however far each has been read.

        It is the frontier of the change stream if no range remains. Parts without remaining work may be left out.

        Raises:
            LineageError: two parts hold the same range or the change stream, or no part has the stream that the scan
                needs, or the parts belong to different snapshots.
            ValueError: no parts.
        """
        if not parts:
            raise ValueError("there are no parts to join")
        first = parts[0]
        # Parts of another snapshot would have rows of another time.
        if any(part.snapshot != first.snapshot for part in parts):
            raise LineageError("two parts belong to different snapshots")
        ranges: dict[int, Any] = {}
        for part in parts:
            if not ranges.keys().isdisjoint(part.ranges):
                raise LineageError("two parts of a snapshot hold the same range")
            ranges.update(part.ranges)
        streams = [part.stream for part in parts if part.stream is not None]
        if len(streams) > 1 or len(streams) < first.needs_stream:
            raise LineageError(
                f"{len(streams)} parts of a snapshot hold its {first.stream_key}; expected one"
            )
        stream = streams[0] if streams else None
        return first.joined(parts)._with(ranges=ranges, stream=stream, dealt=False).settled()

    def joined(self, parts: Sequence[Any]) -> Self:
        """Return the frontier with the fields of its source joined from all parts."""
        return self

    def _with(self, **changes: Any) -> Self:
        frontier: Any = self  # a dataclass, as each subclass is
        changed: Self = replace(frontier, **changes)
        return changed
