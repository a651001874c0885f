"""A closed part of a topic: for each partition, the messages between two offsets. Pure.

    end = slice_end(start, ends_of(description), parents_of(description), most=10_000)
    for part in slice_parts(start, end, parents_of(description), most=8):  # anywhere, in any order, more than once
        for piece in part.pieces:
            …  # the messages of one partition

Offsets of a partition are consecutive and never used again, so a range of them always has the same messages. The rules:

1. A partition that is not in the start of a slice was created after it and begins at offset 0.
2. A partition is **finished** if it was split or merged and everything in it is before the offset. No later slice
   reads it.
3. A slice has messages of a partition only if all parents of the partition are finished at the end of the slice. So no
   slice has changes of a key that are older than changes of a slice before it.
4. Partitions that continue each other within a slice belong to one part, which reads the parents first. A child has a
   higher number than its parents.

Source of the rules: YDB documentation, "Topic" (Offset, Autopartitioning); ydb_topic.proto,
DescribeTopicResult.PartitionInfo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import LineageError, SetupError
from penstock.io.ydb.description import Description


@dataclass(frozen=True, slots=True)
class Offsets:
    """One end of a slice: for each partition, the offset before which everything belongs to earlier slices.

    `open`: partitions of which later slices may have messages. `finished`: see rule 2.
    """

    open: Mapping[int, int]
    finished: Mapping[int, int] = field(default_factory=dict)


class Piece(NamedTuple):
    """Messages of one partition from offset `first` (inclusive) to `end` (exclusive)."""

    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class SlicePart:
    """What one task reads, in this order."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """The number of messages."""
        return sum(piece.end - piece.first for piece in self.pieces)


def ends_of(found: Description) -> Offsets:
    """Return the offsets after the last messages that a topic has now.

    Raises:
        SetupError: YDB does not say them.
    """
    opened: dict[int, int] = {}
    finished: dict[int, int] = {}
    for partition in found.partitions:
        if partition.end is None:
            raise SetupError(
                f"YDB does not say at which offset partition {partition.number} of the changefeed ends, so it cannot "
                "be read in slices. Update YDB, or read the changefeed with ReadFromYdbChangefeed"
            )
        (opened if partition.active else finished)[partition.number] = partition.end
    return Offsets(opened, finished)


def parents_of(found: Description) -> dict[int, tuple[int, ...]]:
    """Return the parents of each partition. Parents that the topic no longer has are missing."""
    known = {partition.number for partition in found.partitions}
    return {partition.number: tuple(known.intersection(partition.parents)) for partition in found.partitions}


def slice_end(
    start: Offsets, target: Offsets, parents: Mapping[int, Collection[int]], most: int | None = None
) -> Offsets:
    """Return where a slice ends that begins at `start`: at `target`, or before it if it would have too many messages.

    `most`: the most messages of the slice, at least 1; None: any number. They are divided evenly over the partitions.
    No offset is before the start, also if the target was asked from a server that lags.
    """
    taken = {**start.open, **start.finished}
    # A partition that retention has removed is forgotten once it is finished.
    finished = {number for number in start.finished if number in {**target.open, **target.finished}}
    waiting = {**target.open, **target.finished}.keys() - start.finished.keys()
    left = most
    # A round gives shares to the partitions whose parents are all finished. Those that it finishes free their
    # children for the next round, which divides the messages that are left.
    while ready := sorted(
        number
        for number in waiting
        if not any(parent in waiting for parent in parents.get(number, ())) and (left is None or left > 0)
    ):
        ends = {number: target.open.get(number, target.finished.get(number, 0)) for number in ready}
        backlogs = {number: max(0, ends[number] - taken.get(number, 0)) for number in ready}
        shares = backlogs if left is None else _shares(backlogs, left)
        for number in ready:
            taken[number] = taken.get(number, 0) + shares[number]
            if number in target.finished and taken[number] >= ends[number]:
                finished.add(number)
        left = None if left is None else left - sum(shares.values())
        done = {number for number in ready if number in finished}
        # Nothing was freed, and the partitions of this round have what they get.
        if not done:
            break
        waiting -= done
    return Offsets(
        {
            number: offset
            for number, offset in sorted(taken.items())
            if number not in start.finished.keys() | finished
        },
        {number: taken[number] for number in sorted(finished)},
    )


def _shares(backlogs: Mapping[int, int], most: int) -> dict[int, int]:
    """Divide `most` messages evenly; a partition that has fewer leaves its rest to the others."""
    shares: dict[int, int] = {}
    in_order = sorted(backlogs.items(), key=lambda each: (each[1], each[0]))
    for position, (number, backlog) in enumerate(in_order):
        shares[number] = min(backlog, most // (len(in_order) - position))
        most -= shares[number]
    return shares


def slice_parts(
    start: Offsets, end: Offsets, parents: Mapping[int, Collection[int]], most: int
) -> list[SlicePart]:
    """Return at most `most` parts that have the messages from `start` to `end`. Equal arguments give equal parts.

    Raises:
        LineageError: a partition ends before it begins.
    """
    pieces = {
        number: Piece(number, start.open.get(number, 0), offset)
        for number, offset in {**end.open, **end.finished}.items()
        if number not in start.finished
    }
    for piece in pieces.values():
        if piece.end < piece.first:
            raise LineageError(
                f"a slice begins at offset {piece.first} of partition {piece.partition} and ends at {piece.end}"
            )
    parts: list[list[Piece]] = [[] for _ in range(most)]
    families = [[pieces[number] for number in family] for family in _families(pieces, parents)]
    # The largest first, each to the part that has the least.
    for family in sorted(families, key=lambda each: (-SlicePart(tuple(each)).size, each[0])):
        smallest = min(parts, key=lambda part: SlicePart(tuple(part)).size)
        smallest.extend(piece for piece in family if piece.first < piece.end)
    return [SlicePart(tuple(part)) for part in parts if part]


def _families(numbers: Iterable[int], parents: Mapping[int, Collection[int]]) -> list[list[int]]:
    """Group partitions that continue each other, sorted by number: parents before their children."""
    family = {number: {number} for number in numbers}
    for number in list(family):
        for parent in parents.get(number, ()):
            if parent in family and family[parent] is not family[number]:
                united = family[number] | family[parent]
                # All members share one set, so that families which meet later are united as a whole.
                for member in united:
                    family[member] = united
    return [sorted(each) for each in {id(each): each for each in family.values()}.values()]
