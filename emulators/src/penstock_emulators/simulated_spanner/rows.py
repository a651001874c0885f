"""The rows of one table with all their versions, ordered by key.

Every version stays, so a read at a timestamp gives what was there. `transaction` refuses reads before the
version_retention_period, when the service would have deleted versions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import total_ordering
from typing import Any, TypeAlias

from sortedcontainers import SortedDict

from penstock_emulators.simulated_spanner.column_type import ColumnType
from penstock_emulators.simulated_spanner.schema import Table
from penstock_emulators.simulated_spanner.value import Value, sort_key

Row: TypeAlias = dict[str, Value]
"""Values by column name; a column that is absent is NULL."""
Key: TypeAlias = tuple[Value, ...]
"""The values of the key columns, in the key's order."""
SortKey: TypeAlias = tuple[Any, ...]


@total_ordering
class _Downwards:
    """A part of a key whose column is declared DESC: compares the other way round."""

    __slots__ = ("part",)

    def __init__(self, part: tuple[int, Any]) -> None:
        self.part = part

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Downwards) and self.part == other.part

    def __lt__(self, other: _Downwards) -> bool:
        return other.part < self.part

    def __hash__(self) -> int:
        return hash(self.part)


def order_of(table: Table, key: Key) -> SortKey:
    """Return what sorts keys of the table, also a prefix of a key."""
    kinds: list[tuple[ColumnType, bool]] = [
        (table.columns[column].kind, down) for column, down in zip(table.key, table.descending, strict=True)
    ]
    # `strict=False`: the ends of ranges may be prefixes of keys.
    parts = [(sort_key(value, kind), down) for value, (kind, down) in zip(key, kinds, strict=False)]
    return tuple(_Downwards(part) if down else part for part, down in parts)


class Rows:
    """Versions of rows: `put` appends, `at` looks back. Timestamps are nanoseconds and never fall for a key."""

    def __init__(self) -> None:
        self._versions: SortedDict = SortedDict()

    def put(self, order: SortKey, timestamp: int, row: Row | None) -> None:
        """Append a version; None is a deletion."""
        times, rows = self._versions.setdefault(order, ([], []))
        times.append(timestamp)
        rows.append(row)

    def latest(self, order: SortKey) -> tuple[int, Row | None]:
        """Return the last version and its timestamp; (0, None) for a key that never was."""
        times, rows = self._versions.get(order, ((0,), (None,)))
        return times[-1], rows[-1]

    def at(self, order: SortKey, timestamp: int | None) -> Row | None:
        """Return the row as of `timestamp`, inclusive; None is now."""
        times, rows = self._versions.get(order, ((), ()))
        # Inclusive: a read at a commit timestamp sees that commit.
        index = len(times) if timestamp is None else bisect_right(times, timestamp)
        found: Row | None = rows[index - 1] if index else None
        return found

    def scan(self, timestamp: int | None, start: SortKey | None = None) -> Iterator[tuple[SortKey, Row]]:
        """Yield the rows as of `timestamp`, in key order; from `start`, inclusive, which may be a prefix of a key."""
        # Keys that were deleted stay in the tree, because older versions of them can be read.
        for order in self._versions.irange(minimum=start):
            row = self.at(order, timestamp)
            if row is not None:
                yield order, row
