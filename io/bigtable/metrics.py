"""The reader's metrics. Besides the common counters: late_records, unknown_mutations, reopened, partitions_finished."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.io.bigtable.frontier import Closed, Finished, Reopened, Step
from penstock.io.bigtable.keys import abbreviate
from penstock.io.bigtable.record import ChangeStreamMutation, UnknownMutation, as_received
from penstock.io.change_streams import metrics as names
from penstock.io.change_streams.incremental.notifications import NotificationRecord
from penstock.io.change_streams.metrics import ReaderMetrics
from penstock.io.change_streams.undecodable import UndecodableRecord

_LOGGER = logging.getLogger(__name__)


class BigtableMetrics(ReaderMetrics):
    """Counts the claimed steps of one `process` call."""

    namespace = "penstock.io.bigtable"

    def claimed(self, records: Sequence[ChangeStreamMutation | UndecodableRecord], step: Step | Any) -> None:
        if records:
            self._emitted(records)
        elif isinstance(step, Closed):
            self._counts.update(lineage_events(step))
        elif isinstance(step, Finished):
            self._counts["partitions_finished"] += 1
        elif isinstance(step, Reopened):
            self._counts["reopened"] += 1
            _LOGGER.debug("%s waited for a merge that did not come and is read alone", abbreviate(step.range))

    def _emitted(self, records: Sequence[ChangeStreamMutation | UndecodableRecord]) -> None:
        low, entries, late = self._watermark or 0, 0, 0
        for record in records:
            late += record.commit_timestamp < low
            if isinstance(record, UndecodableRecord | NotificationRecord):
                continue
            change = as_received(record)
            if change is None:
                entries += len(record.entries)
                self._unknown(sum([type(entry) is UnknownMutation for entry in record.entries]))
            else:  # received as whole cells, so without unknown mutations; its entries are not made here
                entries += len(change.chunks)
        self._records += len(records)
        self._changes += entries
        if late:
            self._counts["late_records"] += late

    def _unknown(self, count: int) -> None:
        if count and not self._counts["unknown_mutations"]:
            _LOGGER.warning("mutations of a kind that this release does not know are emitted as bytes")
        if count:
            self._counts["unknown_mutations"] += count


def lineage_events(step: Closed) -> Counter[str]:
    """Return what a close means for its partition: a split, a merge (counted by the first parent), or a move."""
    events = Counter({names.PARTITIONS_CLOSED: 1})
    targets = {continuation.target for continuation in step.continuations}
    events[names.SPLITS] += len(targets) > 1
    for target in targets:
        # Only one parent begins where the new partition begins, so each merge is counted once.
        if target.start == step.partition.start and not step.partition.covers(target):
            events[names.MERGES] += 1
    events[names.MOVES] += targets == {step.partition}
    return events
