"""What a pipeline exports that is in every kind of trouble, by the code that exports it for real ones."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from penstock.io.change_streams.retention import retention
from penstock.io.postgres.retained_log import retained_log
from penstock.io.postgres.source import ChangeStream
from penstock.launch.commit_exporter import CommitExporter
from penstock.launch.service_watch import ServiceWatch
from penstock.measurement import Measurement
from penstock.parked import ParkedTable
from penstock.pipelines.waiting_letters import waiting_letters
from penstock.telemetry.export import Export

NOW = time.time()


@dataclass
class SickProgress:
    """An hour behind, and its last commit is as long ago."""

    epochs: int
    committed_us: int | None = round((NOW - 3600) * 1e6)
    watermark_us: int | None = round((NOW - 3700) * 1e6)
    residuals: tuple[object, ...] = ()
    complete_us: dict[str, int] = field(default_factory=lambda: {"Write": round((NOW - 3700) * 1e6)})
    parked: tuple[ParkedTable, ...] = (ParkedTable("t", "public.t", "refused", 1, 1, 1, False, b""),)


class SickMetrics:
    """Beam's metrics of it: a refused partition, a dead letter, and a table that is late."""

    def __init__(self, number: int) -> None:
        self._number = number

    def query(self) -> dict[str, list[Any]]:
        gauges = [
            ("penstock.io.spanner", "longest_refusal_seconds", 4000),
            ("penstock.tables.spanner", "Orders", round((NOW - 7200) * 1000) + self._number),
        ]
        return {
            "counters": [_metric("penstock.io.staging", "dead_letters", self._number)],
            "gauges": [_metric(space, name, SimpleNamespace(value=value)) for space, name, value in gauges],
        }


def _metric(namespace: str, name: str, committed: Any) -> Any:
    metric = SimpleNamespace(namespace=namespace, name=name)
    return SimpleNamespace(key=SimpleNamespace(metric=metric), committed=committed)


def _answers(number: int) -> list[Measurement]:
    stream = ChangeStream("shop", "changes", "orders", 0, None)
    rows: Any = lambda *_: [("orders", 20_000_000_000 + number, 1_000_000, False), ("lost", None, None, True)]  # noqa: E731
    return [
        *retained_log(stream, rows),
        *retention("OrdersStream", 3600.0),
        *waiting_letters(["dead-letters/2020-01-01T00/00-of-01.jsonl"], ()),
    ]


def export_sick_pipeline(export: Export, number: int) -> None:
    """Export two commits of a driver that has just been started again."""
    services = ServiceWatch()
    services.answers = _answers(number)
    driver = CommitExporter(export, lambda: NOW + number, services)
    for epochs in (2 * number, 2 * number + 1):
        driver.export(SickProgress(epochs), lambda epochs=epochs: SickMetrics(epochs))
