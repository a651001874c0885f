"""BigQuery in memory as a target under test: the log, and the current rows, which the emulator cannot merge."""

from __future__ import annotations

import json
from typing import Any

import apache_beam as beam
import pytest

from penstock.event import ChangeEvent
from penstock.io.staging.delivery import TargetUnavailableError
from tests.simulation.bigquery.service import BigQuery, Process
from tests.support.sinks.databases import enlarge_bad
from tests.support.sinks.faults import log_faults, replica_faults
from tests.support.sinks.source import Truth, completed
from tests.support.sinks.target import Options, Refused, TargetUnderTest, apply


class BigQueryInMemory(TargetUnderTest):
    """The service of the simulations, in place of the two clients of the sink."""

    error_outputs = ("bigquery-log", "bigquery-current")
    outage = "requests are lost"

    def create(self, place: str) -> None:
        self._service = BigQuery(rows_first=True)

    def options(self) -> Options:
        return {}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        from penstock.io.bigquery import WriteToBigQuery

        large = events | "Larger than a request" >> beam.Map(enlarge_bad).with_output_types(ChangeEvent)
        rows = large | "Whole rows" >> beam.Map(completed).with_output_types(ChangeEvent)
        log = WriteToBigQuery(project="p", dataset="d", table="{table}_log", shards=2, **options)
        current = WriteToBigQuery(project="p", dataset="d", mode="current", shards=2, **options)
        return {
            **apply(large, "bigquery-log", log, error_output),
            **apply(rows, "bigquery-current", current, error_output),
        }

    def carry(self, patch: pytest.MonkeyPatch) -> None:
        network = self.network
        assert network is not None

        def unavailable() -> Exception:
            return TargetUnavailableError("lost by the test")

        def process(target: Any) -> Process:
            return Process(self._service, lambda work: network.request(work, unavailable))

        patch.setattr("penstock.io.bigquery.sender.BigQueryWriteApi", process)
        patch.setattr("penstock.io.bigquery.sender.BigQueryWarehouse", process)

    def shrink_requests(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("penstock.io.bigquery.rows.REQUEST_BYTES", 3000)

    def faults(self, truth: Truth) -> list[str]:
        log = sorted(self._service.tables["counts_log"], key=lambda row: str(row["version"]))
        entries = [(*json.loads(row["key"]).values(), row["committed_at"] * 1000) for row in log]
        rows = self._service.current("counts", "owner", "slot")
        current = [tuple(row[name] for name in ("owner", "slot", "a", "b", "big")) for row in rows]
        return log_faults("BigQuery log", entries, truth) + replica_faults("BigQuery rows", current, truth)
