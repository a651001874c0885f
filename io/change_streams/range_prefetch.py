"""Reads the ranges of a scan ahead.

Ranges come in any order, the rows of a range in the order of the service. A bundle finishes the range that it has begun
before it takes rows of another one: a finished range leaves the checkpoint.
"""

from __future__ import annotations

import math
from typing import Any

from penstock.io.change_streams.partition_prefetch import PartitionPrefetcher, Readers


class RangePrefetcher(PartitionPrefetcher):
    """The ranges of one bundle."""

    gather_seconds = 0.0
    # A range is read to its end.
    turn_seconds = math.inf

    def __init__(self, pool: Readers) -> None:
        super().__init__(pool)
        self._current: int | None = None

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
