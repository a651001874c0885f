"""The toy sink as a target under test."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest

from penstock.event import ChangeEvent
from penstock.io.staging.delivery import TargetUnavailableError
from tests.conformance.toy_sink import DATABASES, Database, WriteToMemory
from tests.support.sinks.faults import log_faults
from tests.support.sinks.source import Truth
from tests.support.sinks.target import Options, Refused, TargetUnderTest, apply


class Toy(TargetUnderTest):
    """A database in memory."""

    error_outputs = ("memory",)
    outage = "requests are lost"

    def create(self, place: str) -> None:
        network = self.network
        assert network is not None

        def unavailable() -> Exception:
            return TargetUnavailableError("lost by the test")

        DATABASES[place] = Database(request=lambda work: network.request(work, unavailable))
        self._place = place

    def options(self) -> Options:
        return {"database": self._place}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        return apply(events, "memory", WriteToMemory(shards=2, **options), error_output)

    def carry(self, patch: pytest.MonkeyPatch) -> None:
        """The database has its requests carried already."""

    def shrink_requests(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("tests.conformance.toy_sink.TRANSACTION_ROWS", 3)

    def faults(self, truth: Truth) -> list[str]:
        rows = DATABASES.pop(self._place).rows
        keys = [(row.key["owner"], row.key["slot"], row.timestamp) for row in rows if row.key]
        return log_faults("memory", keys, truth)
