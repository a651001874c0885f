"""Names of the readers' metrics, and the object that counts during a bundle.

Every source reports under `penstock.io.<system>` with these names, so telemetry needs no list of sources. A source
may add other counters. Pure: `read_fn` reports to Beam.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.io.change_streams.prefetch import Prefetcher
from penstock.io.change_streams.undecodable import UndecodableRecord

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
WAITING_PARTITIONS = "waiting_partitions"
"""Gauge: partitions of one part of the frontier that wait for others."""

LINEAGE = (SPLITS, MERGES, MOVES)
COMMON = (RECORDS, CHANGES, *LINEAGE, PARTITIONS_CLOSED, REQUESTS, RETRIES)
"""The counters that every source has."""


class ReaderMetrics:
    """Counts in plain integers during one `process` call; Beam is told once, at its end.

    A Beam counter costs a look-up by name and a lock at every increment, which the hot path cannot afford.
    """

    namespace: ClassVar[str]

    def __init__(self, prefetcher: Prefetcher) -> None:
        self._prefetcher = prefetcher
        self._counts: Counter[str] = Counter()
        self._records = self._changes = 0  # plain integers, because they change with each record
        self._waiting = 0

    def observe(self, frontier: Any) -> None:
        """Look at the frontier, as it is after the steps that were claimed."""
        self._waiting = len(frontier.waiting)

    def claimed(self, records: Sequence[Any], step: Any) -> None:
        """Count a step that the tracker granted, and the records to emit for it. A `Poll` counts nothing.

        An `UndecodableRecord` among them counts as a record without changes. Those that are emitted also have a
        counter of their name.

        Here each record is one change. A source overrides it to count the changes in a record, and its lineage.
        """
        self._records += len(records)
        self._changes += sum(type(record) is not UndecodableRecord for record in records)

    @property
    def emitted(self) -> bool:
        """Whether records were emitted."""
        return self._records > 0

    def finish(self) -> tuple[Counter[str], int]:
        """Return the counters, and the gauge of waiting partitions, at the end of the call."""
        requests, retries = self._prefetcher.uncounted()
        self._counts[RECORDS] += self._records
        self._counts[CHANGES] += self._changes
        self._counts[REQUESTS] += requests
        self._counts[RETRIES] += retries
        return self._counts, self._waiting
