"""The reader's metrics, touched by the consumer only: plain integers, told to Beam once a bundle.

Counters: records, entries, late_records, unknown_mutations, splits, merges, moves, reopened, partitions_closed,
partitions_finished, streams, retries. Gauge: waiting_segments, of one part of the frontier.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from apache_beam.metrics import Metrics

from penstock.io.bigtable.frontier import Advanced, Closed, Finished, Frontier, Step
from penstock.io.bigtable.keys import abbreviate
from penstock.io.bigtable.pool import Prefetcher
from penstock.io.bigtable.record import ChangeStreamMutation, UnknownMutation, as_received

NAMESPACE = "penstock.io.bigtable"
"""Of the metrics."""

_LOGGER = logging.getLogger(__name__)


class ReaderMetrics:
    """Counts the claimed steps of one `process` call, and what its prefetcher did."""

    def __init__(self, prefetcher: Prefetcher) -> None:
        self._prefetcher = prefetcher
        self._counts: Counter[str] = Counter()
        self._waiting = 0
        self._low = 0

    def frontier(self, frontier: Frontier) -> None:
        """Note the watermark, below which records are late, and how many segments wait."""
        self._waiting = len(frontier.waiting)
        self._low = frontier.watermark or 0

    def emitted(self, records: Sequence[ChangeStreamMutation]) -> None:
        """Count records that are handed on."""
        counts, low, entries, late = self._counts, self._low, 0, 0
        for record in records:
            late += record.commit_timestamp < low
            change = as_received(record)
            if change is None:
                entries += len(record.entries)
                self._unknown(sum([type(entry) is UnknownMutation for entry in record.entries]))
            else:  # without unknown mutations
                entries += len(change.chunks)
        counts["records"] += len(records)
        counts["entries"] += entries
        if late:
            counts["late_records"] += late

    def claimed(self, step: Step) -> None:
        """Count a step of lineage that the tracker has granted."""
        if isinstance(step, Closed):
            self._counts.update(lineage_events(step))
        elif isinstance(step, Finished):
            self._counts["partitions_finished"] += 1
        elif not isinstance(step, Advanced):
            self._counts["reopened"] += 1
            _LOGGER.debug("%s waits in vain for a merge and is read by itself", abbreviate(step.range))

    def _unknown(self, count: int) -> None:
        if count and not self._counts["unknown_mutations"]:
            _LOGGER.warning("mutations of a kind that this release does not know are handed on as bytes")
        if count:
            self._counts["unknown_mutations"] += count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._counts.update(streams=self._prefetcher.streams, retries=self._prefetcher.retries)
        for name, count in self._counts.items():
            Metrics.counter(NAMESPACE, name).inc(count)
        Metrics.gauge(NAMESPACE, "waiting_segments").set(self._waiting)


def lineage_events(step: Closed) -> Counter[str]:
    """Return what a close means for its partition: a split, a merge (counted by the first parent), or a move."""
    events = Counter(partitions_closed=1)
    targets = {continuation.target for continuation in step.continuations}
    events["splits"] += len(targets) > 1
    for target in targets:
        if target.start == step.partition.start and not step.partition.covers(target):
            events["merges"] += 1
    events["moves"] += targets == {step.partition}
    return events
