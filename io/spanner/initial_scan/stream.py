"""The reads of one key range of a snapshot, decoded. Knows neither Beam nor the client.

After a temporary failure a range is read again, after the last row that was yielded, or after the last message that has
a resume token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from penstock.errors import UnavailableError
from penstock.io.change_streams.partition_stream import PartitionStream, PendingStep, Reading
from penstock.io.change_streams.range_frontier import RangeAdvanced, RangeRead
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.initial_scan.errors import ExpiredError
from penstock.io.spanner.initial_scan.frontier import KeyRange, Table
from penstock.io.spanner.initial_scan.rows import RowReader


class RangePosition(NamedTuple):
    """The rest of a key range, in the snapshot of `timestamp`; see `ScanFrontier`."""

    range: KeyRange
    timestamp: int
    tables: tuple[Table, ...]
    capture: str

    @property
    def table(self) -> Table:
        """The table of the range."""
        return self.tables[self.range.table]

    def after(self, key: str) -> RangePosition:
        """Return the position after the rows up to and including `key`."""
        return self._replace(range=self.range.after(key))


class Call(Protocol):
    """One running read."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield encoded PartialResultSets."""

    def cancel(self) -> None:
        """End the read; the iteration ends or raises."""


Opener: TypeAlias = Callable[[bytes], Call]
"""Starts a read, after the rows that came before a resume token (the empty one: from the start)."""
Openers: TypeAlias = Callable[[RangePosition], Iterator[Opener]]
"""Returns the reads that together have the rows of a range, to be made one after another."""


class RangeStream(PartitionStream):
    """Reads one key range. A mark is the step: rows up to a key, or the end of the range."""

    lineage = frozenset({RangeRead})
    # One step has up to a few hundred rows.
    max_in_batch = max_in_claim = 1

    def __init__(self, number: int, at: RangePosition, openers: Openers, *, whole_ranges: bool) -> None:
        """`whole_ranges`: the rows of a range come in any order, so it is emitted as a whole."""
        self.name = f"key range {number} of table {at.table.name}"
        self._number, self._first, self._rest = number, at, at
        self._make_openers, self._whole_ranges = openers, whole_ranges
        self._openers: Iterator[Opener] | None = None
        self._read: tuple[Opener, RowReader] | None = None
        """The read that is not finished, and how far it is."""

    def read(self, reading: Reading) -> Iterator[Sequence[PendingStep]]:
        try:
            yield from self._rows(reading)
        except UnreachableError as error:
            # The read can be continued only after a message with a token: the service repeats all others.
            if isinstance(error, ExpiredError) or self._read is None or not self._read[1].resume_token:
                self._openers = self._read = None
                if self._whole_ranges and self._rest is not self._first:
                    # The next time the rows may come in another order, and some were handed out already.
                    raise UnavailableError(
                        f"a read with Data Boost was interrupted in the middle of a key range: {error}. The range is "
                        "read again from its start when the runner repeats the bundle"
                    ) from None
            raise

    def _rows(self, reading: Reading) -> Iterator[Sequence[PendingStep]]:
        # Invariant: `_rest` is the range without the rows that were yielded.
        self._openers = self._openers or self._make_openers(self._rest)
        while True:
            if self._read is None:
                opener = next(self._openers, None)
                if opener is None:
                    yield [(0, None, RangeRead(self._number))]
                    return
                self._read = opener, RowReader(self._rest.table, self._rest.timestamp, self._rest.capture)
            opener, rows = self._read
            for message in reading.opened(opener(rows.resume_token)):
                self.received_bytes += len(message)
                found = rows.feed(message)
                size = len(message) // max(1, len(found))
                if found:
                    self._rest = self._rest.after(found[-1].last_key)
                yield [(size, each.record, RangeAdvanced(self._number, each.last_key)) for each in found]
            if reading.stopped:
                return
            rows.finish()
            self._read = None

    def step(self, mark: Any) -> RangeAdvanced | RangeRead:
        step: RangeAdvanced | RangeRead = mark
        return step

    def position(self, mark: RangeAdvanced) -> RangePosition:
        return self._first.after(mark.progress)
