"""Deals the partitions of a stream out to the tasks that read in parallel, the same way in each epoch. Pure.

A part should keep its partitions from one epoch to the next: the process that reads it holds their open streams and the
data that was read ahead. So the part of a partition follows from its name, and not from its position, which changes all
the time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

BEHIND_NANOS = 60 * 1_000_000_000
"""A partition that is so far behind the most advanced one is dealt apart from those that are not: nanoseconds.

Otherwise one task might read all partitions that are behind, while the others have nothing to do.
"""


@dataclass(frozen=True, slots=True)
class Family(Generic[T]):
    """Partitions that must be in the same part.

    `name` tells the family apart from all others of the stream; two deals with the same names have the same result.
    `watermark` is the lowest one of the family, in nanoseconds.
    """

    members: Sequence[T]
    name: bytes
    watermark: int


def deal_families(families: Iterable[Family[T]], n: int) -> list[list[T]]:
    """Return the members of the families in at most `n` parts, none empty, of about the same size."""
    named = sorted(families, key=lambda family: family.name)
    if not named:
        return []
    newest = max(family.watermark for family in named)
    parts: list[list[Family[T]]] = [[] for _ in range(min(n, len(named)))]
    # The families behind are leveled among themselves first; the others then fill up the shorter parts.
    for behind in (True, False):
        group = [family for family in named if (newest - family.watermark > BEHIND_NANOS) == behind]
        for family in group:
            # A hash that is the same in every process. Python's `hash` of bytes is not.
            parts[zlib.crc32(family.name) % len(parts)].append(family)
        _level(parts, group)
    return [[member for family in part for member in family.members] for part in parts]


def _level(parts: list[list[Family[T]]], movable: Sequence[Family[T]]) -> None:
    """Move families of `movable` to shorter parts, as long as that makes the parts more equal."""
    names = {family.name for family in movable}
    while True:
        shortest = min(parts, key=_size)
        for longest in sorted(parts, key=_size, reverse=True):
            # The largest one that helps. Each move makes the sum of the squared sizes smaller, so the loop ends.
            gap = _size(longest) - _size(shortest)
            fitting = [family for family in longest if family.name in names and 0 < len(family.members) < gap]
            if fitting:
                break
        else:
            return
        moved = max(fitting, key=lambda family: (len(family.members), family.name))
        longest.remove(moved)
        shortest.append(moved)


def _size(part: Sequence[Family[T]]) -> int:
    return sum(len(family.members) for family in part)
