"""A pipeline on Spark exports each commit to a Prometheus scraper and to an OpenTelemetry receiver."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.cli.job_views import WatchedJob
from penstock_emulators.server_process import free_port
from tests.integration.cli.otlp_receiver import OtlpReceiver

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.campaign]

DASHBOARD = Path(__file__).resolve().parents[3] / "docs" / "telemetry" / "grafana.json"


OF_OTHERS = {f"penstock_slot_{name}" for name in ("lost", "retained_bytes", "safe_bytes")} | {
    "penstock_oldest_dead_letter_timestamp_seconds"
}
"""Metrics that Spanner does not have, and a pipeline without dead letters."""


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        ".".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


def queried() -> set[str]:
    """The metrics of the dashboard's panels."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    texts = [target["expr"] for panel in panels for target in panel["targets"]]
    return {name for text in texts for name in re.findall(r"penstock_\w+", text)}


@pytest.mark.parametrize("emulator", ["simulated"], indirect=True)
def test_prometheus_and_opentelemetry_get_each_commit_under_the_names_of_the_dashboard(
    start: Any,
    shop: Any,
    published: Any,
    penstock: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, out = free_port(), tmp_path / "out"
    parameters = {
        "project": "my-project",
        "instance": "main",
        "database": "shop",
        "change_stream": "OrdersStream",
        "output": str(out),
        "roll_seconds": "0",
        "dead_letters": str(tmp_path / "letters"),
    }
    sets = [word for name, value in parameters.items() for word in ("--set", f"{name}={value}")]
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "orders")
        program = start(
            *[*penstock, "run", "spanner-to-files", *sets, "--checkpoint-dir", str(tmp_path / "checkpoint")],
            *["--master", "local[2,4]", "--fresh", "--metrics", f"prometheus={port}", "--metrics", "otlp"],
        )
        program.until(lambda: bool(receiver.pushes))
        shop.order(range(50))
        program.until(lambda: len(published(out)) >= 50)
        # What was published counts in the commit after it.
        program.until(lambda: scraped(port).get("penstock_published_files_total.staging", 0) > 0)
        # The orders may be in several epochs, and files may be there before their commit is exported.
        program.until(lambda: scraped(port).get("penstock_changes_total.spanner", 0) >= 50)
        program.until(lambda: "penstock_retention_seconds.OrdersStream" in scraped(port))
        samples = scraped(port)
        assert program.interrupt(signal.SIGINT) == 130, program.output
    last = receiver.pushes[-1]

    # Prometheus: every metric of the dashboard exists, and has the values of the pipeline.
    names = {name.partition(".")[0] for name in samples}
    assert queried() - names == OF_OTHERS
    assert samples["penstock_changes_total.spanner"] == 50
    assert samples["penstock_staged_bytes_total.staging"] > 0
    assert samples["penstock_watermark_timestamp_seconds"] > 1.7e9

    # What a request tells, and the tables.
    assert samples["penstock_retention_seconds.OrdersStream"] == 86_400
    assert samples["penstock_dead_letter_files"] == 0
    assert samples["penstock_table_change_timestamp_seconds.spanner.Orders"] > 1.7e9
    assert 0 <= samples["penstock_table_lag_seconds.spanner.Orders"] < 120

    # The page of the job has the answers of the services too.
    answers = WatchedJob(str(tmp_path / "checkpoint")).look(whole=True).answers
    assert ("OrdersStream", 86_400) in [(each.about, each.value) for each in answers]

    # OpenTelemetry: the same names, without the suffix of counters, and the last commit of all.
    unlabelled = {name.removesuffix("_total").replace("penstock_", "penstock.", 1) for name in names}
    assert {name for name, *_ in last.values} >= unlabelled
    assert last.resource["service.name"] == "orders"
    assert last.values[("penstock.changes", "spanner")] == 50
    assert "penstock.changes" in last.counters
    epochs = [push.values[("penstock.epochs",)] for push in receiver.pushes]
    assert epochs[-1] == program.events("progress")[-1]["epochs"], "the last commit was not pushed"
    steps = [after - before for before, after in pairwise(epochs)]
    assert all(step >= 0 for step in steps), "a push has an older commit than the one before"
    assert steps.count(1) > len(steps) / 2, f"most commits were not pushed: {epochs}"
