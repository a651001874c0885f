"""Names of the readers' metrics, and the object that counts during a bundle.

Every source reports under `penstock.io.<system>` with these names, so telemetry needs no list of sources. A source
may add other counters. Pure: `read_fn` reports to Beam.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.io.change_streams.lazy_records import is_lazy
from penstock.io.change_streams.prefetch import Prefetcher
from penstock.io.change_streams.undecodable import UndecodableRecord
from penstock.table_times import limited

NAMESPACE_PREFIX = "penstock.io."

RECORDS = "records"
"""Native records that were emitted."""
CHANGES = "changes"
"""Changes in them: mods of Spanner, entries of Bigtable."""
SPLITS, MERGES, MOVES = "splits", "merges", "moves"
"""Changes of the partitioning that the reader followed."""
PARTITIONS_CLOSED = "partitions_closed"
REQUESTS, RETRIES = "requests", "retries"
"""Queries or streams that were started, and those that were lost for a temporary reason."""
RECEIVED_BYTES = "received_bytes"
"""Bytes that were read ahead, as the service sent them. Data that is read again counts again."""
OPEN_PARTITIONS, WAITING_PARTITIONS = "open_partitions", "waiting_partitions"
"""Gauges: partitions of one part of the frontier that are read, and that wait for others."""
REFUSED_PARTITIONS, REFUSED_SECONDS = "refused_partitions", "longest_refusal_seconds"
"""Gauges: partitions that the service refuses one worker process, and how long the longest of them."""
LAG_MS = "watermark_lag_ms"
"""Distribution: how far the watermark of a part was behind the clock of its worker when a bundle ended."""

LINEAGE = (SPLITS, MERGES, MOVES)
COMMON = (RECORDS, CHANGES, *LINEAGE, PARTITIONS_CLOSED, REQUESTS, RETRIES, RECEIVED_BYTES)
"""The counters that every source has."""


_MOST_OBJECTS = 1000
"""A decoder may make an object of its table for each record."""


class _LastReport:
    """The last gauges of this process."""

    refused = False


_LAST_REPORT = _LastReport()


class ReaderMetrics:
    """Counts in plain integers during one `process` call, and reports to Beam once, at its end.

    A Beam counter costs a look-up by name and a lock at every increment, which the hot path cannot afford.
    """

    namespace: ClassVar[str]
    table_field: ClassVar[str] = "table"
    """The attribute of a record that is, or names, its table. Records without it belong to no table."""

    def __init__(self, prefetcher: Prefetcher) -> None:
        self._prefetcher = prefetcher
        self._counts: Counter[str] = Counter()
        self._records = self._changes = 0  # plain integers, because they change with each record
        self._open = self._waiting = 0
        self._watermark: int | None = None
        self._tables: dict[str, int] = {}
        # By the id of a table's object, which is kept here so that no other object gets its id.
        self._table_times: dict[int, tuple[Any, int]] = {}

    def observe(self, frontier: Any) -> None:
        """Record the numbers of partitions and the watermark of the frontier after the last claim."""
        self._open, self._waiting = len(frontier.readable), len(frontier.waiting)
        self._watermark = frontier.watermark

    def claimed(self, records: Sequence[Any], step: Any) -> None:
        """Count a step that the tracker granted, and the records to emit for it. A `Poll` counts nothing.

        An `UndecodableRecord` among them counts as a record without changes. If it is emitted, another counter
        (`UNDECODABLE`) counts it too.

        Here each record is one change. A source overrides it to count the changes in a record, and its lineage.
        """
        self._records += len(records)
        if is_lazy(records):
            self._changes += len(records)
            for table in records.tables_read():
                self._note_table(table, records.newest)
            return
        self._changes += len(records) - list(map(type, records)).count(UndecodableRecord)
        self._note_tables(records)

    def _note_tables(self, records: Sequence[Any]) -> None:
        """Note the newest commit time of each table. Records of a partition come in the order of their commits."""
        field = self.table_field
        table: Any = None
        newest: Any = None
        for record in records:
            found = getattr(record, field, None)
            # By identity: neighbours mostly have one table, and its hash and its name cost more than the rest here.
            if found is not table:
                if table is not None:
                    self._note_table(table, newest.commit_timestamp)
                table = found
            newest = record
        if table is not None:
            self._note_table(table, newest.commit_timestamp)

    def _note_table(self, table: Any, time: int) -> None:
        if len(self._table_times) > _MOST_OBJECTS:
            self._name_tables()
        # Of several partitions one is read behind another.
        _, known = self._table_times.get(id(table), (table, time))
        self._table_times[id(table)] = table, max(time, known)

    def _name_tables(self) -> None:
        """Move the times from the objects of tables to their names."""
        for table, time in self._table_times.values():
            name = self.table_name(table)
            self._tables[name] = max(time, self._tables.get(name, time))
        self._table_times.clear()

    @staticmethod
    def table_name(table: Any) -> str:
        """Return the name of a `table_field`."""
        return str(table)

    def table_times_ms(self) -> dict[str, int]:
        """Return the newest commit time of each table that had changes, in milliseconds; see `table_times`."""
        self._name_tables()
        return {table: time // 1_000_000 for table, time in limited(self._tables).items()}

    @property
    def emitted(self) -> bool:
        """Whether records were emitted."""
        return self._records > 0

    @property
    def changes(self) -> int:
        """How many changes were emitted; a record without any counts as one."""
        return max(self._records, self._changes)

    def gauges(self, refused: tuple[int, float]) -> dict[str, int]:
        """Return the gauges at the end of the call; `refused` is what `refusals.refused_now` returned.

        A runner keeps only the latest value of all workers. So a worker without refusals reports 0 only once, when its
        last refusal has ended. Otherwise it would hide the refusals of other workers.
        """
        found = {OPEN_PARTITIONS: self._open, WAITING_PARTITIONS: self._waiting}
        count, seconds = refused
        if count or _LAST_REPORT.refused:
            found |= {REFUSED_PARTITIONS: count, REFUSED_SECONDS: round(seconds)}
        _LAST_REPORT.refused = count > 0
        return found

    def lag_ms(self, now: int) -> int | None:
        """Return how far the watermark is behind `now`, in nanoseconds since 1970; None: it is at the end of time."""
        return None if self._watermark is None else max(0, now - self._watermark) // 1_000_000

    def finish(self) -> Counter[str]:
        """Return the counters at the end of the call."""
        traffic = self._prefetcher.uncounted()
        self._counts[RECORDS] += self._records
        self._counts[CHANGES] += self._changes
        self._counts[REQUESTS] += traffic.requests
        self._counts[RETRIES] += traffic.retries
        self._counts[RECEIVED_BYTES] += traffic.received_bytes
        return self._counts
