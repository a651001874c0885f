"""Counters of the PostgreSQL reader."""

from __future__ import annotations

from penstock.io.change_streams.metrics import NAMESPACE_PREFIX, ReaderMetrics


class PostgresMetrics(ReaderMetrics):
    """Each record is one change, and a slot has no lineage."""

    namespace = NAMESPACE_PREFIX + "postgres"
