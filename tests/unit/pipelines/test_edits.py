"""Which options of a job may be added, changed and removed on its checkpoint: the table of docs/runner.md."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.pipelines.parameters import parameters_of
from penstock.pipelines.source_to_sink import build
from penstock.runner import PySparkRunner
from penstock.runner.driver.compatibility import check_compatibility, state_for_plan
from penstock.runner.driver.state_schema import state_schemas
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning import graph
from penstock.runner.planning.plan import Plan, Routing
from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.protocol.record import (
    CommitRecord,
    EpochState,
    Publication,
    Residual,
    StateRun,
    WatermarkKey,
)

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs/runner.md"

POSTGRES = {"dsn": "dbname=shop", "publication": "p", "slot": "s"}
SPANNER = {"project": "p", "instance": "i", "database": "d", "change_stream": "All"}
JOBS: Mapping[str, tuple[tuple[str, str], dict[str, Any]]] = {
    "postgres-to-delta": (("postgres", "delta"), {**POSTGRES, "uri": "/t/{table}"}),
    "postgres-to-kafka": (("postgres", "kafka"), {**POSTGRES, "bootstrap_servers": "localhost:9"}),
    "postgres-to-files": (("postgres", "files"), {**POSTGRES, "output": "/o", "format": "debezium"}),
    "transactions": (("postgres", "files"), {**POSTGRES, "output": "/o", "format": "debezium"}),
    "spanner-to-files": (("spanner", "files"), {**SPANNER, "output": "/o", "format": "debezium"}),
    "schema-events": (("spanner", "files"), {**SPANNER, "output": "/o", "format": "change_feed"}),
}
ALONE = {"transactions": "transaction_metadata", "schema-events": "schema_events"}
"""Jobs with one option only, which excludes formats or other options."""

OPTIONS: Mapping[str, list[Any]] = {
    "tables": [["public.a"], ["public.b"]],
    "without_tables": [["public.a"], ["public.b"]],
    "where": ["a > 1", "a > 2"],
    "operations": [["CREATE"], ["UPDATE"]],
    "mod_types": [["INSERT"], ["UPDATE"]],
    "only_columns": [["a"], ["b"]],
    "without_columns": [["a"], ["b"]],
    "rename_columns": [{"a": "b"}, {"a": "c"}],
    "mask_columns": [{"a": "redact"}, {"a": "truncate:3"}],
    "dead_letters": ["/d", "/e"],
    "max_dead_letters": [3, 4],
    "notification_log": ["/n", "/m"],
    "lineage_log": ["/l", "/k"],
    "materialize_rows": [True],
    "transaction_metadata": [True],
    "schema_events": [True],
    "end": ["2030-01-01T00:00:00Z", "2031-01-01T00:00:00Z"],
    "schema_changes": ["ignore", "stop"],
    "roll_seconds": [1.0, 2.0],
    "shards": [7, 9],
    "parallel_tables": [3, 5],
    "new_tables": ["snapshot", "stream"],
    "new_columns": ["snapshot", "stream"],
}
"""Values of each option that a job may have: one or two."""

STEPS_OF_OPTIONS = {
    "dead_letters": "WriteDeadLetters",
    "max_dead_letters": "LimitOfDeadLetters",
    "notification_log": "ReadChangeStream/Notifications",
    "lineage_log": "ReadChangeStream/Lineage",
    "materialize_rows": "MaterializeRows",
    "transaction_metadata": "TransactionMetadata",
    "schema_events": "SchemaEvents",
}
"""Options that add a step with state, and the name of the step."""


def plan_of(pair: tuple[str, str], given: Mapping[str, Any]) -> Plan:
    pipeline = beam.Pipeline(options=PipelineOptions())
    build(pipeline, *pair, given)
    environment = PySparkRunner().default_environment(pipeline.options)
    return graph.build_plan(pipeline.to_runner_api(default_environment=environment), streaming=True)


def record_of(plan: Plan, *, waiting: bool) -> CommitRecord:
    """Return a record of a running job in which the source reads and, with `waiting`, every step has state."""
    residual = b"x"
    reads = [edge.name for edge in plan.edges if edge.routing is Routing.RESIDUAL]
    others = [edge.name for edge in plan.edges if edge.routing is Routing.PUBLISH]
    state = EpochState(
        residuals=tuple(Residual(name, "1.0", residual, 0, 0) for name in reads),
        publications=tuple(Publication(name, b"x") for name in others if waiting),
        state_runs=tuple(
            StateRun(stage.state, f"g1_e2_{stage.index}", 0, 127, 1, 1, 1)
            for stage in plan.stages
            if stage.state and waiting
        ),
        watermarks={WatermarkKey.carried(name): 17 for name in reads + others},
        fired_impulses={name: tuple(steps) for name, steps in plan.fed_by_impulse().items()},
        schemas=state_schemas(PlanContext(plan)),
    )
    return CommitRecord(7, 1, "job", None, 0, "epoch", 5, state)


def options_of(job: str) -> set[str]:
    if job in ALONE:
        return {ALONE[job]}
    known = parameters_of(*JOBS[job][0]).every
    return known.keys() & OPTIONS.keys() - set(ALONE.values())


@functools.cache
def plan_with(job: str, choice: int | None) -> Plan:
    """Return the plan of a job with all options that it has, each with the value of this index; None: without."""
    pair, given = JOBS[job]
    names = options_of(job)
    chosen = {} if choice is None else {name: (OPTIONS[name] * 2)[choice] for name in names}
    return plan_of(pair, {**given, **chosen})


ALL = pytest.mark.parametrize("job", JOBS)


@ALL
@pytest.mark.parametrize(
    ("before", "after"), [(None, 0), (0, 1), (0, None)], ids=["added", "changed", "removed"]
)
def test_options_are_edited_on_a_checkpoint(job: str, before: int | None, after: int | None) -> None:
    old, new = plan_with(job, before), plan_with(job, after)
    record = record_of(old, waiting=after is not None)
    check_compatibility(record, PlanContext(new), ())
    kept = state_for_plan(record.state, new, ())
    reads = {edge.name for edge in new.edges if edge.routing is Routing.RESIDUAL}
    carried = {edge.name for edge in new.edges if edge.routing.carried}
    assert {each.transform for each in kept.residuals} == reads, "the source continues at its position"
    if before is None:
        assert len(kept.publications) == len(record.state.publications)
    assert {key.step for key in kept.watermarks} <= carried
    assert {WatermarkKey.carried(name) for name in reads} <= kept.watermarks.keys()


@ALL
def test_an_option_whose_step_has_state_is_removed_when_that_is_dropped(job: str) -> None:
    old, new = plan_with(job, 0), plan_with(job, None)
    record = record_of(old, waiting=True)
    with pytest.raises(CheckpointError) as refused:
        check_compatibility(record, PlanContext(new), ())
    listed = re.findall(r"^- (.*) \(", str(refused.value), re.MULTILINE)
    options = options_of(job) & STEPS_OF_OPTIONS.keys()
    assert {name for name in options if any(STEPS_OF_OPTIONS[name] in each for each in listed)} == options
    assert all(any(STEPS_OF_OPTIONS[name] in each for name in options) for each in listed)
    check_compatibility(record, PlanContext(new), set(listed))


def test_the_page_has_these_options() -> None:
    table = PAGE.read_text().partition("### Options of a running job")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == OPTIONS.keys()
