"""The reader's metrics, touched by the consumer only: plain integers, told to Beam once a bundle.

Counters: records, mods, splits, merges, moves, partitions_announced, partitions_closed, queries, retries.
Gauge: waiting_partitions, of one part of the frontier.
"""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Self

from apache_beam.metrics import Metrics

from penstock.io.change_streams.tracker import Poll
from penstock.io.spanner.frontier import Announced, Ended, Finished, Step
from penstock.io.spanner.prefetch import Prefetcher
from penstock.io.spanner.record import ChildPartitionsRecord, DataChangeRecord

NAMESPACE = "penstock.io.spanner"
"""Of the metrics."""


class ReaderMetrics:
    """Counts the claimed steps of one `process` call, and what its prefetcher did.

    A merged child is announced once by each of its parents and counted once, with the parent whose token
    sorts first. A child of the root is neither split nor move.
    """

    def __init__(self, prefetcher: Prefetcher) -> None:
        self._prefetcher = prefetcher
        self._counts: Counter[str] = Counter()
        self._waiting = 0

    def claimed(self, record: DataChangeRecord | None, step: Step | Poll) -> None:
        """Count a step that the tracker has granted."""
        if record is not None:
            self._counts["records"] += 1
            self._counts["mods"] += len(record.mods)
        elif isinstance(step, Announced):
            self._counts.update(lineage_events(step.token, step.record))
        elif isinstance(step, Finished | Ended):
            self._counts["partitions_closed"] += 1

    def waiting(self, partitions: int) -> None:
        """Note how many partitions of this part wait for their parents."""
        self._waiting = partitions

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        queries, retries = self._prefetcher.uncounted()
        self._counts.update(queries=queries, retries=retries)
        for name, count in self._counts.items():
            Metrics.counter(NAMESPACE, name).inc(count)
        Metrics.gauge(NAMESPACE, "waiting_partitions").set(self._waiting)


def lineage_events(token: str, record: ChildPartitionsRecord) -> Counter[str]:
    """Return what a child partitions record of `token` means: splits, merges, moves, partitions announced."""
    events: Counter[str] = Counter()
    for child in record.child_partitions:
        parents = child.parent_partition_tokens
        events["merges"] += len(parents) > 1 and token == min(parents)
        events["partitions_announced"] += len(parents) <= 1 or token == min(parents)
    singles = sum(len(child.parent_partition_tokens) == 1 for child in record.child_partitions)
    events["splits"] += singles > 1
    events["moves"] += singles == 1
    return events
