"""Reads the ranges of a scan ahead.

Ranges come in any order, the rows of a range in the order of the service. A bundle finishes the range that it has begun
before it takes rows of another one: a finished range leaves the checkpoint.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.io.change_streams.partition_prefetch import PartitionPrefetcher, Readers


class RangePositions(Mapping[int, Any]):
    """The positions of ranges by number. Each is made when it is asked for: a bundle reads a few of many ranges."""

    def __init__(self, ranges: Mapping[int, Any], make: Callable[[Any], Any]) -> None:
        """`make`: returns the position of a range."""
        self._ranges, self._make = ranges, make

    def __getitem__(self, number: int) -> Any:
        return self._make(self._ranges[number])

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def __contains__(self, number: object) -> bool:
        return number in self._ranges


class RangePrefetcher(PartitionPrefetcher):
    """The ranges of one bundle."""

    gather_seconds = 0.0
    # A range is read to its end.
    turn_seconds = math.inf

    def __init__(self, pool: Readers) -> None:
        super().__init__(pool)
        self._current: int | None = None
        self._order: deque[int] | None = None

    def candidates(self, positions: Mapping[int, Any], most: int) -> list[int]:
        # In a bundle ranges only go, so they are sorted once: with thousands of tables the other way would take most of
        # the time.
        if self._order is None:
            self._order = deque(sorted(positions))
        found: list[int] = []
        while self._order and len(self.running) + len(found) < most:
            number = self._order.popleft()
            if number in positions and number not in self.running:
                found.append(number)
        return found

    def rank(self, partition: int, position: Any) -> tuple[Any, ...]:
        """Return the order of ranges: the one that was begun comes first."""
        return partition != self._current, partition

    def take(self, timeout: float) -> Any:
        batch = super().take(timeout)
        if batch is not None:
            self._current = None if batch.ends_with_lineage else batch.partition
        return batch

    @property
    def data_expected(self) -> bool:
        """Whether a range is not finished and the service answers."""
        return bool(self.running) and self.pool.backoff.remaining_pause() == 0

    @property
    def first_record_pending(self) -> bool:
        """Never: the watermark of a scan does not move before its end."""
        return False

    @property
    def is_behind(self) -> bool:
        """Whether a range is not finished. Then the bundle goes on: a range may have to be read again as a whole."""
        return bool(self.running)
