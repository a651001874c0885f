"""Whole batch pipelines in this process, without Spark: real plan, driver, tasks and frames."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import apache_beam as beam
from apache_beam.runners.pipeline_utils import group_by_key_input_visitor

from penstock.attempt import Attempt
from penstock.runner import PySparkRunner
from penstock.runner.driver.driver import Driver
from penstock.runner.driver.residuals import Residuals
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning import graph
from penstock.runner.planning.checks import refuse_unsupported
from penstock.runner.protocol.record import CommitRecord, EpochState
from penstock.runner.tasks.epoch import EpochLimits
from tests.simulation.inprocess import InProcessEngine


def run_batch(build: Callable[[beam.Pipeline], Any], partitions: int = 2) -> CommitRecord:
    """Build a pipeline and run it to its end; return the last record, which is in memory only."""
    pipeline = beam.Pipeline(runner=PySparkRunner())
    build(pipeline)
    pipeline.visit(group_by_key_input_visitor(True))
    environment = PySparkRunner().default_environment(pipeline.options)
    proto = pipeline.to_runner_api(default_environment=environment)
    refuse_unsupported(proto, streaming=False)
    plan = graph.build_plan(proto, streaming=False)
    driver = Driver(
        plan,
        InProcessEngine(plan),
        Residuals(PlanContext(plan)),
        partitions=partitions,
        limits=EpochLimits(0.5, 100_000, 64 << 20),
        state_folder="",
        name="test",
    )
    record = CommitRecord(1, 1, "batch", None, 0, "epoch", 0, EpochState())
    while not record.state.done:
        attempt = Attempt("batch", 1, record.number + 1, uuid.uuid4().hex[:12])
        state = driver(record, attempt)
        if state is not None:
            record = CommitRecord(record.number + 1, 1, "batch", None, 0, "epoch", record.number, state)
    return record
