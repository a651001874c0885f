"""Divides the key space among the partitions of a stream, and makes the records about changes of the division.

`KeyRanges` knows the partitions and which of them owns a position. Its two subclasses are the two partition
modes. In both, each position has exactly one owner at each moment, and a change of owner at `timestamp` is
announced by records at that timestamp:

- `ImmutableRanges` (IMMUTABLE_KEY_RANGE): the keys of a partition never change. Where they shall, it ends, and
  its last record names its children. A child starts at the end of its parents, and a commit at that timestamp
  belongs to the child. All children of a split are in one record; a merge is announced by each parent.
- `MutableRanges` (MUTABLE_KEY_RANGE): ranges move between partitions that live on. Source and destination each
  have an event record. A new partition is announced by a start record of the partition its first range comes
  from; a partition that owns nothing any more has an end record, its last.

Source: Spanner documentation, "Change stream partitions, records, and queries"; change_stream.proto (the
examples of PartitionEventRecord). Not documented, and chosen here: which partition announces a new one, and the
order of start, event and end records at one timestamp (in this order).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator

from penstock_emulators.simulated_spanner.partition import Partition
from penstock_emulators.simulated_spanner.record import (
    Children,
    PartitionEnd,
    PartitionEvent,
    PartitionStart,
)

SPACE = 1 << 32
"""Positions are in [0, SPACE)."""


class KeyRanges(ABC):
    """Partitions, past and present, and the owners of all positions."""

    def __init__(self, timestamp: int, count: int, new_token: Callable[[], str]) -> None:
        """Begin with `count` partitions that divide the key space evenly."""
        self.partitions: dict[str, Partition] = {}
        self._new_token = new_token
        # Evenly, because nothing is known about the keys before the first row.
        self._starts = [SPACE * number // count for number in range(count)]
        self._owners = [self._open(timestamp, ()) for _ in range(count)]

    def owner(self, position: int) -> Partition:
        """Return the partition that records changes of the keys at a position now."""
        # `_starts` is sorted and begins with 0, so each position has exactly one range.
        return self.partitions[self._owners[bisect_right(self._starts, position) - 1]]

    def ranges(self) -> Iterator[tuple[int, int, str]]:
        """Yield (start, end, token) of all ranges, in order; the end is exclusive."""
        ends = [*self._starts[1:], SPACE]
        return zip(self._starts, ends, self._owners, strict=True)

    def live(self) -> list[str]:
        """Return the tokens of the partitions that live now, in the order of their first ranges."""
        # A partition may own several ranges in the mutable mode; the first one gives its place.
        return list(dict.fromkeys(self._owners))

    def live_at(self, timestamp: int) -> list[str]:
        """Return the tokens that a query without a token gives at `timestamp`."""
        return [each.token for each in self.partitions.values() if each.lives_at(timestamp)]

    @abstractmethod
    def split(self, token: str, timestamp: int, sequence: int, ways: int = 2) -> set[str]:
        """Divide the keys of a partition; return the tokens whose logs or lives changed."""

    @abstractmethod
    def merge(self, tokens: tuple[str, ...], timestamp: int, sequence: int) -> set[str]:
        """Put the keys of partitions together; return the tokens whose logs or lives changed."""

    @abstractmethod
    def move(self, token: str, timestamp: int, sequence: int, to: str | None = None) -> set[str]:
        """Give keys of a partition to another one; return the tokens whose logs or lives changed."""

    def neighbours(self, token: str) -> list[str]:
        """Return the partitions that own a range next to one of this partition."""
        pairs = list(zip(self._owners, self._owners[1:], strict=False))
        beside = [b if a == token else a for a, b in pairs if token in (a, b) and a != b]
        return list(dict.fromkeys(beside))

    def forget_before(self, timestamp: int) -> None:
        """Drop records, and partitions that ended, below `timestamp`."""
        for partition in list(self.partitions.values()):
            # A partition that ended is kept as long as its last record can be read.
            if partition.end is not None and partition.end < timestamp:
                del self.partitions[partition.token]
            else:
                partition.forget_before(timestamp)

    def _open(self, timestamp: int, parents: tuple[str, ...]) -> str:
        token = self._new_token()
        self.partitions[token] = Partition(token, timestamp, parents)
        return token

    def _replace(self, index: int, starts: list[int], owners: list[str]) -> None:
        self._starts[index : index + 1] = starts
        self._owners[index : index + 1] = owners
        self._join_equal_neighbours()

    def _join_equal_neighbours(self) -> None:
        # Neighbours with one owner are one range: otherwise churn would make ever more of them.
        kept = [n for n, owner in enumerate(self._owners) if n == 0 or owner != self._owners[n - 1]]
        self._starts = [self._starts[number] for number in kept]
        self._owners = [self._owners[number] for number in kept]

    def _check_live(self, *tokens: str) -> None:
        for token in tokens:
            if token not in self._owners:
                raise ValueError(f"{token!r} is no live partition; live are {self.live()}")


class ImmutableRanges(KeyRanges):
    """The mode IMMUTABLE_KEY_RANGE: a partition keeps its keys and ends with a child record."""

    def split(self, token: str, timestamp: int, sequence: int, ways: int = 2) -> set[str]:
        """End the partition; `ways` children divide its range. Too narrow a range is moved instead."""
        self._check_live(token)
        index = self._owners.index(token)
        low = self._starts[index]
        high = self._starts[index + 1] if index + 1 < len(self._starts) else SPACE
        # A range of few positions cannot have more children than positions.
        ways = min(ways, high - low)
        children = [self._open(timestamp, (token,)) for _ in range(ways)]
        self._replace(index, [low + (high - low) * n // ways for n in range(ways)], children)
        self._end(token, timestamp, sequence, children)
        return {token, *children}

    def merge(self, tokens: tuple[str, ...], timestamp: int, sequence: int) -> set[str]:
        """End the partitions, which must be neighbours; one child has all their keys."""
        self._check_live(*tokens)
        first, last = (choose(map(self._owners.index, tokens)) for choose in (min, max))
        # The owners between the first and the last must be exactly those that are named.
        if last - first + 1 != len(set(tokens)):
            raise ValueError("only neighbouring partitions can be merged")
        child = self._open(timestamp, tuple(self._owners[first : last + 1]))
        self._starts[first : last + 1] = [self._starts[first]]
        self._owners[first : last + 1] = [child]
        # Each parent announces the child, so a reader of any parent finds it.
        for token in tokens:
            self._end(token, timestamp, sequence, [child])
        return {*tokens, child}

    def move(self, token: str, timestamp: int, sequence: int, to: str | None = None) -> set[str]:
        """End the partition; one child has its keys. `to` has no meaning in this mode."""
        return self.split(token, timestamp, sequence, ways=1)

    def _end(self, token: str, timestamp: int, sequence: int, children: list[str]) -> None:
        partition = self.partitions[token]
        partition.end = timestamp
        # All children in one record: a reader knows the split as a whole.
        named = tuple((child, self.partitions[child].parents) for child in children)
        partition.append(Children(timestamp, sequence, named))


class MutableRanges(KeyRanges):
    """The mode MUTABLE_KEY_RANGE: ranges move between partitions."""

    def split(self, token: str, timestamp: int, sequence: int, ways: int = 2) -> set[str]:
        """Move parts of the partition's widest range to `ways` - 1 new partitions."""
        self._check_live(token)
        index, low, high = self._widest(token)
        ways = min(ways, high - low)
        # A range of one position cannot be divided.
        if ways < 2:
            return set()
        new = [self._open(timestamp, (token,)) for _ in range(ways - 1)]
        source = self.partitions[token]
        # In this order at one timestamp; the module says why.
        source.append(PartitionStart(timestamp, sequence, tuple(new)))
        source.append(PartitionEvent(timestamp, sequence + 1, token, destinations=tuple(new)))
        for each in new:
            self.partitions[each].append(PartitionEvent(timestamp, sequence + 1, each, sources=(token,)))
        self._replace(index, [low + (high - low) * n // ways for n in range(ways)], [token, *new])
        return {token, *new}

    def merge(self, tokens: tuple[str, ...], timestamp: int, sequence: int) -> set[str]:
        """Move everything of the other partitions to the first one; the others end."""
        # Twice the same token is one partition.
        self._check_live(*tokens)
        destination, *sources = dict.fromkeys(tokens)
        if not sources:
            return set()
        self._move_all(tuple(sources), destination, timestamp, sequence)
        return {destination, *sources}

    def move(self, token: str, timestamp: int, sequence: int, to: str | None = None) -> set[str]:
        """Move half of the widest range to the partition `to`; if None, everything to a new one."""
        self._check_live(token, *([to] if to else []))
        if to is None:
            new = self._open(timestamp, (token,))
            self.partitions[token].append(PartitionStart(timestamp, sequence, (new,)))
            self._move_all((token,), new, timestamp, sequence + 1)
            return {token, new}
        index, low, high = self._widest(token)
        if to == token or high - low < 2:
            return set()
        self.partitions[token].append(PartitionEvent(timestamp, sequence, token, destinations=(to,)))
        self.partitions[to].append(PartitionEvent(timestamp, sequence, to, sources=(token,)))
        self._replace(index, [low, (low + high) // 2], [token, to])
        return {token, to}

    def _move_all(self, sources: tuple[str, ...], destination: str, timestamp: int, sequence: int) -> None:
        for token in sources:
            partition = self.partitions[token]
            partition.append(PartitionEvent(timestamp, sequence, token, destinations=(destination,)))
            partition.append(PartitionEnd(timestamp, sequence + 1, token))
            partition.end = timestamp
        self.partitions[destination].append(PartitionEvent(timestamp, sequence, destination, sources=sources))
        # The sources may own ranges in several places; all of them move.
        self._owners = [destination if owner in sources else owner for owner in self._owners]
        self._join_equal_neighbours()

    def _widest(self, token: str) -> tuple[int, int, int]:
        found = [(n, low, high) for n, (low, high, owner) in enumerate(self.ranges()) if owner == token]
        return max(found, key=lambda each: each[2] - each[1])
