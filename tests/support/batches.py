"""A source in memory whose elements come one by one or in batches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from typing_extensions import Self

from penstock.batches import ElementBatch, single


class Elements(beam.PTransform):
    """Emits (element, event time in µs) as a source does; `in_batches` gives batches of `size`."""

    def __init__(self, timed: Sequence[tuple[Any, int]], *, size: int = 2) -> None:
        super().__init__()
        self._timed, self._size, self._batches = list(timed), size, False

    def in_batches(self) -> Self:
        changed = copy.copy(self)
        changed._batches = True
        return changed

    def expand(self, begin: Any) -> Any:
        once = begin | beam.Create([None], reshuffle=False)
        if not self._batches:
            return once | beam.FlatMap(lambda _, timed=self._timed: [single(*each) for each in timed])
        parts = [self._timed[first : first + self._size] for first in range(0, len(self._timed), self._size)]
        batches = [ElementBatch(*map(list, zip(*part, strict=True))) for part in parts]
        emit = beam.FlatMap(lambda _: [each.windowed() for each in batches])
        return once | emit.with_output_types(ElementBatch)
