"""The interface of a frontier: the remaining work of a change stream, as one value. Pure.

Each source has its own `Frontier`: a frozen value that says how far each partition is read, and which partitions wait
for others. It is the restriction of the splittable DoFn, so a checkpoint stores it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from typing_extensions import Self


class Slowest(NamedTuple):
    """The partition that holds the watermark.

    `name` is for messages, `timestamp` in nanoseconds. `waits_for` are the names of partitions that must be read first;
    empty: it is being read.
    """

    name: str
    timestamp: int
    waits_for: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = len(self.waits_for) - _MAX_NAMED
        named = [*self.waits_for[:_MAX_NAMED], *([f"{more} more"] if more > 0 else [])]
        return f"{self.name}, which waits for {' and '.join(named)}" if named else self.name


_MAX_NAMED = 2
"""Number of partitions that a message names; it counts the others."""


class Scan(NamedTuple):
    """A table that a snapshot has not finished.

    `rows`: how many were emitted. `estimate`: about how many the table has; 0: unknown.
    """

    table: str
    rows: int
    estimate: int


class TableMove(NamedTuple):
    """A table that joined what is read, or left it. `at`: when the reader noticed it, nanoseconds of its clock."""

    table: str
    joined: bool
    at: int


MOST_MOVES = 50
"""Tables whose last move a checkpoint remembers."""


def moved(
    moves: Sequence[TableMove], joined: Iterable[str], left: Iterable[str], at: int
) -> tuple[TableMove, ...]:
    """Return the moves after further tables joined and left: the last one of each table, the newest last."""
    new = [TableMove(table, False, at) for table in left] + [TableMove(table, True, at) for table in joined]
    names = {move.table for move in new}
    return (*(move for move in moves if move.table not in names), *new)[-MOST_MOVES:]


@runtime_checkable
class Partitioned(Protocol):
    """A restriction that reports its own progress. Telemetry knows restrictions by this protocol only.

    Partitions are reported by key and not by number: after a rebalance, the same partition may wait in several
    parts of one frontier, and must be counted once. A restriction may also have a property `slowest`, a `Slowest`, a
    property `scans`, the `Scan`s of its snapshots, and a property `table_moves`, the `TableMove`s that it remembers.
    """

    @property
    def readable(self) -> Collection[Any]:
        """Keys of the partitions that may be read now."""

    @property
    def waiting(self) -> Collection[Any]:
        """Keys of the partitions that wait for others before they may be read."""


class Frontier(Partitioned, Protocol):
    """The remaining work of a change stream. Times are nanoseconds."""

    @property
    def done(self) -> bool:
        """Whether no work remains, now or later."""

    @property
    def can_progress(self) -> bool:
        """Whether this part can still advance without results of other parts."""

    @property
    def end(self) -> int | None:
        """The last timestamp to read, inclusive; None: without end."""

    @property
    def watermark(self) -> int | None:
        """No unread change is known to be below this time; None when no work remains."""

    @property
    def summary(self) -> str:
        """The remaining work in words, without keys or tokens."""

    def advanced(self, positions: Mapping[Any, Any]) -> Self:
        """Return the frontier with several partitions at new positions."""

    def apply(self, step: Any) -> Self:
        """Return the frontier after one step of lineage.

        Raises:
            LineageError: the step does not fit.
        """

    def exhausted(self) -> Self:
        """Return the same frontier without any remaining work."""

    def deal(self, n: int) -> list[Self]:
        """Return at most `n` frontiers that can be read in parallel; `join` is the inverse."""

    @staticmethod
    def join(parts: Sequence[Any]) -> Any:
        """Return one frontier from all parts of a deal, however far each has been read."""
