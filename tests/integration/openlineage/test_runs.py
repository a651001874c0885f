"""Pipelines on Spark report their runs to a server of OpenLineage, and do not depend on it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.errors import UsageError
from penstock.io.files import WriteToParquet
from penstock.io.sql import WriteToSql
from penstock.runner import PySparkRunner
from penstock.transforms import ToChangeEvents
from tests.integration.postgres.conftest import Database, database, server
from tests.support.openlineage import LineageReceiver, check_event
from tests.support.waiting import wait_until

__all__ = ["database", "server"]

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=10)]

PARENT = "airflow/nightly.orders/0199a1b2-7c3d-7e4f-8a5b-6c7d8e9fa0b1"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[LineageReceiver]:
    with LineageReceiver() as running:
        monkeypatch.setenv("OPENLINEAGE_URL", running.url)
        yield running


@pytest.fixture(autouse=True)
def _no_aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client writes OPENLINEAGE_URL into other variables of the process."""
    for name in ("TYPE", "URL"):
        # Set and then deleted, so that the end of the test deletes what the client has written.
        variable = f"OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__{name}"
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


def run(spark: Any, build: Callable[[beam.Pipeline], Any], *flags: str) -> Any:
    options = PipelineOptions(["--openlineage=orders-to-lake", *flags])
    pipeline = beam.Pipeline(PySparkRunner(spark), options)
    build(pipeline)
    return pipeline.run()


def seconds(text: str) -> float:
    return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00").timestamp()


def test_a_stream_reports_its_start_its_progress_and_its_end(
    spark: Any,
    database: Database,
    receiver: LineageReceiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop")
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", PARENT)
    database.execute(
        "create table orders (id int primary key, total numeric)",
        "create schema sales",
        "create table sales.items (id int primary key)",
    )
    database.publish("for table orders, sales.items")
    # The server asks for no password.
    source = database.source(dsn=f"{database.dsn} password=hunter2", heartbeat_seconds=0.1)
    target = f"{database.dsn} password=hunter2"
    lake = tmp_path / "lake"

    def build(pipeline: beam.Pipeline) -> None:
        events = pipeline | source | ToChangeEvents(database=database.name)
        _ = events | "Lake" >> WriteToParquet(str(lake), roll_seconds=0)
        _ = events | "Copy" >> WriteToSql(target, mode="current", schema="copy", roll_seconds=0)

    database.execute("create schema copy")
    result = run(spark, build, f"--checkpoint_dir={tmp_path}/checkpoint", "--openlineage_seconds=1")
    try:
        number = 0

        def is_complete_until_a_change() -> bool:
            nonlocal number
            number += 1
            database.execute(f"insert into orders values ({number}, 1)")
            return any("completeUntil" in facet for facet in frontiers(receiver.of("RUNNING")))

        wait_until(is_complete_until_a_change, "no event says until when an output is complete", every=0.1)
    finally:
        result.stop()
        assert result.wait_until_finish(120_000) == "STOPPED"

    for event in receiver.events:
        check_event(event)
    assert [event["eventType"] for event in receiver.events] == [
        "START",
        *["RUNNING"] * len(receiver.of("RUNNING")),
        "ABORT",
    ]
    assert len({event["run"]["runId"] for event in receiver.events}) == 1
    assert {(event["job"]["namespace"], event["job"]["name"]) for event in receiver.events} == {
        ("shop", "orders-to-lake")
    }
    for event in receiver.events:
        assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
        parent = event["run"]["facets"]["parent"]
        assert "/".join([parent["job"]["namespace"], parent["job"]["name"], parent["run"]["runId"]]) == PARENT
        postgres = f"postgres://127.0.0.1:{database.server.port}"
        assert [(each["namespace"], each["name"]) for each in event["inputs"]] == [
            (postgres, f"{database.name}.public.orders"),
            (postgres, f"{database.name}.sales.items"),
        ]
        columns = [field["name"] for field in event["inputs"][0]["facets"]["schema"]["fields"]]
        assert columns == ["id", "total"]
        assert {(each["namespace"], each["name"]) for each in event["outputs"]} == {
            ("file", f"{lake}/public.orders"),
            ("file", f"{lake}/sales.items"),
            (postgres, f"{database.name}.copy.orders"),
            (postgres, f"{database.name}.copy.items"),
        }
    assert "hunter2" not in str(receiver.events)
    # The folders exist under these names.
    assert (lake / "public.orders").is_dir()

    records = [event["run"]["facets"]["penstock_frontier"]["record"] for event in receiver.events[1:]]
    assert records == sorted(records)
    complete = [facet["completeUntil"] for facet in frontiers(receiver.events) if "completeUntil" in facet]
    assert max(map(seconds, complete)) <= seconds(receiver.events[-1]["eventTime"])


def frontiers(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for event in events:
        for output in event["outputs"]:
            if "penstock_frontier" in output.get("outputFacets", {}):
                yield output["outputFacets"]["penstock_frontier"]


def test_a_batch_is_complete_at_its_end(spark: Any, receiver: LineageReceiver) -> None:
    result = run(spark, lambda pipeline: pipeline | beam.Create([1]))
    assert result.wait_until_finish(120_000) == "DONE"
    assert [event["eventType"] for event in receiver.events] == ["START", "COMPLETE"]
    for event in receiver.events:
        check_event(event)
        assert event["job"]["facets"]["jobType"]["processingType"] == "BATCH"


def test_a_failure_is_reported_without_values_of_rows(
    spark: Any, receiver: LineageReceiver, tmp_path: Path
) -> None:
    def fail(element: str) -> str:
        raise ValueError(f"a bad row: {element}")

    def build(pipeline: beam.Pipeline) -> None:
        _ = pipeline | beam.Create(["secret-row"]) | beam.Map(fail)

    result = run(spark, build, f"--checkpoint_dir={tmp_path}/checkpoint", "--epoch_retries=0")
    with pytest.raises(Exception, match="secret-row"):
        result.wait_until_finish(120_000)
    (failed,) = receiver.of("FAIL")
    check_event(failed)
    message = failed["run"]["facets"]["errorMessage"]["message"]
    assert "ValueError" in message
    assert "secret-row" not in str(failed)
    assert receiver.events[-1] is failed


@pytest.mark.parametrize("holds", [False, True], ids=["down", "silent"])
def test_a_server_that_does_not_answer_costs_one_warning(
    spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, holds: bool
) -> None:
    with LineageReceiver(holds=True) as receiver:
        url = receiver.url
        if holds:
            monkeypatch.setenv("OPENLINEAGE_URL", url)
            result = run(spark, lambda pipeline: pipeline | beam.Create([1]))
            assert receiver.asked.wait(120)
            assert result.wait_until_finish(120_000) == "DONE"
    if not holds:
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        result = run(spark, lambda pipeline: pipeline | beam.Create([1]))
        assert result.wait_until_finish(120_000) == "DONE"
    warnings = [each for each in caplog.records if each.name.startswith("penstock")]
    assert [each.levelno for each in warnings if "OpenLineage" in each.getMessage()] == [logging.WARNING]


def test_a_pipeline_without_a_place_for_its_events_is_refused(
    spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENLINEAGE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="set OPENLINEAGE_URL"):
        run(spark, lambda pipeline: pipeline | beam.Create([1]))
