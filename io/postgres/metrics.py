"""Counters of the PostgreSQL reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.io.change_streams.metrics import NAMESPACE_PREFIX, ReaderMetrics
from penstock.io.postgres.initial_scan.copied_rows import CopiedRows


class PostgresMetrics(ReaderMetrics):
    """Each record is one change, and a slot has no lineage."""

    namespace = NAMESPACE_PREFIX + "postgres"


class ScanMetrics(PostgresMetrics):
    """The rows of an initial snapshot are changes too. They come in chunks of one table."""

    def claimed(self, records: Sequence[Any], step: Any) -> None:
        # Reports about snapshots come in lists.
        if isinstance(records, CopiedRows):
            self._records += len(records)
            self._changes += len(records)
            self._note_table(records.table, records.commit_timestamp)
