"""Counters of the PostgreSQL reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.io.change_streams.lazy_records import is_lazy
from penstock.io.change_streams.metrics import NAMESPACE_PREFIX, ReaderMetrics


class PostgresMetrics(ReaderMetrics):
    """Each record is one change, and a slot has no lineage."""

    namespace = NAMESPACE_PREFIX + "postgres"


class ScanMetrics(PostgresMetrics):
    """The rows of an initial snapshot are changes too. Reports about snapshots, which come in lists, are not."""

    def claimed(self, records: Sequence[Any], step: Any) -> None:
        if is_lazy(records):
            super().claimed(records, step)
