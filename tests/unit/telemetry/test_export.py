"""What Prometheus and OpenTelemetry get, by their own libraries; and the dashboard's queries."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.errors import UsageError
from penstock.io.change_streams.metrics import COMMON
from penstock.measurement import Measurement
from penstock.telemetry.export import Instruments, collector, exporters
from penstock.telemetry.measurements import measure
from penstock.telemetry.status import pipeline_status
from tests.support.sick_pipeline import export_sick_pipeline

DOCS = Path(__file__).resolve().parents[3] / "docs"
DASHBOARD, ALERTS = DOCS / "telemetry" / "grafana.json", DOCS / "telemetry" / "alerts.yml"
PAGE = DOCS / "telemetry.md"
COUNTERS_IN_WORDS = {
    f"penstock_{name}_total" for name in ("changes", "merges", "moves", "partitions_closed", "undecodable")
}
"""Counters that the page describes without their full names."""


@dataclass
class Reported:
    """The progress of a runner."""

    epochs: int = 7
    committed_us: int | None = 999_500_000
    watermark_us: int | None = 998_000_000
    residuals: tuple[object, ...] = ()
    publications: int = 2
    state_bytes: int = 4096
    epoch_seconds: dict[str, float] = field(default_factory=lambda: {"tasks": 0.4, "commit": 0.01})
    complete_us: dict[str, int | None] = field(default_factory=lambda: {"Write": 997_000_000, "New": None})


COUNTERS = [
    *(("penstock.io.spanner", name, 5) for name in (*COMMON, "undecodable")),
    *(("penstock.io.staging", name, 3) for name in ("staged_bytes", "records", "refused")),
    ("penstock.io.spanner", "open_partitions", 9),  # a gauge of one worker
    ("users.own", "records", 1000),
]


def measurements(progress: object = None) -> list[Measurement]:
    seen = progress or Reported()
    return measure(pipeline_status(1000.0, seen, COUNTERS), seen, COUNTERS)  # type: ignore[arg-type]


def scraped(found: list[Measurement]) -> dict[str, float]:
    """The samples as a Prometheus server reads them."""
    registry = CollectorRegistry()
    registry.register(collector(lambda: found))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families for sample in family.samples]
    return {s.name + "".join(f"{{{k}={v}}}" for k, v in s.labels.items()): s.value for s in samples}


def test_prometheus_reads_the_values_of_the_last_commit() -> None:
    seen = scraped(measurements())
    assert seen["penstock_epochs_total"] == 7
    assert seen["penstock_watermark_lag_seconds"] == pytest.approx(2.0)
    assert seen["penstock_last_commit_timestamp_seconds"] == pytest.approx(999.5)
    assert seen["penstock_records_total{component=spanner}"] == 5
    assert seen["penstock_records_total{component=staging}"] == 3
    assert seen["penstock_epoch_seconds{phase=tasks}"] == pytest.approx(0.4)
    assert seen["penstock_state_bytes"] == 4096
    complete = {name: value for name, value in seen.items() if "complete_until" in name}
    assert complete == {"penstock_complete_until_timestamp_seconds{sink=Write}": 997}


def test_metrics_of_users_and_gauges_of_single_workers_are_not_exported() -> None:
    assert not [name for name in scraped(measurements()) if "users" in name or "open_partitions" in name]


def test_counters_of_error_outputs_begin_with_zero():
    counters = [("penstock.io.bigtable", "requests", 1), ("penstock.io.staging", "staged_bytes", 1)]
    seen = Reported()
    found = scraped(measure(pipeline_status(1000.0, seen, counters), seen, counters))
    assert found["penstock_undecodable_total{component=bigtable}"] == 0
    assert found["penstock_refused_total{component=staging}"] == 0
    counters += [("penstock.io.staging", "refused", 3)]
    found = scraped(measure(pipeline_status(1000.0, seen, counters), seen, counters))
    assert found["penstock_refused_total{component=staging}"] == 3


def test_what_another_runner_does_not_report_is_left_out() -> None:
    @dataclass
    class Other:
        epochs: int = 0
        committed_us: int | None = None
        watermark_us: int | None = None
        residuals: tuple[object, ...] = ()

    seen = scraped(measurements(Other()))
    assert "penstock_state_bytes" not in seen
    assert "penstock_watermark_lag_seconds" not in seen


def test_opentelemetry_collects_the_same_values() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    instruments = Instruments(provider.get_meter("penstock"))
    instruments.update([])
    instruments.update(measurements())
    (resource,) = reader.get_metrics_data().resource_metrics
    points = {
        (metric.name, *point.attributes.values()): point.value
        for metric in resource.scope_metrics[0].metrics
        for point in metric.data.data_points
    }
    provider.shutdown()
    assert points[("penstock.epochs",)] == 7
    assert points[("penstock.records", "spanner")] == 5
    assert points[("penstock.epoch_seconds", "commit")] == pytest.approx(0.01)
    assert len(points) == len(measurements())


def exported_names() -> set[str]:
    """The names of everything that a pipeline with every source exports."""
    found: list[Measurement] = []
    export_sick_pipeline(found.extend, 1)
    return {name.partition("{")[0] for name in scraped([*measurements(), *found])} | {"penstock_partitions"}


def test_each_query_of_the_dashboard_is_about_metrics_that_exist() -> None:
    exported = exported_names()
    text = DASHBOARD.read_text()
    queried = {
        name for panel in json.loads(text)["panels"] for t in panel["targets"] for name in names(t["expr"])
    }
    assert queried
    assert queried - exported == set()
    assert names(json.loads(text)["templating"]["list"][1]["query"]["query"]) <= exported


def test_the_dashboard_and_the_page_have_each_metric_that_alerts_are_about() -> None:
    alerts = {name for rule in alert_rules() for name in names(rule["expr"])}
    assert alerts - exported_names() == set()
    assert alerts - names(DASHBOARD.read_text()) == set()
    assert exported_names() - names(PAGE.read_text()) - COUNTERS_IN_WORDS == set()


def test_each_alert_says_what_to_do_and_names_its_section_of_the_page() -> None:
    sections = set(re.findall(r"^### (\w+)$", PAGE.read_text(), re.MULTILINE))
    assert {rule["alert"] for rule in alert_rules()} == sections
    for rule in alert_rules():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}, rule
        assert rule["annotations"]["runbook"] == f"docs/telemetry.md#{rule['alert'].lower()}"


def alert_rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def names(query: str) -> set[str]:
    return set(re.findall(r"penstock_\w+", query))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("statsd", "prometheus=HOST:PORT or otlp"),
        ("prometheus=nine", "takes HOST:PORT"),
        ("otlp=x", "OTEL_EXPORTER"),
    ],
)
def test_an_unknown_exporter_is_refused_with_those_that_exist(wanted: str, said: str) -> None:
    with pytest.raises(UsageError, match=said), exporters([wanted]):
        pass
