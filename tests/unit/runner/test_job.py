"""The driver thread of a pipeline releases its resources in Spark when the pipeline ends or fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState

from penstock.runner import PySparkRunner
from penstock.runner.job import Job
from penstock.runner.options import PySparkOptions
from penstock.runner.planning.graph import build_plan
from penstock.runner.protocol import CheckpointError, Coordinator, EpochFailedError
from penstock.runner.protocol.record import EpochState, StateRun
from penstock.runner.result import PySparkPipelineResult
from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.store.drivers import DriverNotes, Ended


class _LostContext:
    """A Spark context that runs nothing any more."""

    defaultParallelism = 1  # noqa: N815 - PySpark's name
    master = "local[1]"

    def __init__(self) -> None:
        self.held: list[Any] = []

    def broadcast(self, value: Any) -> Any:
        self.held.append(value)
        return self

    def destroy(self) -> None:
        self.held.clear()

    def setJobGroup(self, *args: Any, **options: Any) -> None:
        raise ConnectionError("Spark has gone")


@pytest.mark.parametrize("streaming", [False, True])
def test_a_pipeline_that_fails_leaves_no_plan_in_spark(tmp_path: Path, streaming: bool) -> None:
    pipeline = beam.Pipeline(runner=PySparkRunner())
    _ = pipeline | beam.Create([1])
    environment = PySparkRunner().default_environment(pipeline.options)
    plan = build_plan(pipeline.to_runner_api(default_environment=environment), streaming=streaming)
    context, settings = _LostContext(), PipelineOptions().view_as(PySparkOptions)
    job = Job(context, plan, settings, PySparkPipelineResult())
    assert context.held == [plan]
    with pytest.raises(Exception, match="ended|failed"):
        job.run_stream(Checkpoint.open(str(tmp_path)), retries=0) if streaming else job.run_batch()
    assert context.held == []


def test_a_driver_that_fails_notes_the_reason_without_values_of_rows(tmp_path: Path) -> None:
    pipeline = beam.Pipeline(runner=PySparkRunner())
    _ = pipeline | beam.Create([1])
    environment = PySparkRunner().default_environment(pipeline.options)
    plan = build_plan(pipeline.to_runner_api(default_environment=environment), streaming=True)

    class Context(_LostContext):
        def setJobGroup(self, *args: Any, **options: Any) -> None:
            raise LookupError("a row of 4711")

    context, checkpoint = Context(), Checkpoint.open(str(tmp_path))
    settings = PipelineOptions().view_as(PySparkOptions)
    notes = DriverNotes(checkpoint)
    with pytest.raises(EpochFailedError, match="a row of 4711"):
        Job(context, plan, settings, PySparkPipelineResult()).run_stream(checkpoint, retries=0)
    ended = notes.ended(1)
    assert ended is not None
    assert ended.state == "FAILED"
    assert ended.reason.startswith("LookupError in ")
    assert "epoch 2 failed" in ended.reason
    # The text of an error that is not Penstock's may contain values of rows.
    assert "4711" not in ended.reason
    cancelled = PySparkPipelineResult()
    cancelled._state = PipelineState.CANCELLING
    with pytest.raises(LookupError):
        Job(context, plan, settings, cancelled).run_stream(checkpoint)
    assert (notes.ended(1), notes.ended(2)) == (None, Ended("CANCELLED"))


def test_a_checkpoint_without_one_of_its_state_runs_fails_at_the_start(tmp_path: Path) -> None:
    pipeline = beam.Pipeline(runner=PySparkRunner())
    _ = pipeline | beam.Create([("key", 1)]) | beam.GroupByKey()
    environment = PySparkRunner().default_environment(pipeline.options)
    plan = build_plan(pipeline.to_runner_api(default_environment=environment), streaming=True)
    (step,) = [stage.state for stage in plan.stages if stage.state]
    checkpoint = Checkpoint.open(str(tmp_path))
    coordinator = Coordinator(checkpoint)
    coordinator.take_over()
    gone = StateRun(step, "0000000001-0000000002-gone", 0, 127, entries=1, size=3, checksum=0)
    coordinator.commit(coordinator.begin(), EpochState(state_runs=(gone,)))
    settings = PipelineOptions().view_as(PySparkOptions)
    job = Job(_LostContext(), plan, settings, PySparkPipelineResult())
    with pytest.raises(CheckpointError, match="0000000001-0000000002-gone .*is missing"):
        job.run_stream(checkpoint, retries=0)
