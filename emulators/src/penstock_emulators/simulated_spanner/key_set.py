"""Selects the rows of a table for a read or a deletion: keys, ranges of keys, or all.

Source: google/spanner/v1/keys.proto. A range's ends may be prefixes of a key: a closed end includes all keys
with that prefix, an open end excludes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock_emulators.simulated_spanner.rows import Key, Row, SortKey


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range from `start` to `end`. The ends are orders of keys (see `rows.order_of`), perhaps of prefixes."""

    start: SortKey
    end: SortKey
    start_closed: bool
    end_closed: bool

    def holds(self, order: SortKey) -> bool:
        """Return whether a key is in the range."""
        # The end may be a prefix, so as many parts of the key are compared.
        high = order[: len(self.end)]
        return not self.begins_after(order) and (high < self.end or (self.end_closed and high == self.end))

    def begins_after(self, order: SortKey) -> bool:
        """Return whether a key is before the range."""
        low = order[: len(self.start)]
        return low < self.start or (not self.start_closed and low == self.start)


@dataclass(frozen=True, slots=True)
class KeySet:
    """Single keys, ranges, or all rows."""

    keys: tuple[Key, ...] = ()
    ranges: tuple[KeyRange, ...] = ()
    all_rows: bool = False

    @property
    def scans(self) -> bool:
        """Whether rows have to be looked through; else `keys` name them all."""
        return self.all_rows or bool(self.ranges)

    def matching(self, rows: Iterable[tuple[SortKey, Row]]) -> Iterator[Row]:
        """Yield the rows that a range holds."""
        for order, row in rows:
            if self.all_rows or any(each.holds(order) for each in self.ranges):
                yield row
