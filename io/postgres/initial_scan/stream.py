"""Reads the blocks of one range in chunks. Knows neither Beam nor the client.

A chunk is a whole number of blocks, read by one statement in a short transaction at the held snapshot. So a table is
never locked for longer than a chunk takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from penstock.errors import ChangeStreamError
from penstock.io.change_streams.partition_stream import PartitionStream, PendingStep, Reading
from penstock.io.change_streams.range_frontier import RangeAdvanced, RangeRead
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres.errors import LockedError
from penstock.io.postgres.initial_scan.copied_rows import CopiedRows
from penstock.io.postgres.initial_scan.frontier import (
    BlockRange,
    RangeLost,
    RangeProgress,
    ScannedTable,
    ScanView,
    numbers_of_rows,
)
from penstock.io.postgres.record import Table

_LOGGER = logging.getLogger(__name__)
FIRST_BLOCKS, MAX_BLOCKS = 16, 4096
CHUNK_BYTES = 4 << 20
"""A chunk should not be larger in memory: it is handed over as a whole."""
_MAX_GROWTH = 8


class ViewLostError(ChangeStreamError):
    """The server does not hold the snapshot any more."""


class Copied(NamedTuple):
    """The rows of a chunk: `rows` lines in the text format of COPY."""

    table: Table
    data: bytes
    rows: int


class BlockReader(Protocol):
    """Reads blocks at the snapshot of one slot.

    Raises `UnreachableError` (ask again later), `ViewLostError`, or another `ChangeStreamError` (it was refused).
    """

    def read_blocks(self, table: str, start: int, end: int, stopped: Callable[[], bool]) -> Copied:
        """Return the rows in the blocks from `start`, inclusive, to `end`, exclusive.

        `stopped`: whether to end a wait for a lock.
        """


Borrow = Callable[[str, ScanView], AbstractContextManager[BlockReader]]
"""Lends a reader of a slot."""


class RangePosition(NamedTuple):
    """The rest of a range."""

    range: BlockRange
    table: ScannedTable
    view: ScanView


class BlockStream(PartitionStream):
    """Reads one range. A mark is the step: rows up to a block, or the end of the range."""

    lineage = frozenset({RangeRead, RangeLost})
    # One step has thousands of rows. The last one and the end of its range come in one batch.
    max_in_batch, max_in_claim = 2, 1

    def __init__(self, number: int, at: RangePosition, borrow: Borrow, chunk_rows: int) -> None:
        """`chunk_rows`: about how many rows a chunk has."""
        self.name = f"range {number} of table {at.table.name}"
        self._number, self._first, self._rest = number, at, at.range
        self._borrow, self._chunk_rows = borrow, chunk_rows
        self._blocks = min(FIRST_BLOCKS, chunk_rows)

    def read(self, reading: Reading) -> Iterator[Sequence[PendingStep]]:
        _, table, view = self._first
        last: list[PendingStep] = []
        try:
            with self._borrow(table.slot, view) as reader:
                reading.opened(self)
                while self._rest.start < self._rest.end and not reading.stopped:
                    chunk = self._chunk(reader, reading)
                    if self._rest.start < self._rest.end:
                        yield [chunk]
                    # A range without any row has nothing to emit before its end.
                    elif self._rest.rows:
                        last = [chunk]
        # The range is not lost: it is read again after a pause.
        except (UnreachableError, LockedError):
            raise
        except ChangeStreamError as error:
            _LOGGER.warning(
                "%s cannot be read at the first snapshot of the database: %s. The table is read as it is now, between "
                "the changes, and its rows may follow changes of the same row",
                self.name,
                error,
            )
            yield [(0, None, RangeLost(self._number, isinstance(error, ViewLostError)))]
            return
        if not reading.stopped:
            # Together, because most ranges have one chunk if there are many tables.
            yield [*last, (0, None, RangeRead(self._number))]

    def _chunk(self, reader: BlockReader, reading: Reading) -> PendingStep:
        """Return the next rows. Invariant: `_rest` is the range without the rows that were returned."""
        _, table, view = self._first
        start = self._rest.start
        end = min(start + self._blocks, self._rest.end)
        found = reader.read_blocks(table.name, start, end, lambda: reading.stopped)
        size = len(found.data)
        self._blocks = next_blocks(end - start, found.rows, size, self._chunk_rows)
        numbers = numbers_of_rows(self._number, self._rest.rows, found.rows)
        self._rest = self._rest._replace(start=end, rows=self._rest.rows + found.rows)
        self.received_bytes += size
        rows = CopiedRows(found.table, found.data, numbers, view.lsn, view.watermark)
        return size, rows, RangeAdvanced(self._number, RangeProgress(end, self._rest.rows))

    def cancel(self) -> None:
        """Do nothing: a chunk takes a moment, and `reading` says when to end."""

    def step(self, mark: Any) -> Any:
        return mark

    def position(self, mark: RangeAdvanced) -> RangePosition:
        return self._first._replace(range=self._first.range.after(mark.progress))

    def records(self, steps: Sequence[PendingStep]) -> Any:
        # The rows themselves and no list, which would make a record of each.
        return steps[0][1]


def next_blocks(blocks: int, rows: int, size: int, chunk_rows: int) -> int:
    """Return how many blocks the next chunk has, after one of `blocks` blocks with `rows` rows and `size` bytes."""
    most = min(blocks * _MAX_GROWTH, MAX_BLOCKS)
    for found, wanted in ((rows, chunk_rows), (size, CHUNK_BYTES)):
        if found:
            most = min(most, blocks * wanted // found)
    return max(1, most)
