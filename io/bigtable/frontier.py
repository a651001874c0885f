"""Partition lineage as one value: how far each part of the key space has been read, and which stream continues it.

    frontier = Frontier.starting_at(start, partitions)
    frontier.positions                                            # the streams that may be opened now
    frontier = frontier.apply(Advanced(partition, token, low))  # a record or heartbeat was claimed
    frontier = frontier.apply(Closed(partition, continuations)) # its stream was closed: split, merge, move
    frontier.watermark                                          # no unread change is known to be below

Pure: no Beam, no client, no clock. Timestamps are nanoseconds. The key space is divided into disjoint *segments*. Each
has a token, a watermark, and a *target*: the partition that it will be read in. The rules:

1. **A target opens when the segments with this target cover it exactly.** The request holds the token of each segment.
   The segments stay until the first record or heartbeat of the merged stream, which has a token for all keys. So a
   checkpoint before that record loses nothing.
2. **A close replaces the segments of its partition** by one for each continuation token, cut to the closed
   partition: the service may write the new partition into a token instead of the token's keys.
3. **A segment whose target never completes is re-opened as a partition.** This happens when the layout changes again
   before the last parent was closed. The segment's token fits a request for its own keys exactly, in every layout. The
   service answers with data, or with a close that names the present layout.
4. **A dealt part knows only its own segments.** It opens the targets that they cover, and waits for other targets.
5. **Holes are filled, and their changes are dropped.** If only a row range is read, or some keys have been read to
   `end`, a target may include keys that no segment holds. These keys get a segment at the watermark of the waiting
   segment, so that the target can open. Their changes are not emitted (`key_filter`). The stream is read without an
   end, because a stream that reaches its end closes without a token.

Growth: one entry per segment. There are as many segments as partitions, and a few more during a merge.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from penstock.errors import LineageError
from penstock.io.bigtable.keys import EVERYTHING, KeyRange, abbreviate, missing, tiles, united
from penstock.io.bigtable.record import Continuation
from penstock.io.change_streams.dealing import Family, deal_families


@dataclass(frozen=True, slots=True)
class Segment:
    """The keys of `range`, read up to `token`; None: nothing yet, to be read from `watermark`, inclusive.

    They will be read as part of `target`, which covers `range`.
    """

    range: KeyRange
    token: str | None
    watermark: int
    target: KeyRange


@dataclass(frozen=True, slots=True)
class Position:
    """The position at which `partition` continues: after its `tokens`, or without any at `start`, inclusive.

    If not `bounded`, it is read beyond the frontier's end, because only its tokens are needed (rule 5). Two positions
    are equal if the same changes follow. `watermark` is only for their order.
    """

    partition: KeyRange
    tokens: tuple[tuple[KeyRange, str], ...]
    start: int | None
    bounded: bool = True
    watermark: int = field(default=0, compare=False)

    def moved(self, token: str, watermark: int) -> Position:
        """Return the position of the same partition after a record or heartbeat with `token`."""
        return Position(self.partition, ((self.partition, token),), None, self.bounded, watermark)


@dataclass(frozen=True, slots=True)
class Advanced:
    """A record or heartbeat of the stream of `partition` was claimed; it stands at `token` now."""

    partition: KeyRange
    token: str
    watermark: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The stream of `partition` was closed; `continuations` continue it."""

    partition: KeyRange
    continuations: tuple[Continuation, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The stream of `partition` was read to the frontier's end."""

    partition: KeyRange


@dataclass(frozen=True, slots=True)
class Reopened:
    """The waiting segment of `range` has waited long enough: it is opened as a partition."""

    range: KeyRange

    @property
    def partition(self) -> KeyRange:
        """The range, under the name that the other steps use."""
        return self.range


Step: TypeAlias = Advanced | Closed | Finished | Reopened


@dataclass(frozen=True, slots=True)
class Frontier:
    """The remaining work of the keys in `row_range`, up to and including `end` (None: without end).

    `segments` are sorted and disjoint. `finished` are the keys of `row_range` that have been read to `end`. A whole
    frontier knows all of them, a `dealt` part only those that it read or that were finished before the deal.
    """

    segments: tuple[Segment, ...]
    row_range: KeyRange = EVERYTHING
    finished: tuple[KeyRange, ...] = ()
    end: int | None = None
    dealt: bool = False

    @classmethod
    def starting_at(
        cls,
        start: int,
        partitions: Iterable[KeyRange],
        row_range: KeyRange = EVERYTHING,
        end: int | None = None,
    ) -> Frontier:
        """Return the frontier of the partitions that the service lists, read from `start`, inclusive.

        Raises:
            LineageError: they do not cover the key space exactly.
        """
        # Checked here, because a gap would be keys that no stream reads, and an overlap changes that are emitted twice.
        listed = sorted(partitions)
        if not tiles(EVERYTHING, listed):
            raise LineageError(
                f"the {len(listed)} partitions that the service lists do not cover the table exactly. "
                "Nothing was read. Start again, and please report this"
            )
        # A partition that the row range cuts is read whole, and `key_filter` drops its other changes.
        mine = [part for part in listed if part.intersection(row_range)]
        return cls(tuple([Segment(part, None, start, part) for part in mine]), row_range, (), end)

    @property
    def done(self) -> bool:
        """Whether no work remains, now or later."""
        return not self.segments

    @property
    def watermark(self) -> int | None:
        """The lowest of the service's estimates for the remaining keys; None when no work remains.

        Held by the slowest segment, waiting ones too; advanced by records and heartbeats of its stream.
        """
        return min((segment.watermark for segment in self.segments), default=None)

    @property
    def can_progress(self) -> bool:
        """Whether a partition of this part may be read, or a segment waits that may be re-opened."""
        return bool(self.positions or self.waiting)

    @property
    def readable(self) -> Collection[KeyRange]:
        """The partitions that may be read now."""
        return self.positions.keys()

    @property
    def summary(self) -> str:
        """The remaining work, in words."""
        return f"{len(self.segments)} segments to read"

    def exhausted(self) -> Frontier:
        """Return the same frontier without remaining work."""
        return Frontier((), self.row_range, (), self.end)

    @property
    def positions(self) -> dict[KeyRange, Position]:
        """Return the streams that may be open now, by partition."""
        return {
            target: _position(target, segments, self._matters(target))
            for target, segments in self._by_target().items()
            if _complete(target, segments)
        }

    @property
    def waiting(self) -> dict[KeyRange, KeyRange]:
        """The segments (range to target) that wait, except for those that wait for keys of other parts.

        Another parent may still close into the same target, or the target may never complete. Only the service knows,
        and says so when the segment is re-opened.
        """
        waiting = [
            (target, segments)
            for target, segments in self._by_target().items()
            if not _complete(target, segments)
        ]
        if not waiting:
            return {}
        # A dealt part re-opens only segments whose target it holds whole. For another target it must wait: the other
        # part may close into it at any time.
        held = united(segment.range for segment in self.segments)
        return {
            segment.range: target
            for target, segments in waiting
            if not self.dealt or any(run.covers(target) for run in held)
            for segment in segments
        }

    def key_filter(self) -> Callable[[bytes], bool] | None:
        """Return a function that says by the row key whether a change is emitted; None: all are."""
        if self.row_range == EVERYTHING and not self.finished:
            return None
        row_range, finished = self.row_range, self.finished
        return lambda key: row_range.holds(key) and not any(part.holds(key) for part in finished)

    def apply(self, step: Step) -> Frontier:
        """Return the frontier after one claimed step.

        Raises:
            LineageError: the step's partition may not be open, or the close does not fit it.
        """
        match step:
            case Advanced(partition, token, watermark):
                self._parents(step)
                return self.advanced({partition: (token, watermark)})
            case Closed(partition, continuations):
                # A token has no watermark. The children start at the lowest of their parents; the first record or
                # heartbeat of each raises it.
                # Checked before anything is replaced: a close of a partition that is not open must change nothing.
                parents = self._parents(step)
                low = min(parent.watermark for parent in parents)
                return self._replaced(parents, _children(partition, continuations, low))
            case Finished(partition):
                # The keys are remembered as finished, and not only dropped: a later merge may bring them back into a
                # partition that is still read (rule 5).
                rest = self._replaced(self._parents(step), ())
                common = partition.intersection(self.row_range)
                finished = united((*self.finished, common) if common else self.finished)
                return replace(rest, finished=finished).settled()
            case Reopened(part):
                (segment,) = self._waiting(part)
                return self._replaced([segment], [replace(segment, target=part)])

    def advanced(self, positions: Mapping[KeyRange, tuple[str, int]]) -> Frontier:
        """Return the frontier with several open streams at new (token, watermark): many steps for one copy.

        The segments of a merged stream collapse to one. No watermark goes back.
        """
        if not positions:
            return self
        lows: dict[KeyRange, int] = {}
        # Two passes over the segments, and not a search for each position: a table may have thousands of partitions.
        for segment in self.segments:
            if segment.target in positions:
                lows[segment.target] = min(lows.get(segment.target, segment.watermark), segment.watermark)
        moved: dict[KeyRange, Segment] = {}  # by range, in the order of the keys, which does not change
        for segment in self.segments:
            if (position := positions.get(segment.target)) is None:
                moved[segment.range] = segment
            else:
                token, watermark = position
                # The service's estimate may go back; the frontier's watermark must not.
                at = max(watermark, lows[segment.target])
                moved[segment.target] = Segment(segment.target, token, at, segment.target)
        return replace(self, segments=tuple(moved.values()))

    def settled(self) -> Frontier:
        """Drop segments that no wanted key needs, and fill the holes of waiting targets (rule 5)."""
        if self.row_range == EVERYTHING and not self.finished:  # the usual case: no key is unwanted
            return self
        # Kept are the segments with wanted keys, and those that a wanted target needs to be complete.
        mattering = [segment for segment in self.segments if self._matters(segment.target)]
        wanted = united(segment.target for segment in mattering)
        others = [segment for segment in self.segments if not self._matters(segment.target)]
        kept = mattering + [other for other in others if any(map(other.range.intersection, wanted))]
        # Another part may hold the missing keys, so a dealt part fills no hole.
        return replace(self, segments=_sorted(kept if self.dealt else [*kept, *_fillers(mattering, kept)]))

    def deal(self, n: int) -> list[Frontier]:
        """Return at most `n` frontiers, none empty, that can be read in parallel; `join` is the exact inverse.

        A waiting segment goes to the same part as all segments that its target overlaps. A segment keeps its part from
        one deal to the next where possible; see `deal_families`.

        Raises:
            ValueError: this is a dealt part itself; `join` first.
        """
        if self.dealt:
            raise ValueError("a dealt part cannot be dealt again: join all parts first")
        families = [Family(each, each[0].range.start, _lowest(each)) for each in self._families()]
        parts = deal_families(families, n)
        return [replace(self, segments=_sorted(part), dealt=len(parts) > 1) for part in parts]

    @staticmethod
    def join(parts: Sequence[Frontier]) -> Frontier:
        """Return one whole frontier from all parts of a deal, however far each has been read.

        Parts without remaining work may be left out: wanted keys that no part holds have been read to the end.

        Raises:
            LineageError: two parts hold the same keys.
            ValueError: no parts, or parts of different frontiers.
        """
        if len({(part.row_range, part.end) for part in parts}) != 1:
            raise ValueError("join needs the parts of one frontier: at least one, all of the same stream")
        row_range, end = parts[0].row_range, parts[0].end
        segments = _sorted([segment for part in parts for segment in part.segments])
        # Parts without work are not in the residuals. Wanted keys without a segment were read to the end in one of
        # them.
        gone = missing(row_range, [segment.range for segment in segments])
        finished = united((*gone, *(done for part in parts for done in part.finished)))
        return Frontier(segments, row_range, finished, end).settled()

    def _by_target(self) -> dict[KeyRange, list[Segment]]:
        targets: dict[KeyRange, list[Segment]] = {}
        for segment in self.segments:
            targets.setdefault(segment.target, []).append(segment)
        return targets

    def _parents(self, step: Step) -> list[Segment]:
        parents = [segment for segment in self.segments if segment.target == step.partition]
        if not _complete(step.partition, parents):
            raise LineageError(
                f"{type(step).__name__} for {abbreviate(step.partition)}, which may not be open"
            )
        return parents

    def _waiting(self, part: KeyRange) -> list[Segment]:
        found = [segment for segment in self.segments if segment.range == part]
        if not found or _complete(found[0].target, self._by_target()[found[0].target]):
            raise LineageError(f"{abbreviate(part)} does not wait and cannot be re-opened")
        return found

    def _replaced(self, parents: Iterable[Segment], children: Iterable[Segment]) -> Frontier:
        gone = {parent.range for parent in parents}
        kept = [segment for segment in self.segments if segment.range not in gone]
        return replace(self, segments=_sorted([*kept, *children])).settled()

    def _matters(self, target: KeyRange) -> bool:
        """Return whether keys of `target` are wanted and not read to the end yet."""
        common = target.intersection(self.row_range)
        if common is None or not self.finished:
            return common is not None
        # `finished` is united, so keys that were all read are in one of its ranges.
        number = bisect_right(self.finished, common.start, key=lambda part: part.start) - 1
        return number < 0 or not self.finished[number].covers(common)

    def _families(self) -> list[list[Segment]]:
        """Group the segments whose keys or targets overlap."""
        families: list[tuple[KeyRange, list[Segment]]] = []
        # In the order of the targets, the next segment can only overlap the last family.
        for segment in sorted(self.segments, key=lambda segment: (segment.target, segment.range)):
            span = segment.target
            if families and families[-1][0].intersection(span):
                families[-1][1].append(segment)
                families[-1] = families[-1][0].hull(span), families[-1][1]
            else:
                families.append((span, [segment]))
        return [segments for _, segments in families]


def _complete(target: KeyRange, segments: Sequence[Segment]) -> bool:
    # A single segment needs no token: it may be read from its start time.
    if len(segments) == 1:
        return segments[0].range == target
    return tiles(target, [s.range for s in segments]) and all(s.token is not None for s in segments)


def _position(target: KeyRange, segments: Sequence[Segment], bounded: bool) -> Position:
    # A request begins at tokens or at a time, never at both. Without a token there is one segment (`_complete`), so the
    # lowest watermark is its own start.
    low = min(segment.watermark for segment in segments)
    tokens = tuple([(segment.range, segment.token) for segment in segments if segment.token is not None])
    return Position(target, tokens, None if tokens else low, bounded, low)


def _children(partition: KeyRange, continuations: Iterable[Continuation], watermark: int) -> list[Segment]:
    """Return the segments that follow a close, cut to the closed partition.

    A target that does not cover the keys of its token is ignored: these keys are re-opened as a partition.

    Raises:
        LineageError: together the tokens do not cover the closed partition exactly.
    """
    children = []
    for given in continuations:
        # Cut, because the service may write the new partition here, and its other keys belong to other parents.
        mine = given.partition.intersection(partition)
        if mine is None:
            raise LineageError(
                f"the close of {abbreviate(partition)} has a token for {abbreviate(given.partition)} instead"
            )
        children.append(
            Segment(mine, given.token, watermark, given.target if given.target.covers(mine) else mine)
        )
    # A gap would be keys that no token continues, and an overlap changes that are emitted twice.
    if not tiles(partition, [child.range for child in children]):
        raise LineageError(
            f"the {len(children)} tokens in the close of {abbreviate(partition)} do not cover it exactly. "
            "No change was skipped. Please report this"
        )
    return children


def _fillers(waiting: Iterable[Segment], holding: Iterable[Segment]) -> list[Segment]:
    """Return segments for the keys that the targets of `waiting` include and no segment of `holding` has."""
    held = [segment.range for segment in holding]
    fillers: list[Segment] = []
    for segment in waiting:
        for hole in missing(segment.target, held):
            fillers.append(Segment(hole, None, segment.watermark, hole))
            # Targets may overlap, and keys that two of them include get one segment.
            held.append(hole)
    return fillers


def _sorted(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return the segments in order of their keys.

    Raises:
        LineageError: two of them hold the same keys.
    """
    ordered = sorted(segments, key=lambda segment: segment.range)
    for one, other in pairwise(ordered):
        if one.range.intersection(other.range):
            raise LineageError(f"two segments of a frontier hold keys of {abbreviate(other.range)}")
    return tuple(ordered)


def _lowest(family: Iterable[Segment]) -> int:
    return min(segment.watermark for segment in family)
