"""The remaining work of a partitioned change stream with incremental snapshots, as one value. Pure.

    frontier = IncrementalFrontier(stream, SnapshotProgress())
    frontier = frontier.apply(Merged(None, progress, hold, reader))    # rows were emitted
    parts = frontier.deal(4)                                           # one part, while a snapshot is read

A row may only be emitted when every partition has passed the chunk's read time. Any partition may send changes
of the chunk's rows, because no service says which keys a partition has. So one reader needs all partitions while a
snapshot is read: `deal` returns one part. Without a snapshot, or while it is paused, the partitions are dealt over all
workers as usual. Then the first part has the progress, and receives signals.

`hold` keeps the watermark at or below the read time of each chunk that is not emitted, because this time is the
timestamp of its rows.

Growth: the frontier of the stream and the progress.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from penstock.errors import LineageError, UsageError
from penstock.io.change_streams.frontier import Scan, TableMove
from penstock.io.change_streams.incremental.new_tables import CHANNEL, KnownTables
from penstock.io.change_streams.incremental.progress import SnapshotProgress


class Merged(NamedTuple):
    """A claim of a reader that merges chunks with the stream.

    Args:
        step: the step of the stream; None: rows only.
        progress, hold: their values after the claim.
        reader: names the reader and its bundle.
    """

    step: Any
    progress: SnapshotProgress
    hold: int | None
    reader: str


class Lost(NamedTuple):
    """The service no longer has the changes after the positions of this part."""


class Renewed(NamedTuple):
    """The stream begins again at `stream`, with the snapshots in `progress`: changes were lost."""

    stream: Any
    progress: SnapshotProgress


@dataclass(frozen=True, slots=True)
class IncrementalFrontier:
    """A change stream's frontier, and the snapshots that are read at the same time.

    Args:
        progress: the snapshots; None in a dealt part without them.
        hold: the time at which the watermark is held, in nanoseconds.
        reader: the reader that made the last `Merged` claim. Only a reader that knows all changes since its
            chunks were requested may continue with them.
        lost: a part has lost its position; the next bundle that has the whole frontier begins again.
    """

    stream: Any
    progress: SnapshotProgress | None
    hold: int | None = None
    reader: str = ""
    dealt: bool = False
    lost: bool = False

    @property
    def is_reading(self) -> bool:
        """Whether rows can be read: there is a snapshot, it is not paused, and this is the whole frontier."""
        return not self.dealt and _is_active(self.progress)

    @property
    def done(self) -> bool:
        """Whether no work remains, now or later. A paused snapshot does not keep a bounded read from its end."""
        if self.lost:
            return False
        if self.dealt and self.progress is not None:
            return False  # it has to tell the other parts, also if its partitions have ended
        return bool(self.stream.done) and not _is_active(self.progress)

    @property
    def can_progress(self) -> bool:
        """Whether this part has a partition or a table to read."""
        if self.lost:
            return not self.dealt
        return bool(self.stream.can_progress) or self.is_reading

    @property
    def readable(self) -> Collection[Any]:
        """The partitions that may be read now."""
        partitions: Collection[Any] = self.stream.readable
        return partitions

    @property
    def waiting(self) -> Collection[Any]:
        """The partitions that wait for others."""
        partitions: Collection[Any] = self.stream.waiting
        return partitions

    @property
    def end(self) -> int | None:
        """The last timestamp to read, inclusive; None: without end."""
        end: int | None = self.stream.end
        return end

    @property
    def watermark(self) -> int | None:
        """No unread change, and no row of a requested chunk, has a timestamp below this."""
        if self.done:
            return None
        times = [time for time in (self.stream.watermark, self.hold) if time is not None]
        # After the last change of the stream only rows follow, and each of them was read after the end.
        return min(times, default=self.end)

    @property
    def slowest(self) -> Any:
        """The partition that holds the watermark."""
        return self.stream.slowest

    @property
    def snapshots(self) -> tuple[SnapshotProgress, ...]:
        """The progress of snapshots, if this part has it."""
        return () if self.progress is None else (self.progress,)

    @property
    def scans(self) -> tuple[Scan, ...]:
        """The tables of the current snapshot that are not finished."""
        return self.progress.scans if self.progress is not None else ()

    @property
    def table_moves(self) -> tuple[TableMove, ...]:
        """The tables that joined the stream and left it, if this part has the progress of snapshots."""
        known = None if self.progress is None else self.progress.channel(CHANNEL)
        return () if known is None else KnownTables.unpack(known).moves

    @property
    def summary(self) -> str:
        """The remaining work, in words."""
        tables = sum(len(snapshot.names) for snapshot in self.progress.snapshots) if self.progress else 0
        return f"{self.stream.summary}, and {tables} tables of snapshots"

    def apply(self, step: Any) -> IncrementalFrontier:
        """Return the frontier after a claim: `Merged`, `Lost`, `Renewed`, or a step of the stream."""
        if type(step) is Lost:
            return replace(self, lost=True)
        if type(step) is Renewed:
            return IncrementalFrontier(step.stream, step.progress)
        if type(step) is not Merged:
            return replace(self, stream=self.stream.apply(step))
        stream = self.stream if step.step is None else self.stream.apply(step.step)
        return replace(self, stream=stream).merged(step)

    def merged(self, claim: Merged) -> IncrementalFrontier:
        """Return the frontier with progress, hold and reader of a claim."""
        return replace(self, progress=claim.progress, hold=claim.hold, reader=claim.reader)

    def advanced(self, positions: Mapping[Any, Any]) -> IncrementalFrontier:
        """Return the frontier with several partitions at new positions."""
        return replace(self, stream=self.stream.advanced(positions)) if positions else self

    def exhausted(self) -> IncrementalFrontier:
        """Return the same frontier without remaining work."""
        return replace(self, stream=self.stream.exhausted(), progress=None, hold=None, lost=False)

    def settled(self) -> IncrementalFrontier:
        """Return the frontier with the partitions opened that wait for nothing any more."""
        return replace(self, stream=self.stream.settled())

    def deal(self, n: int) -> list[IncrementalFrontier]:
        """Return at most `n` frontiers that can be read in parallel; `join` is the exact inverse.

        While a snapshot is read, this is one frontier.

        Raises:
            ValueError: this is a dealt part itself; `join` first.
        """
        if self.dealt:
            raise ValueError("a dealt part cannot be dealt again: join all parts first")
        streams = self.stream.deal(n) if n > 1 and not (self.is_reading or self.lost) else []
        # One part is the whole: marked as dealt, it could not begin a snapshot.
        if len(streams) < 2:
            return [self]
        first, *others = streams
        return [
            # Nothing is held: parts are dealt only while no chunk is read.
            replace(self, stream=first, hold=None, dealt=True),
            *[IncrementalFrontier(stream, None, dealt=True) for stream in others],
        ]

    @staticmethod
    def join(parts: Sequence[IncrementalFrontier]) -> IncrementalFrontier:
        """Return one whole frontier from all parts of a deal, however far each has been read.

        Raises:
            LineageError: two parts hold the snapshots or the same partition.
            ValueError: no parts, or parts of different frontiers.
        """
        if not parts:
            raise ValueError("there are no parts to join")
        if len(parts) == 1 and not parts[0].dealt:
            return parts[0]
        # `deal` gives the snapshots to one part. Without it their progress would be lost; with two it would be doubled.
        owners = [part for part in parts if part.progress is not None]
        if len(owners) != 1:
            raise LineageError(f"{len(owners)} parts hold the snapshots of a change stream; expected one")
        streams = [part.stream for part in parts]
        lost = any(part.lost for part in parts)
        return replace(owners[0], stream=type(streams[0]).join(streams), dealt=False, lost=lost)


def progress_at_rest(frontiers: Sequence[Any]) -> SnapshotProgress | None:
    """Return the progress of snapshots that all parts of a stream have; None: they have none.

    Raises:
        UsageError: a snapshot is being read, or is paused.
    """
    found = [each.progress for each in frontiers if isinstance(each, IncrementalFrontier)]
    progress: SnapshotProgress | None = next((each for each in found if each is not None), None)
    if progress is not None and progress.snapshots:
        raise UsageError(
            "the job is reading a snapshot of tables, of which a part would be lost. Start it and let the snapshot "
            "finish, or stop the snapshot (penstock snapshot --action stop)"
        )
    return progress


def _is_active(progress: SnapshotProgress | None) -> bool:
    return progress is not None and bool(progress.snapshots) and not progress.paused
