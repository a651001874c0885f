"""The remaining work of an initial snapshot: ranges of blocks of tables at one snapshot, then the log. Pure.

    scan = begun(frontier)                            # the reader of the slot has planned which blocks there are
    scan = scan.advanced({3: RangeProgress(40, 950)})  # the rows of range 3 in the blocks before 40 were claimed
    scan = scan.apply(RangeRead(3))                   # … and all others of this range
    scan.settled()                                    # the frontier of the log, when no range remains

All ranges are read at the snapshot of the database that the server holds (`incremental.held_read_view`), by any worker.
The rows of a block do not change in a snapshot, so progress within a range is a number of blocks.

**A range that cannot be read** at the snapshot (the server does not hold it any more, or the table was rewritten) is
*lost*. When the other ranges are read, its table is read by the snapshot engine between the changes: as a whole if it
has a key, otherwise only the lost blocks, because a row without a key must not come twice.

The log opens only in a *whole* frontier without ranges: a change must not be emitted before the row that it changes.

Growth: one entry for each range that is not finished or was lost, and one for each table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from penstock.errors import LineageError
from penstock.io.change_streams.flat import FlatFrontier
from penstock.io.change_streams.frontier import Scan
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.range_dealing import deal_numbers
from penstock.io.postgres.position import Position, ReadView

LOG = "log"
"""The key under which a frontier reports the log that waits for the rows."""
MIN_BLOCKS, MAX_RANGES = 1024, 512
"""A range has at least so many blocks, and there are about so many ranges besides one for each table."""
_NUMBERED_RANGES = 1 << 20
"""More ranges than a snapshot has. A number of a row stays below 2^63 with 8 trillion rows in a range."""


@dataclass(frozen=True, slots=True)
class LogFrontier(FlatFrontier):
    """The positions of slots. While one of them has a plan of blocks to read, no log is read."""

    @property
    def can_progress(self) -> bool:
        """Whether a slot remains, and no scan is to begin. It begins between two bundles, when all slots are joined."""
        is_planned = any(Position(*at.position).blocks for at in self.positions.values())
        return bool(self.positions) and not is_planned


class ScanView(NamedTuple):
    """The snapshot, the place and the time that all rows of a slot's tables have.

    `view`: the snapshot that they are read at. `lsn`, `watermark`: place in the log and event time of the rows,
    nanoseconds.
    """

    view: ReadView
    lsn: int
    watermark: int


class ScannedTable(NamedTuple):
    """A table, ``schema.name``, of the publications of a slot."""

    slot: str
    name: str
    has_key: bool


class BlockRange(NamedTuple):
    """Blocks of a table from `start`, inclusive, to `end`, exclusive. `rows`: how many were emitted before `start`.

    `table` is an index into the frontier's tables.
    """

    table: int
    start: int
    end: int
    rows: int = 0


class RangeProgress(NamedTuple):
    """The first block of a range that is not read, and the rows of the range that were emitted."""

    start: int
    rows: int


class BlocksRead(NamedTuple):
    """Rows of the range `number` were claimed, up to `progress`."""

    number: int
    progress: RangeProgress


class RangeRead(NamedTuple):
    """All rows of the range `number` were claimed."""

    number: int


class RangeLost(NamedTuple):
    """The rest of the range `number` cannot be read at its snapshot; with `whole_view` no range of its slot can."""

    number: int
    whole_view: bool


@dataclass(frozen=True, slots=True)
class ScanFrontier:
    """Ranges of blocks by number, and the log that is read after them.

    Args:
        views: by slot.
        rows: how many rows of each table (by index) were emitted by finished ranges.
        stream: the frontier of the log; None: another part has it.
        end: last timestamp to read; None: without end.
        watermark_at: of the whole, nanoseconds: it stands still until all rows are read.
        dealt: this is one part of several and knows nothing of the others.
    """

    views: Mapping[str, ScanView]
    tables: tuple[ScannedTable, ...]
    ranges: Mapping[int, BlockRange]
    rows: Mapping[int, int]
    lost: tuple[BlockRange, ...]
    stream: LogFrontier | None
    end: int | None
    watermark_at: int
    dealt: bool = False

    @property
    def done(self) -> bool:
        """Whether no work remains. Counts of rows and lost ranges are for the log, so a part that has some remains."""
        return not self.ranges and not self.rows and not self.lost and self.stream is None

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
        """The log, while it waits for the rows."""
        return () if self.stream is None else (LOG,)

    @property
    def watermark(self) -> int | None:
        """The time of the snapshot until no work remains; None then."""
        return None if self.done else self.watermark_at

    @property
    def snapshots(self) -> tuple[SnapshotProgress, ...]:
        """The progress of snapshots, for the command line."""
        return () if self.stream is None else self.stream.snapshots

    @property
    def scans(self) -> tuple[Scan, ...]:
        """The tables that are not finished, with the rows that this part knows of."""
        if self.stream is None:
            return ()
        emitted = self._emitted()
        rows = {table.name: emitted.get(number, 0) for number, table in enumerate(self.tables)}
        return tuple(scan._replace(rows=rows.get(scan.table, scan.rows)) for scan in self.stream.scans)

    @property
    def summary(self) -> str:
        """The remaining work, in words."""
        return f"{len(self.ranges)} ranges of an initial snapshot{' and the log' if self.stream else ''}"

    def advanced(self, positions: Mapping[int, RangeProgress]) -> ScanFrontier:
        """Return the frontier with some ranges read further."""
        moved = {
            number: self.ranges[number]._replace(start=at.start, rows=at.rows)
            for number, at in positions.items()
        }
        return replace(self, ranges={**self.ranges, **moved})

    def apply(self, step: RangeRead | RangeLost) -> ScanFrontier:
        """Return the frontier without a range that is finished, or without ranges that are lost.

        Raises:
            LineageError: the range is not part of this frontier.
        """
        if step.number not in self.ranges:
            raise LineageError(f"the end of range {step.number}, which is not read here")
        gone = {step.number: self.ranges[step.number]}
        if isinstance(step, RangeLost) and step.whole_view:
            slot = self._slot(gone[step.number])
            gone = {number: each for number, each in self.ranges.items() if self._slot(each) == slot}
        rows = dict(self.rows)
        for each in gone.values():
            rows[each.table] = rows.get(each.table, 0) + each.rows
        # Of a range that was read to its last block, nothing is lost.
        unread = [each for each in gone.values() if each.start < each.end]
        lost = tuple(unread) if isinstance(step, RangeLost) else ()
        ranges = {number: each for number, each in self.ranges.items() if number not in gone}
        return replace(self, ranges=ranges, rows=rows, lost=(*self.lost, *lost))

    def _slot(self, each: BlockRange) -> str:
        return self.tables[each.table].slot

    def exhausted(self) -> ScanFrontier:
        """Return the same frontier without remaining work."""
        return replace(self, ranges={}, rows={}, lost=(), stream=None)

    def settled(self) -> Any:
        """Return the frontier of the log if this is a whole frontier without ranges, otherwise this one."""
        if self.ranges or self.stream is None or self.dealt:
            return self
        positions = {
            slot: at._replace(position=list(self._after_scan(slot, Position(*at.position))))
            if slot in self.views
            else at
            for slot, at in self.stream.positions.items()
        }
        return replace(self.stream, positions=positions)

    def _after_scan(self, slot: str, position: Position) -> Position:
        """Return the position of a slot whose tables are read, except for those that the engine has to read."""
        progress, emitted = position.snapshots, self._emitted()
        for number, table in enumerate(self.tables):
            if table.slot != slot:
                continue
            lost = [each for each in self.lost if each.table == number]
            condition = "" if table.has_key else " or ".join(map(_condition, lost))
            progress = progress.read_by_scan(
                table.name, emitted.get(number, 0), unread=bool(lost), condition=condition
            )
        # Without a name the view says that no more rows are read at it. The server still has to release it.
        view = self.views[slot].view._replace(name="")
        return position._replace(snapshots=progress, initial=view, blocks=())

    def _emitted(self) -> dict[int, int]:
        """Return how many rows of each table were emitted; a dealt part knows only its own ranges."""
        rows = dict(self.rows)
        for each in self.ranges.values():
            rows[each.table] = rows.get(each.table, 0) + each.rows
        return rows

    def deal(self, n: int) -> list[ScanFrontier]:
        """Return at most `n` frontiers that can be read in parallel; `join` is the inverse. The first one has the log.

        Raises:
            ValueError: this is a dealt part itself; `join` first.
        """
        if self.dealt:
            raise ValueError("a dealt part cannot be dealt again: join all parts first")
        parts = deal_numbers(self.ranges, n)
        first = replace(self, ranges={each: self.ranges[each] for each in parts[0]}, dealt=len(parts) > 1)
        return [
            first,
            *(
                replace(
                    first, ranges={each: self.ranges[each] for each in part}, rows={}, lost=(), stream=None
                )
                for part in parts[1:]
            ),
        ]

    @staticmethod
    def join(parts: Sequence[Any]) -> Any:
        """Return one whole frontier from all parts of a deal, or the frontier of the log if no range remains.

        Raises:
            LineageError: two parts hold the same range or the log, or no part holds the log, or the parts are of
                different snapshots.
        """
        if any((part.views, part.tables) != (parts[0].views, parts[0].tables) for part in parts):
            raise LineageError("two parts belong to different snapshots")
        streams = [part.stream for part in parts if part.stream is not None]
        if len(streams) != 1:
            raise LineageError(f"{len(streams)} parts of an initial snapshot hold the log, and not one")
        ranges: dict[int, BlockRange] = {}
        rows: dict[int, int] = {}
        for part in parts:
            if not ranges.keys().isdisjoint(part.ranges):
                raise LineageError("two parts of an initial snapshot hold the same range")
            ranges.update(part.ranges)
            for table, count in part.rows.items():
                rows[table] = rows.get(table, 0) + count
        lost = tuple(each for part in parts for each in part.lost)
        return replace(
            parts[0], ranges=ranges, rows=rows, lost=lost, stream=streams[0], dealt=False
        ).settled()


def begun(frontier: LogFrontier) -> Any:
    """Return the scan that slots have planned, with the log after it; without a plan, the same frontier."""
    views: dict[str, ScanView] = {}
    tables: list[ScannedTable] = []
    sizes: list[int] = []
    for slot, at in frontier.positions.items():
        position = Position(*at.position)
        if position.blocks and position.initial is not None:
            views[slot] = ScanView(position.initial, position.lsn, at.watermark)
            tables += [ScannedTable(slot, name, has_key) for name, _, has_key in position.blocks]
            sizes += [blocks for _, blocks, _ in position.blocks]
    if not views:
        return frontier
    watermark = frontier.watermark
    assert watermark is not None
    ranges = dict(enumerate(divided(sizes)))
    return ScanFrontier(views, tuple(tables), ranges, {}, (), frontier, frontier.end, watermark)


def divided(sizes: Sequence[int]) -> Iterator[BlockRange]:
    """Yield ranges that cover all blocks of tables; `sizes`: the number of blocks of each."""
    length = max(MIN_BLOCKS, -(-sum(sizes) // MAX_RANGES))
    for table, blocks in enumerate(sizes):
        for start in range(0, blocks, length):
            yield BlockRange(table, start, min(start + length, blocks))


def numbers_of_rows(number: int, before: int, count: int) -> range:
    """Return the numbers of `count` rows of the range `number`, of which `before` rows were emitted.

    No two rows of a snapshot have the same number, and a row has it again when its chunk is repeated, in chunks of any
    size: rows come in the order of their blocks. A row without a key has nothing else that tells it apart.
    """
    first = (before + 1) * _NUMBERED_RANGES + number
    return range(first, first + count * _NUMBERED_RANGES, _NUMBERED_RANGES)


def _condition(lost: BlockRange) -> str:
    return f"(ctid >= '({lost.start},0)'::tid and ctid < '({lost.end},0)'::tid)"
