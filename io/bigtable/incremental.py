"""Incremental snapshots: chunks of rows, and what their merge knows about Bigtable's records.

Bigtable has no snapshots: each row of a chunk is read at its own moment. So the result converges, and is not exact:

- A row is emitted as a record of the type READ that sets its cells. It may already contain changes that come after it.
  Setting a cell or deleting cells a second time changes nothing, in the order of the changes.
- A row without a change must not follow the change: a deleted cell would come back, and an overwritten one would have
  its old value. So a row is read again if a change of it was emitted between the request of its chunk and its arrival,
  unless the change is clearly older than the read. While the row waits, it is emitted before the change.
- Additions to aggregate cells are not idempotent. One that is in the row and comes after it would be counted twice. The
  row waits until the service's watermark has passed the read, and is read again as after any change. A change that the
  service sends later than its own watermark is not covered: it may be counted twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from penstock.io.bigtable.filter import Selection
from penstock.io.bigtable.frontier import Frontier
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.record import ChangeStreamMutation, MutationType, SetCell
from penstock.io.bigtable.source import ChangeStream
from penstock.io.change_streams.incremental.engine import Chunk, ChunkRequest, ChunkRow
from penstock.io.change_streams.incremental.merge import RowChange
from penstock.io.change_streams.incremental.notifications import ScanStatus
from penstock.io.change_streams.incremental.progress import Snapshot
from penstock.io.change_streams.incremental.signals import matches
from penstock.io.change_streams.incremental.worker import Problems
from penstock.timestamps import NANOS

SKEW = NANOS
"""By how much commit timestamps and the clock of this process may differ, in nanoseconds."""


def name_of(row_key: bytes) -> str:
    """Return a row key as text in which each character is one byte, for cursors and repairs."""
    return row_key.decode("latin-1")


class BigtableRecords:
    """The merge of rows with the changes of one table."""

    def __init__(self, table: str) -> None:
        self._table = table

    def identity(self, record: Any) -> tuple[bytes, int, int, str] | None:
        if not isinstance(record, ChangeStreamMutation):
            return None
        return record.row_key, record.commit_timestamp, record.tiebreaker, record.source_cluster_id

    def time(self, record: ChangeStreamMutation) -> int:
        return record.commit_timestamp

    def changes(self, record: ChangeStreamMutation) -> Iterator[RowChange]:
        yield RowChange(self._table, record.row_key, name_of(record.row_key), False)

    def records(self, rows: Sequence[ChangeStreamMutation]) -> list[ChangeStreamMutation]:
        return list(rows)

    def latest(self, stream: Frontier) -> int:
        # A change at exactly the watermark may still be written. A row that is read now would not contain it.
        return max([segment.watermark for segment in stream.segments], default=0) - 1


class RowReader:
    """Reads chunks of one table. One thread uses it."""

    def __init__(
        self,
        table: Any,
        stream: ChangeStream,
        selection: Selection,
        *,
        clock: Callable[[], int] = time.time_ns,
        skew: int = SKEW,
    ) -> None:
        """`table`: one of the client library. `selection`: which cells are emitted."""
        self._table, self._stream = table, stream
        self._clock, self._skew = clock, skew
        # A row comes from no cluster, so the filters for the origin of changes do not concern it.
        self._selection = replace(selection, source_clusters=frozenset())

    def tables(self, snapshot: Snapshot) -> tuple[list[str], Problems]:
        """Return the table if the request means it, and the names that it does not have."""
        name, request = self._stream.table, snapshot.request
        problems: Problems = {
            pattern: (ScanStatus.UNKNOWN_SCHEMA, f"the pipeline reads the table {name} only")
            for pattern in request.tables
            if not matches([pattern], name)
        }
        if len(problems) == len(request.tables):
            return [], problems
        if request.surrogate_key:
            problems[name] = (
                ScanStatus.SQL_EXCEPTION,
                "rows of Bigtable have no other key than the row key: leave surrogate-key out of the signal",
            )
            return [], problems
        return [name], problems

    def read(self, request: ChunkRequest) -> Chunk:
        """Return a chunk.

        Raises:
            UnreachableError: ask again later.
            ChangeStreamError: the service refused it; the message says what to do.
        """
        started = self._clock()
        # Never below the watermark, which the row would otherwise follow as late data.
        timestamp = max(started, *(each + 1 for each in request.after))
        keys = [each.encode("latin-1") for each in request.keys]
        found = self._found(self._rest(request), keys, request)
        rows = [
            ChunkRow(row_key, name_of(row_key), name_of(row_key), self._record(row_key, cells, timestamp))
            for row_key, cells in found
        ]
        # Seen is what was committed before the request (`after`), or before the read by more than clocks may differ.
        surely_seen = max(started - self._skew, *request.after)
        reached = max(self._clock(), timestamp + 1)
        # Repairs name their keys, so a short answer to them says nothing about the rest of the table.
        is_last = not keys and len(rows) < request.size
        return Chunk(request, rows, surely_seen.__ge__, reached, is_last)

    def _found(
        self, rows: KeyRange, keys: Sequence[bytes], request: ChunkRequest
    ) -> Iterable[tuple[bytes, tuple[SetCell, ...]]]:
        from penstock.io.bigtable.row_client import read_rows

        return read_rows(self._table, rows, keys, request.size, request.condition)

    def _rest(self, request: ChunkRequest) -> KeyRange:
        row_range = self._stream.row_range
        # The next possible key: the range begins with it, inclusive.
        start = request.cursor.encode("latin-1") + b"\0" if request.cursor else row_range.start
        return KeyRange(start, row_range.end)

    def _record(self, row_key: bytes, cells: tuple[SetCell, ...], timestamp: int) -> ChangeStreamMutation:
        row = ChangeStreamMutation(row_key, MutationType.READ, "", timestamp, 0, "", timestamp, cells)
        passing = self._selection.apply(row)
        return replace(row, entries=()) if passing is None else passing

    def close(self) -> None:
        """Do nothing: the client belongs to the process."""
