"""Whole streaming pipelines in this process, without Spark: real plan, driver, tasks, frames and records."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.attempt import offering_staging
from penstock.runner import PySparkRunner
from penstock.runner.driver.cleanup import clean_ups
from penstock.runner.driver.driver import Driver
from penstock.runner.driver.read_on import read_on
from penstock.runner.driver.residuals import Residuals
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning import graph
from penstock.runner.planning.checks import refuse_unsupported
from penstock.runner.protocol.coordinator import Coordinator, wall_clock_us
from penstock.runner.protocol.loop import Epoch, run_epochs
from penstock.runner.protocol.record import CommitRecord
from penstock.runner.protocol.record_codec import INLINE_BYTES
from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.store.table_requests import TableRequestWatch
from penstock.runner.tasks.epoch import EpochLimits
from tests.simulation.inprocess import InProcessEngine

LIMITS = EpochLimits(0.05, 100_000, 64 << 20)


def run_stream(
    build: Callable[[beam.Pipeline], Any],
    partitions: int = 2,
    on_commit: Callable[[CommitRecord, Path], None] = lambda record, folder: None,
    draining: Callable[[], bool] = lambda: False,
    limits: EpochLimits = LIMITS,
    stop: Callable[[CommitRecord], bool] = lambda record: False,
    folder: Path | None = None,
    dropped: Collection[str] = (),
    now_us: Callable[[], int] = wall_clock_us,
    inline_bytes: int = INLINE_BYTES,
    faulty: Callable[[Epoch], Epoch] = lambda epoch: epoch,
    cleans_up: bool = False,
    retries: int = 0,
) -> CommitRecord:
    """Build a pipeline and run its epochs to the end, or until `stop` says so; return the last record.

    A record whose lists have more than `inline_bytes` has them in a side file. `faulty` may let tries of epochs fail.
    `cleans_up`: sinks clean up after each commit. `retries`: see `run_epochs`.

    `on_commit` gets each record and the folder that has the checkpoint: `folder`, or one that goes when it is done.
    """
    pipeline = beam.Pipeline(runner=PySparkRunner(), options=PipelineOptions(["--allow_unsafe_triggers"]))
    build(pipeline)
    environment = PySparkRunner().default_environment(pipeline.options)
    proto = pipeline.to_runner_api(default_environment=environment)
    refuse_unsupported(proto, streaming=True)
    plan = graph.build_plan(proto, streaming=True)
    with tempfile.TemporaryDirectory() as temporary:
        home = folder or Path(temporary)
        checkpoint = Checkpoint.open(f"{home}/checkpoint")
        coordinator = Coordinator(checkpoint, clock=now_us, inline_bytes=inline_bytes)
        residuals, tables = Residuals(PlanContext(plan)), TableRequestWatch(checkpoint)
        following = read_on(coordinator.take_over().state, plan, residuals)
        if following is not None:
            coordinator.commit(coordinator.begin(), following)
        driver = Driver(
            plan,
            InProcessEngine(plan),
            residuals,
            partitions=partitions,
            limits=limits,
            state_folder=checkpoint.state_folder,
            staging=checkpoint.staging_location,
            name="test",
            dropped=dropped,
            now_us=now_us,
            draining=draining,
            table_requests=tables.look,
        )

        def committed(record: CommitRecord) -> None:
            tables.committed()
            on_commit(record, home)
            if cleans_up:
                with offering_staging(checkpoint.staging_location):
                    for clean in clean_ups(plan, record):
                        clean(checkpoint.job)

        record = run_epochs(
            coordinator,
            faulty(driver),
            retries=retries,
            stop=stop,
            on_commit=committed,
        )
        driver.finalize_bundles(record)
        return record
