"""The metrics of a reader that begins with a snapshot. It has the counters of a change stream, and three more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.io.change_streams.metrics import ReaderMetrics
from penstock.io.change_streams.range_frontier import RangeRead
from penstock.io.spanner.metrics import SpannerMetrics

SNAPSHOT_ROWS = "snapshot_rows"
"""Rows that were emitted. They count as `changes` too."""
SNAPSHOT_RANGES_FINISHED = "snapshot_ranges_finished"
SNAPSHOT_RANGES = "snapshot_ranges"
"""Key ranges that were planned, counted once, when the snapshot begins."""


class ScanMetrics(ReaderMetrics):
    """Counts the claimed rows of one `process` call."""

    namespace = SpannerMetrics.namespace

    def claimed(self, records: Sequence[Any], step: Any) -> None:
        for record in records:
            self._records += 1
            self._changes += len(record.mods)
            self._counts[SNAPSHOT_ROWS] += len(record.mods)
        if type(step) is RangeRead:
            self._counts[SNAPSHOT_RANGES_FINISHED] += 1
