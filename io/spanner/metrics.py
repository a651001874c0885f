"""The reader's metrics. Besides the common counters: partitions_announced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.io.change_streams import metrics as names
from penstock.io.change_streams.metrics import ReaderMetrics
from penstock.io.change_streams.undecodable import UndecodableRecord
from penstock.io.spanner.frontier import Announced, Ended, Finished, MovedIn, Step
from penstock.io.spanner.query import is_list_of_placements
from penstock.io.spanner.record import ChildPartitionsRecord, DataChangeRecord, PartitionStartRecord

PARTITIONS_ANNOUNCED = "partitions_announced"


class SpannerMetrics(ReaderMetrics):
    """Counts the claimed steps of one `process` call.

    Each of its parents announces a merged child. It is counted once, with the parent whose token sorts first. A
    child of the root is neither a split nor a move. A move-in of a MUTABLE_KEY_RANGE stream is one move; splits and
    merges are moves there.
    """

    namespace = "penstock.io.spanner"
    table_field = "table_name"

    def claimed(self, records: Sequence[DataChangeRecord | UndecodableRecord], step: Step) -> None:
        if records:
            self._records += len(records)
            self._changes += sum([len(r.mods) for r in records if isinstance(r, DataChangeRecord)])
            self._note_tables(records)
        elif isinstance(step, Announced):
            self._counts.update(lineage_events(step.token, step.record))
        elif isinstance(step, MovedIn):
            self._counts[names.MOVES] += 1
        elif isinstance(step, Finished | Ended) and not is_list_of_placements(step.token):
            self._counts[names.PARTITIONS_CLOSED] += 1


def lineage_events(token: str, record: ChildPartitionsRecord | PartitionStartRecord) -> Counter[str]:
    """Return the counters that a record of `token` which names partitions raises."""
    events: Counter[str] = Counter()
    if isinstance(record, PartitionStartRecord):
        events[PARTITIONS_ANNOUNCED] += len(record.partition_tokens)
        return events
    for child in record.child_partitions:
        if is_list_of_placements(child.token):
            continue
        parents = child.parent_partition_tokens
        events[names.MERGES] += len(parents) > 1 and token == min(parents)
        events[PARTITIONS_ANNOUNCED] += len(parents) <= 1 or token == min(parents)
    singles = sum(len(child.parent_partition_tokens) == 1 for child in record.child_partitions)
    events[names.SPLITS] += singles > 1
    events[names.MOVES] += singles == 1
    return events
