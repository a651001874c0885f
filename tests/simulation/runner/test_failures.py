"""A task reports its original error, and leaves no state that the next try would use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest

from penstock.runner.protocol.errors import RunMissingError
from penstock.runner.tasks import stage_bundles, task
from tests.simulation.batch import run_batch

told: list[str] = []


class ToldFn(beam.DoFn):
    """Registers a bundle finalizer."""

    def process(self, element: Any, finalizer: Any = beam.DoFn.BundleFinalizerParam) -> Iterator[Any]:
        finalizer.register(lambda: told.append("durable"))
        yield element


def _told(p: beam.Pipeline) -> None:
    _ = p | beam.Create([1]) | beam.ParDo(ToldFn())


def test_a_stage_that_cannot_begin_fails_with_its_own_error(monkeypatch: Any) -> None:
    def make_stage_bundle(processor: Any, context: Any) -> Any:
        raise RunMissingError("the state run is gone")

    monkeypatch.setattr(stage_bundles, "make_stage_bundle", make_stage_bundle)
    with pytest.raises(RunMissingError, match="is gone"):
        run_batch(_told)


def test_an_aborted_task_runs_no_finalizer_and_its_processors_are_not_reused(
    monkeypatch: Any,
) -> None:
    told.clear()
    broken: list[Any] = []
    level = task.run_level

    def run_level(plan: Any, number: int, partition: int, epoch: Any, frames: Any) -> Iterator[Any]:
        if not broken:
            broken.append(level(plan, number, partition, epoch, frames))
            next(broken[0])
            broken[0].close()
            assert told == []
        return level(plan, number, partition, epoch, frames)

    monkeypatch.setattr("tests.simulation.inprocess.run_level", run_level)
    run_batch(_told)
    assert told == ["durable"]
