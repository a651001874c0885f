"""Exports the measurements of each commit, and of the services of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.launch.service_watch import ServiceWatch
from penstock.measurement import Measurement
from penstock.telemetry.export import Export
from penstock.telemetry.measurements import TableLags, measure, measure_tables, start_time
from penstock.telemetry.status import pipeline_status


class CommitExporter:
    """Gives an `Export` what there is to measure about one run of a pipeline. `services` may be replaced by a test."""

    def __init__(
        self, export: Export, clock: Callable[[], float], services: ServiceWatch | None = None
    ) -> None:
        self._export, self._clock = export, clock
        self.services = services or ServiceWatch()
        self._start = start_time(clock())
        self._tables: TableLags[tuple[str, str]] = TableLags()
        self._epochs = -1
        self._of_commit: list[Measurement] = []
        self._answers: Sequence[Measurement] = ()

    def export(self, progress: Any, metrics: Callable[[], Any]) -> None:
        """Export if there is a new commit or a new answer. Commits that follow each other too fast are seen as one.

        `metrics` returns Beam's MetricResults.
        """
        answers = self.services.answers
        if progress.epochs == self._epochs and answers is self._answers:
            return
        # The answers of services also come while nothing is committed, when they matter most.
        if progress.epochs != self._epochs:
            counters = committed_counters(metrics())
            status = pipeline_status(self._clock(), progress, counters)
            self._of_commit = [
                self._start,
                *measure(status, progress, counters),
                *measure_tables(self._tables, status.committed_at, counters),
            ]
        self._epochs, self._answers = progress.epochs, answers
        self._export([*self._of_commit, *answers])


def committed_counters(metrics: Any) -> list[tuple[str, str, int]]:
    """Return (namespace, name, value) of each counter and gauge in Beam's MetricResults, as of the last commit."""
    found = metrics.query()
    counters = [(each.key.metric, each.committed or 0) for each in found["counters"]]
    gauges = [(each.key.metric, each.committed.value) for each in found.get("gauges", ()) if each.committed]
    return [(metric.namespace, metric.name, value) for metric, value in (*counters, *gauges)]
