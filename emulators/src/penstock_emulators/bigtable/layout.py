"""The partitions of a table's key space, and what an open stream is told when they change. Pure.

    layout = Layout.whole().split(b"m")
    layout.close(KeyRange(b"", b""))        # the answer to a stream that was open on the whole table

Partitions are half-open: the start is inclusive, the end exclusive, and an empty end is after every key. Each
has an incarnation: the number of the change that made it. A stream is open on an incarnation, so that a
partition which is split and merged back, or moves, closes its streams although its range is as before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random


class LayoutError(ValueError):
    """The change does not fit the layout; the message says what would."""


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """Keys from `start` (inclusive) to `end` (exclusive); an empty `end` is after every key.

    Raises:
        LayoutError: the range holds no key.
    """

    start: bytes
    end: bytes

    def __post_init__(self) -> None:
        if self.end and self.start >= self.end:
            raise LayoutError("a key range must start below its end; an empty end is after every key")

    def holds(self, key: bytes) -> bool:
        """Return whether `key` is in the range."""
        return self.start <= key and (not self.end or key < self.end)

    def covers(self, other: KeyRange) -> bool:
        """Return whether every key of `other` is in this range."""
        return self.start <= other.start and (not self.end or (bool(other.end) and other.end <= self.end))

    def overlap(self, other: KeyRange) -> KeyRange | None:
        """Return the keys that both hold, or None."""
        start = max(self.start, other.start)
        end = min(self.end, other.end) if self.end and other.end else self.end or other.end
        return None if end and start >= end else KeyRange(start, end)


@dataclass(frozen=True, slots=True)
class Layout:
    """Disjoint partitions that cover the key space, ascending, and the incarnation of each.

    `changes` counts the changes so far. The next change makes partitions of incarnation `changes` + 1.
    """

    partitions: tuple[KeyRange, ...]
    incarnations: tuple[int, ...]
    changes: int = 0

    @classmethod
    def whole(cls) -> Layout:
        """Return a layout of one partition."""
        return cls((KeyRange(b"", b""),), (0,))

    @classmethod
    def between(cls, keys: Iterable[bytes]) -> Layout:
        """Return a new layout with these boundaries and no changes."""
        # Boundaries may be given in any order and twice.
        partitions = cls.whole().with_boundaries(keys).partitions
        return cls(partitions, (0,) * len(partitions))

    @property
    def boundaries(self) -> tuple[bytes, ...]:
        """The keys where one partition ends and the next begins."""
        return tuple(partition.start for partition in self.partitions[1:])

    def holding(self, key: bytes) -> KeyRange:
        """Return the partition that holds `key`."""
        return self.partitions[bisect_right(self.boundaries, key)]

    def incarnation(self, partition: KeyRange) -> int | None:
        """Return the incarnation of a partition, or None if there is no such partition now."""
        # A range that only lies in a partition has no incarnation.
        found = self.holding(partition.start)
        return self.incarnations[self.partitions.index(found)] if found == partition else None

    def split(self, key: bytes) -> Layout:
        """Split the partition that holds `key`, which becomes the first key of the right part.

        Raises:
            LayoutError: there is a boundary at `key` already.
        """
        if not key or key in self.boundaries:
            raise LayoutError("a partition starts at this key already; pass a key inside a partition")
        return self.with_boundaries((*self.boundaries, key))

    def merge(self, key: bytes) -> Layout:
        """Merge the two partitions whose common boundary is `key`.

        Raises:
            LayoutError: there is no boundary at `key`.
        """
        self._require(key)
        return self.with_boundaries(boundary for boundary in self.boundaries if boundary != key)

    def cross(self, key: bytes, to: bytes) -> Layout:
        """Move the boundary `key` to `to`, between its neighbours: two partitions change in one step.

        Raises:
            LayoutError: there is no boundary at `key`, or `to` is not inside the two adjacent partitions.
        """
        self._require(key)
        left, right = self.holding(key), self.partitions[self.boundaries.index(key)]
        beside = KeyRange(right.start, left.end)
        if to in (key, beside.start) or not beside.holds(to):
            raise LayoutError("the new boundary must lie inside the two partitions beside the old one")
        return self.with_boundaries(to if boundary == key else boundary for boundary in self.boundaries)

    def move(self, key: bytes) -> Layout:
        """Give the partition that holds `key` a new incarnation, as when it moves to another server."""
        moved = self.holding(key)
        # The range stays and the incarnation changes, so streams of the partition close.
        again = tuple(
            self.changes + 1 if partition == moved else born
            for partition, born in zip(self.partitions, self.incarnations, strict=True)
        )
        return Layout(self.partitions, again, self.changes + 1)

    def with_boundaries(self, keys: Iterable[bytes]) -> Layout:
        """Return the layout with these boundaries; a partition that stays keeps its incarnation."""
        # A partition that neither begins nor ends elsewhere is untouched, and so are its streams.
        known = dict(zip(self.partitions, self.incarnations, strict=True))
        starts = sorted({b"", *keys})
        partitions = tuple(KeyRange(start, end) for start, end in pairwise((*starts, b"")))
        born = tuple(known.get(partition, self.changes + 1) for partition in partitions)
        return Layout(partitions, born, self.changes + 1)

    def close(self, partition: KeyRange) -> tuple[tuple[KeyRange, KeyRange], ...]:
        """Return the successors of `partition`: pairs of a part of it and the partition in which that part is read on.

        The parts cover `partition` exactly, ascending.
        """
        return tuple(
            (part, target) for target in self.partitions if (part := partition.overlap(target)) is not None
        )

    def _require(self, boundary: bytes) -> None:
        if boundary not in self.boundaries:
            raise LayoutError("no two partitions meet at this key; layout() names the boundaries")


def random_change(layout: Layout, rng: Random, keys: Sequence[bytes], most: int = 12) -> Layout:
    """Return a layout after one random change: a split, a merge, a crossing or a move.

    New boundaries are drawn from `keys`; there are at most `most` partitions, and with fewer than three
    splits are likelier. Without a usable key, a boundary is merged or a partition moves.
    """
    fresh = [key for key in keys if key and key not in layout.boundaries]
    # `move` is possible in any layout.
    kinds = ["move"]
    if fresh and len(layout.partitions) < most:
        kinds += ["split"] * (6 if len(layout.partitions) < 3 else 3)
    if layout.boundaries:
        kinds += ["merge"] * 3
    kind = rng.choice([*kinds, "cross"] if layout.boundaries and fresh else kinds)
    if kind == "split":
        return layout.split(rng.choice(fresh))
    if kind == "merge":
        return layout.merge(rng.choice(layout.boundaries))
    if kind == "cross":
        return _crossing(layout, rng, rng.choice(fresh))
    return layout.move(rng.choice(layout.partitions).start)


def _crossing(layout: Layout, rng: Random, key: bytes) -> Layout:
    """Move a boundary of the partition that holds `key` to `key`."""
    partition = layout.holding(key)
    # The ends of the key space are no boundaries.
    boundary = rng.choice([end for end in (partition.start, partition.end) if end])
    return layout.cross(boundary, key)
