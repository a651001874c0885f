"""The position of one partition: everything below a timestamp is read, and at it the records that were seen. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from penstock.errors import LineageError
from penstock.io.spanner.record import DataChangeRecord
from penstock.timestamps import format_timestamp

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Ascending, disjoint, not adjacent (first, last) runs of numbers, both inclusive."""


# A named tuple, because one is made for each record: that is three times faster than a frozen dataclass.
class Position(NamedTuple):
    """The position of one partition: everything below `timestamp` is read, and at `timestamp` the records in `seen`.

    A query resumes *at* `timestamp` (inclusive) and skips what was seen: per transaction, the sequence
    numbers of its records. So a checkpoint may fall between two records of one timestamp. Move-ins belong to no
    transaction: their sequence numbers are under the empty one.
    """

    timestamp: int
    seen: Mapping[str, Runs] = MappingProxyType({})

    def after(self, record: DataChangeRecord) -> Position | None:
        """Return the position after `record`, or None if it has been seen already.

        Raises:
            LineageError: the record is below the position; partitions are ordered by commit timestamp.
        """
        return self.after_sequence(
            record.commit_timestamp, record.server_transaction_id, record.record_sequence
        )

    def after_sequence(self, timestamp: int, transaction: str, record_sequence: str) -> Position | None:
        """Return the position after the record with this sequence; otherwise as `after`."""
        sequence = _number(timestamp, record_sequence)
        if timestamp > self.timestamp:
            return Position(timestamp, {transaction: ((sequence, sequence),)})
        if timestamp < self.timestamp:
            raise LineageError(
                f"a record committed at {format_timestamp(timestamp)} arrived after "
                f"{format_timestamp(self.timestamp)} in its partition"
            )
        runs = self.seen.get(transaction, ())
        if _holds(runs, sequence):
            return None
        # A copy, because frontiers in checkpoints share their positions. It has one entry per transaction of one
        # timestamp.
        return Position(timestamp, {**self.seen, transaction: _with(runs, sequence)})

    def reached(self, timestamp: int) -> Position:
        """Return the position after a heartbeat or child partitions record at `timestamp`."""
        return Position(timestamp) if timestamp > self.timestamp else self


def _number(timestamp: int, record_sequence: str) -> int:
    try:
        return int(record_sequence)
    except ValueError:
        raise LineageError(
            f"record_sequence {record_sequence!r} of the record committed at {format_timestamp(timestamp)} is not a "
            "number"
        ) from None


def _holds(runs: Runs, number: int) -> bool:
    return any(first <= number <= last for first, last in runs)


def _with(runs: Runs, number: int) -> Runs:
    """Return `runs` with `number`, which they do not hold. Usually it extends the last run."""
    if runs and runs[-1][1] == number - 1:
        return (*runs[:-1], (runs[-1][0], number))
    joined: list[tuple[int, int]] = []
    for first, last in sorted((*runs, (number, number))):
        if joined and joined[-1][1] == first - 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return tuple(joined)
