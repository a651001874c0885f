"""Counters of the YDB reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.io.change_streams.metrics import (
    MERGES,
    NAMESPACE_PREFIX,
    PARTITIONS_CLOSED,
    SPLITS,
    ReaderMetrics,
)
from penstock.io.ydb.frontier import Finished
from penstock.io.ydb.record import Table


class YdbMetrics(ReaderMetrics):
    """Each record is one change. A merge is counted by the parent with the lowest number."""

    namespace = NAMESPACE_PREFIX + "ydb"

    @staticmethod
    def table_name(table: Table) -> str:
        return table.name

    def claimed(self, records: Sequence[Any], step: Any) -> None:
        super().claimed(records, step)
        if isinstance(step, Finished):
            self._counts[PARTITIONS_CLOSED] += 1
            if step.adjacent:
                self._counts[MERGES] += step.partition < min(step.adjacent)
            else:
                self._counts[SPLITS] += 1
