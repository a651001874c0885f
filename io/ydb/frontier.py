"""The partitions of a changefeed's topic as one value: which may be read, how far each is, and which wait. Pure.

    frontier = frontier.advanced({0: position})              # records of partition 0 were claimed
    frontier = frontier.apply(Finished(0, (2, 3), ()))       # … it was split, and all of it was claimed
    frontier.watermark                                       # no unread change is below

A topic with auto-partitioning splits and merges partitions. Each partition has its own offsets, and its changes of a
key come before the changes of its children. The rules:

1. **A child opens when all its parents are known to be finished.** A parent that ends names its children and, for a
   merge, the other parents. So the entry of a waiting child lists its unfinished parents. A parent that is not known
   yet, because its own parent lags, counts as unfinished.
2. **A dealt part knows only what it has read.** A child may wait in two parts, each of which has removed another
   parent; `join` keeps the parents that no part has removed.
3. **A waiting child holds the watermark** at the lowest one of its finished parents: its changes are not below it.
4. **A read with an end** does not open a child whose parents have all passed the end. A parent that was read to the
   end counts as finished, so a child of a merge still gives the changes of the other parent.

Growth: one entry per open and per waiting partition. Nothing grows with time.

Source of the rules: ydb_topic.proto, EndPartitionSession and DescribeTopicResult.PartitionInfo; YDB documentation,
"Topic" (Autopartitioning) and "Change Data Capture" (Guarantees).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from penstock.errors import LineageError
from penstock.io.change_streams.dealing import Family, deal_families
from penstock.io.change_streams.frontier import Slowest

VirtualTime: TypeAlias = tuple[int, int]
UNKNOWN: VirtualTime = (0, 0)
"""No record was read yet, so the virtual timestamp of the initial scan is not known."""


class Position(NamedTuple):
    """The position at which a partition continues.

    - `offset`: of the next message. `sought`: it is the first one that was written at the start of the read or later,
      at this offset or after it. Otherwise it is exactly this offset, and a gap before it is an error.
    - `watermark`: no unread change of the partition is below it, in nanoseconds.
    - `snapshot`: the lowest virtual timestamp so far, which the rows of the initial scan have. None: it is not looked
      for.
    - `schema`: the last schema change of the partition: its version in 20 digits, then JSON. Empty: none.
    - `parents`: (partition, end) of finished parents, until the first step, so that a consumer can commit their ends.
    """

    offset: int
    watermark: int
    sought: bool = False
    snapshot: VirtualTime | None = None
    schema: str = ""
    parents: tuple[tuple[int, int], ...] = ()


class Waiting(NamedTuple):
    """A partition that waits until `unfinished` is empty.

    Args:
        opening: what its finished parents say about its position; None: nothing yet.
        first, sought: the offset where it begins, if it existed when the read began; see `Position`.
    """

    unfinished: frozenset[int]
    opening: Position | None = None
    first: int = 0
    sought: bool = False

    def position(self, start: int) -> Position:
        """Return where the partition is opened."""
        opening = self.opening or Position(0, start)
        # A read that begins after the first records cannot determine the virtual timestamp of the scan.
        snapshot = None if self.first or self.sought else opening.snapshot
        return opening._replace(offset=self.first, sought=self.sought, snapshot=snapshot)


class Advanced(NamedTuple):
    """Records, a barrier or a report of the server were claimed; the partition is now at `position`."""

    partition: int
    position: Position


class Finished(NamedTuple):
    """All messages of the partition were claimed, and no more will come.

    `adjacent`: partitions that were merged with it; `children`: those that continue it.
    """

    partition: int
    children: tuple[int, ...]
    adjacent: tuple[int, ...]


class Ended(NamedTuple):
    """The partition was read to the end of the read."""

    partition: int


Step: TypeAlias = Advanced | Finished | Ended


@dataclass(frozen=True, slots=True)
class Frontier:
    """The remaining work of a changefeed, from `start` to `end`, both inclusive (None: without end).

    `dealt`: this is one part of several and knows nothing of the others. `created_at`: the virtual timestamp of the
    topic's creation, by which a topic that was created again is recognized.
    """

    open: Mapping[int, Position]
    waiting: Mapping[int, Waiting]
    start: int
    end: int | None = None
    dealt: bool = False
    created_at: VirtualTime = (0, 0)

    @property
    def done(self) -> bool:
        """Whether no work remains, now or later."""
        return not self.open and not self.waiting

    @property
    def can_progress(self) -> bool:
        """Whether a partition of this part may be read; waiting ones may need other parts first."""
        return bool(self.open)

    @property
    def readable(self) -> Collection[int]:
        """The partitions that may be read now."""
        return self.open.keys()

    @property
    def summary(self) -> str:
        """The remaining work, in words."""
        return f"{len(self.open)} partitions open and {len(self.waiting)} waiting"

    @property
    def watermark(self) -> int | None:
        """No unread change is below this time; None when no work remains."""
        held = [child.opening.watermark for child in self.waiting.values() if child.opening is not None]
        lowest = min((*(position.watermark for position in self.open.values()), *held), default=None)
        # Children whose parents are all in other parts, which hold the watermark.
        return self.start if lowest is None and self.waiting else lowest

    @property
    def slowest(self) -> Slowest | None:
        """The partition that holds the watermark, an open one if there are several."""
        found = [Slowest(f"partition {n}", position.watermark) for n, position in sorted(self.open.items())]
        found += [
            Slowest(
                f"partition {n}",
                child.opening.watermark,
                tuple(f"partition {parent}" for parent in sorted(child.unfinished)),
            )
            for n, child in sorted(self.waiting.items())
            if child.opening is not None
        ]
        return min(found, key=lambda each: each.timestamp, default=None)

    def apply(self, step: Step) -> Frontier:
        """Return the frontier after one claimed step.

        Raises:
            LineageError: the step's partition is not open.
        """
        if step.partition not in self.open:
            raise LineageError(f"{type(step).__name__} for partition {step.partition}, which is not open")
        match step:
            case Advanced(partition, position):
                return self.advanced({partition: position})
            case Finished(partition, children, adjacent):
                return self._closed(partition, children, frozenset((partition, *adjacent)))
            case Ended(partition):
                return self._closed(partition, (), frozenset())

    def exhausted(self) -> Frontier:
        """Return the same frontier without remaining work."""
        return replace(self, open={}, waiting={})

    def advanced(self, positions: Mapping[int, Position]) -> Frontier:
        """Return the frontier with several open partitions at new positions."""
        return replace(self, open={**self.open, **positions}) if positions else self

    def settled(self) -> Frontier:
        """Open each partition that waits for none any more."""
        if not self.waiting:
            return self
        opened, waiting = dict(self.open), dict(self.waiting)
        # To the end: a child that is dropped because it begins after the end may free its own children.
        while ready := self._ready(opened, waiting):
            for number in ready:
                position = waiting.pop(number).position(self.start)
                # A child begins at the watermark of its parents, so this is decided without reading it.
                if self.end is None or position.watermark <= self.end:
                    opened[number] = position
                else:  # all changes of it and of its children are after the end
                    waiting = _without_parent(waiting, number, position)
        return replace(self, open=opened, waiting=waiting)

    def _ready(self, opened: Mapping[int, Position], waiting: Mapping[int, Waiting]) -> list[int]:
        ready = [number for number, child in waiting.items() if not child.unfinished]
        if ready or opened or self.dealt or self.end is None:
            return ready
        # Nothing is open, so no parent will be announced any more: those that are missing begin after the end.
        orphans = [number for number, child in waiting.items() if not child.unfinished & waiting.keys()]
        return orphans or list(waiting)

    def deal(self, n: int) -> list[Frontier]:
        """Return at most `n` frontiers, none empty, that can be read in parallel; `join` is the exact inverse.

        A waiting child goes to the same part as its open parents. A partition keeps its part from one deal to the next
        where possible; see `deal_families`.

        Raises:
            ValueError: this is a dealt part itself; `join` first.
        """
        if self.dealt:
            raise ValueError("a dealt part cannot be dealt again: join all parts first")
        # A child stays with its parents. In another part it would not open before the next join.
        families = [Family(each, b"%d" % each[0], self._lowest(each)) for each in self._families()]
        parts = deal_families(families, n)
        return [self._part(frozenset(numbers), dealt=len(parts) > 1) for numbers in parts]

    @staticmethod
    def join(parts: Sequence[Frontier]) -> Frontier:
        """Return one whole frontier from all parts of a deal, however far each has been read.

        Raises:
            LineageError: two parts hold the same partition.
            ValueError: no parts, or parts of different frontiers.
        """
        if len({(part.start, part.end, part.created_at) for part in parts}) != 1:
            raise ValueError("join needs the parts of one frontier: at least one, all with the same end")
        opened: dict[int, Position] = {}
        waiting: dict[int, Waiting] = {}
        for part in parts:
            _refuse_shared(opened.keys() & part.open.keys())
            opened.update(part.open)
            for number, child in part.waiting.items():
                # A child whose parents are in several parts waits in each of them.
                waiting[number] = _merged(waiting.get(number), child)
        _refuse_shared(opened.keys() & waiting.keys())
        first = parts[0]
        return Frontier(opened, waiting, first.start, first.end, False, first.created_at).settled()

    def _closed(self, partition: int, children: Iterable[int], parents: frozenset[int]) -> Frontier:
        last = self.open[partition]
        waiting = dict(self.waiting)
        # Each parent of a merge announces the child.
        # A child that another parent has announced keeps what that parent said; see `_merged`.
        for child in children:
            waiting[child] = _merged(waiting.get(child), Waiting(parents))
        opened = {number: position for number, position in self.open.items() if number != partition}
        return replace(self, open=opened, waiting=_without_parent(waiting, partition, last)).settled()

    def _families(self) -> list[tuple[int, ...]]:
        """Group the partitions that are connected by "waits for". An unknown parent connects nothing."""
        family = {number: {number} for number in (*self.open, *self.waiting)}
        for number, child in self.waiting.items():
            for parent in child.unfinished & family.keys():
                united = family[number] | family[parent]
                for member in united:
                    # All members share one set, so that families which meet later are united as a whole.
                    family[member] = united
        return [tuple(sorted(each)) for each in {id(each): each for each in family.values()}.values()]

    def _lowest(self, family: Iterable[int]) -> int:
        return min((self.open[n].watermark for n in family if n in self.open), default=self.start)

    def _part(self, numbers: frozenset[int], *, dealt: bool) -> Frontier:
        return replace(
            self,
            open={number: position for number, position in self.open.items() if number in numbers},
            waiting={number: child for number, child in self.waiting.items() if number in numbers},
            dealt=dealt,
        )


def _without_parent(waiting: Mapping[int, Waiting], parent: int, last: Position) -> dict[int, Waiting]:
    """Return the waiting partitions when `parent` was read to its end, at the position `last`."""
    opening = Position(0, last.watermark, False, last.snapshot, last.schema, ((parent, last.offset),))
    return {
        number: child._replace(
            unfinished=child.unfinished - {parent}, opening=_opening(child.opening, opening)
        )
        if parent in child.unfinished
        else child
        for number, child in waiting.items()
    }


def _opening(known: Position | None, other: Position | None) -> Position | None:
    """Combine what two parents say about the opening of a child."""
    if known is None or other is None:
        return known or other
    # If one parent was not read from its first record, the timestamp of the scan cannot be found in the child.
    snapshots = (known.snapshot, other.snapshot)
    known_ones = [each for each in snapshots if each not in (None, UNKNOWN)]
    snapshot = None if None in snapshots else min(known_ones, default=UNKNOWN)
    return Position(
        0,
        min(known.watermark, other.watermark),
        False,
        snapshot,
        # The text begins with the version of the schema.
        max(known.schema, other.schema),
        tuple(sorted({*known.parents, *other.parents})),
    )


def _merged(known: Waiting | None, again: Waiting) -> Waiting:
    """Combine two entries of one child: a parent that either entry has removed is finished."""
    if known is None:
        return again
    return Waiting(
        known.unfinished & again.unfinished,
        _opening(known.opening, again.opening),
        max(known.first, again.first),
        known.sought or again.sought,
    )


def _refuse_shared(numbers: Iterable[int]) -> None:
    for number in numbers:
        raise LineageError(f"two parts of a frontier hold partition {number}")
