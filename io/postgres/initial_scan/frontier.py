"""The remaining work of an initial snapshot: ranges of blocks of tables at one snapshot, then the log. Pure.

    scan = begun(frontier)                            # the reader of the slot has planned which blocks there are
    scan = scan.advanced({3: RangeProgress(40, 950)})  # the rows of range 3 in the blocks before 40 were claimed
    scan = scan.apply(RangeRead(3))                   # … and all others of this range
    scan.settled()                                    # the frontier of the log, when no range remains

All ranges are read at the snapshot of the database that the server holds (`incremental.held_read_view`), by any worker.
The rows of a block do not change in a snapshot, so progress within a range is a number of blocks.

**Signals** change the progress in the position of the log. Their effect on ranges comes between two bundles: the ranges
of a table that was stopped are left out, and with a pause all ranges are lost, so that changes do not wait.

**A range that cannot be read** at the snapshot (the server does not hold it any more, or the table was rewritten) is
*lost*. When the other ranges are read, its table is read by the snapshot engine between the changes: as a whole if it
has a key, otherwise only the lost blocks, because a row without a key must not come twice.

Growth: one entry for each range that is not finished or was lost, and one for each table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from penstock.errors import LineageError
from penstock.io.change_streams.flat import FlatFrontier
from penstock.io.change_streams.frontier import Scan, TableMove
from penstock.io.change_streams.incremental.progress import INITIAL, ScanResult, SnapshotProgress
from penstock.io.change_streams.range_frontier import RangeFrontier, RangeRead
from penstock.io.postgres.position import Position, ReadView
from penstock.io.postgres.schema_watch import Published

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

    @property
    def table_moves(self) -> tuple[TableMove, ...]:
        """The tables that joined the publications and left them."""
        known = (Position(*at.position).published for at in self.positions.values())
        return tuple(chain.from_iterable(Published.unpack(packed).moves for packed in known if packed))


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

    def after(self, progress: RangeProgress) -> BlockRange:
        """Return the rest of the range, without the blocks that were read."""
        return self._replace(start=progress.start, rows=progress.rows)


class RangeProgress(NamedTuple):
    """The first block of a range that is not read, and the rows of the range that were emitted."""

    start: int
    rows: int


class RangeLost(NamedTuple):
    """The rest of the range `number` cannot be read at its snapshot; with `whole_view` no range of its slot can."""

    number: int
    whole_view: bool


class SignalsTaken(NamedTuple):
    """Signals of a slot were taken. `progress`: of its snapshots, after them."""

    slot: str
    progress: SnapshotProgress


@dataclass(frozen=True, slots=True)
class ScanFrontier(RangeFrontier):
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

    stream_key: ClassVar[str] = "log"
    needs_stream: ClassVar[bool] = True

    @property
    def snapshot(self) -> Any:
        """The views and the tables."""
        return self.views, self.tables

    @property
    def can_progress(self) -> bool:
        """Whether this bundle can read a range. A part that knows of a pause tells the others, and so it ends."""
        return bool(self.ranges) and not self._is_paused

    @property
    def done(self) -> bool:
        """Whether no work remains. Counts of rows and lost ranges are for the log, so a part that has some remains."""
        return not self.ranges and not self.rows and not self.lost and self.stream is None

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

    def apply(self, step: RangeRead | RangeLost | SignalsTaken) -> ScanFrontier:
        """Return the frontier without a range that is finished, without ranges that are lost, or after signals.

        Raises:
            LineageError: the range, or the log, is not part of this frontier.
        """
        if isinstance(step, SignalsTaken):
            return self._after_signals(step)
        self.check_range(step.number)
        gone = {step.number: self.ranges[step.number]}
        if isinstance(step, RangeLost) and step.whole_view:
            slot = self._slot(gone[step.number])
            gone = {number: each for number, each in self.ranges.items() if self._slot(each) == slot}
        return self._ended(gone, lost=isinstance(step, RangeLost))

    def _ended(self, ended: Mapping[int, BlockRange], *, lost: bool) -> ScanFrontier:
        """Return the frontier without some ranges. `lost`: the rest of them is not read."""
        rows = dict(self.rows)
        for each in ended.values():
            rows[each.table] = rows.get(each.table, 0) + each.rows
        # Of a range that was read to its last block, nothing is lost.
        unread = [each for each in ended.values() if each.start < each.end] if lost else []
        return replace(self.without(ended), rows=rows, lost=(*self.lost, *unread))

    def _after_signals(self, step: SignalsTaken) -> ScanFrontier:
        if self.stream is None:
            raise LineageError("signals of a part that does not have the log")
        at = self.stream.positions[step.slot]
        position = Position(*at.position)._replace(snapshots=step.progress)
        positions = {**self.stream.positions, step.slot: at._replace(position=list(position))}
        return replace(self, stream=replace(self.stream, positions=positions))

    @property
    def _is_paused(self) -> bool:
        return any(progress.paused for progress in self.progress.values())

    @property
    def progress(self) -> Mapping[str, SnapshotProgress]:
        """The progress of the snapshots of each slot whose tables are read; empty if another part has the log."""
        if self.stream is None:
            return {}
        return {slot: Position(*self.stream.positions[slot].position).snapshots for slot in self.views}

    def settled(self) -> Any:
        # Only the whole frontier has both all ranges and the progress that signals change.
        return RangeFrontier.settled(self if self.dealt else self._as_signals_say())

    def _as_signals_say(self) -> ScanFrontier:
        """Return a whole frontier without the ranges of tables that were stopped. After a pause all ranges are lost."""
        wanted = {
            (slot, name)
            for slot, progress in self.progress.items()
            if progress.current is not None and progress.current.kind == INITIAL
            for name in progress.current.names
        }
        stopped = {n: each for n, each in self.ranges.items() if self.tables[each.table][:2] not in wanted}
        rest = self.without(stopped) if stopped else self
        return rest._ended(rest.ranges, lost=True) if rest._is_paused else rest

    def _slot(self, each: BlockRange) -> str:
        return self.tables[each.table].slot

    def exhausted(self) -> ScanFrontier:
        """Return the same frontier without remaining work."""
        return replace(self, ranges={}, rows={}, lost=(), stream=None)

    def followed(self) -> LogFrontier:
        """Return the frontier of the log after all rows that could be read."""
        assert self.stream is not None
        positions = {
            slot: at._replace(position=list(self._after_scan(slot, Position(*at.position))))
            if slot in self.views
            else at
            for slot, at in self.stream.positions.items()
        }
        return replace(self.stream, positions=positions)

    def _after_scan(self, slot: str, position: Position) -> Position:
        """Return the position of a slot whose tables are read, except for those that the engine has to read."""
        emitted, lost = self._emitted(), dict[int, list[BlockRange]]()
        for each in self.lost:
            lost.setdefault(each.table, []).append(each)
        results = {
            table.name: ScanResult(
                emitted.get(number, 0),
                number in lost,
                "" if table.has_key else " or ".join(map(_condition, lost.get(number, ()))),
            )
            for number, table in enumerate(self.tables)
            if table.slot == slot
        }
        progress = position.snapshots.read_by_scan(results)
        # Without a name the view says that no more rows are read at it. The server still has to release it.
        view = self.views[slot].view._replace(name="")
        return position._replace(snapshots=progress, initial=view, blocks=())

    def _emitted(self) -> dict[int, int]:
        """Return how many rows of each table were emitted; a dealt part knows only its own ranges."""
        rows = dict(self.rows)
        for each in self.ranges.values():
            rows[each.table] = rows.get(each.table, 0) + each.rows
        return rows

    def joined(self, parts: Sequence[ScanFrontier]) -> ScanFrontier:
        """Return the frontier with the counts of rows and the lost ranges of all parts."""
        rows: dict[int, int] = {}
        for part in parts:
            for table, number in part.rows.items():
                rows[table] = rows.get(table, 0) + number
        return replace(self, rows=rows, lost=tuple(each for part in parts for each in part.lost))


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
