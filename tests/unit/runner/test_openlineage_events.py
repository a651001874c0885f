"""Events of OpenLineage fit the published schemas, and say how far a run is."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from openlineage.client.serde import Serde

from penstock.compat import UTC
from penstock.datasets import Dataset
from penstock.errors import UsageError
from penstock.runner.openlineage import events
from penstock.runner.openlineage.client import identity_of, new_run_id, open_client
from penstock.runner.openlineage.events import Commit, RunIdentity, run_event
from penstock.runner.openlineage.pipeline_datasets import Datasets
from penstock.runner.openlineage.run_reporter import Kind
from tests.support.openlineage import check_event

RUN = RunIdentity("shop", "orders", "0199a1b2-7c3d-7e4f-8a5b-6c7d8e9fa0b1", True, "4.0.0")
NOON_US = 1_769_947_200_000_000
PARENT = "airflow/prod/nightly.orders/0199a1b2-7c3d-7e4f-8a5b-6c7d8e9fa0b1"


def event(
    kind: Kind = "RUNNING",
    datasets: Datasets = Datasets(),
    commit: Commit | None = None,
    error: str = "",
    run: RunIdentity = RUN,
) -> Any:
    """Return an event as the server gets it, after a check."""
    made = run_event(run, kind, datetime(2026, 2, 1, 12, tzinfo=UTC), datasets, commit, error)
    found = json.loads(Serde.to_json(made))
    check_event(found)
    return found


@pytest.mark.parametrize("kind", ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL"])
def test_every_kind_of_event_fits_the_schemas(kind: Kind) -> None:
    found = event(kind)
    assert (found["eventType"], found["eventTime"]) == (kind, "2026-02-01T12:00:00+00:00")
    assert found["producer"] == events.PRODUCER
    facets = [*found["run"]["facets"].values(), *found["job"]["facets"].values()]
    assert {facet["_producer"] for facet in facets} == {events.PRODUCER}


def test_an_output_is_complete_when_each_of_its_steps_is() -> None:
    outputs = (("Lake", Dataset("file", "/a")), ("Lak", Dataset("file", "/b")))
    steps: dict[str, int | None] = {"Lake/One": NOON_US + 1, "Lake/Two": NOON_US, "Other": 1}
    known = event(datasets=Datasets(outputs=outputs), commit=Commit(7, NOON_US + 2, steps))
    of_lake, of_another = (each["outputFacets"]["penstock_frontier"] for each in known["outputs"])
    assert of_lake["completeUntil"] == "2026-02-01T12:00:00.000000000Z"
    assert of_lake["record"] == 7
    assert "completeUntil" not in of_another
    run = known["run"]["facets"]["penstock_frontier"]
    assert (run["record"], run["watermark"]) == (7, "2026-02-01T12:00:00.000002000Z")

    unknown = event(datasets=Datasets(outputs=outputs), commit=Commit(7, None, {**steps, "Lake/Three": None}))
    assert "completeUntil" not in unknown["outputs"][0]["outputFacets"]["penstock_frontier"]


@pytest.mark.parametrize("watermark", [None, -(2**62), 253_402_300_799_000_000])
def test_beams_lowest_and_highest_watermarks_are_no_times(watermark: int | None) -> None:
    found = event("COMPLETE", commit=Commit(7, watermark, {}))
    assert "watermark" not in found["run"]["facets"]["penstock_frontier"]


def test_columns_that_are_known_are_a_schema() -> None:
    inputs = (
        Dataset("postgres://db:5432", "shop.public.orders", ("id", "total")),
        Dataset("pubsub", "topic:p:t"),
    )
    orders, topic = event("START", Datasets(inputs))["inputs"]
    assert [field["name"] for field in orders["facets"]["schema"]["fields"]] == ["id", "total"]
    assert topic["facets"] == {}


def test_a_failure_has_its_message() -> None:
    facet = event("FAIL", error="no space")["run"]["facets"]["errorMessage"]
    assert (facet["message"], facet["programmingLanguage"]) == ("no space", "PYTHON")


def test_namespace_and_parent_of_a_run_come_from_the_environment() -> None:
    environment = {"OPENLINEAGE_NAMESPACE": "shop", "OPENLINEAGE_PARENT_ID": PARENT}
    run = identity_of("orders", new_run_id(), "4.0.0", streaming=True, environment=environment)
    found = event(run=run)
    assert found["job"]["namespace"] == "shop"
    parent = found["run"]["facets"]["parent"]
    assert (parent["job"]["namespace"], parent["job"]["name"]) == ("airflow/prod", "nightly.orders")
    assert parent["root"]["job"] == parent["job"]
    root = "airflow/prod/nightly/0199a1b2-7c3d-7e4f-8a5b-6c7d8e9fa0b2"
    run = identity_of(
        "orders", "x", "4", streaming=True, environment={**environment, "OPENLINEAGE_ROOT_PARENT_ID": root}
    )
    assert events.parent_facet(run.parent, run.root).root.job.name == "nightly"  # type: ignore[union-attr]
    assert identity_of("orders", "x", "4", streaming=False, environment={}).namespace == "default"


@pytest.mark.parametrize("parent", ["nightly", "a/b/no-uuid"])
def test_a_parent_of_another_form_is_refused(parent: str) -> None:
    with pytest.raises(UsageError, match="OPENLINEAGE_PARENT_ID must be namespace/job/run id"):
        identity_of("orders", "x", "4", streaming=True, environment={"OPENLINEAGE_PARENT_ID": parent})


def test_the_client_has_its_own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENLINEAGE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="set OPENLINEAGE_URL"):
        open_client()
    file = tmp_path / "openlineage.yml"
    file.write_text(f"transport:\n  type: file\n  log_file_path: {tmp_path}/events\n")
    assert open_client().transport.kind == "file"
    file.write_text("transport:\n  type: console\n")
    assert open_client().transport.kind == "console"
    file.write_text("transport:\n  type: http\n  url: nonsense:hunter2\n")
    with pytest.raises(UsageError, match=r"openlineage\.yml") as refused:
        open_client()
    assert "hunter2" not in str(refused.value)
