"""Bundle finalizers of a stream run after the commit of their epoch, also if no epoch follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest

from tests.integration.runner.sources import CountFn
from tests.simulation.stream import run_stream

processed: list[int] = []
finalized: list[int] = []


class FinalizingFn(beam.DoFn):
    """Registers a finalizer for each number."""

    def process(self, pair: Any, finalizer: Any = beam.DoFn.BundleFinalizerParam) -> Iterator[Any]:
        processed.append(pair[1])
        finalizer.register(lambda: finalized.append(pair[1]))
        yield pair


def _numbers(end: int, defer_every: int = 0) -> Any:
    return lambda p: (
        p
        | beam.Create(["a"])
        | "Read" >> beam.ParDo(CountFn(10_000, end, defer_every=defer_every))
        | beam.ParDo(FinalizingFn())
    )


@pytest.fixture(autouse=True)
def _nothing_finalized() -> None:
    processed.clear()
    finalized.clear()


def test_finalizers_of_the_last_epoch_run_before_the_pipeline_is_done() -> None:
    assert run_stream(_numbers(end=20)).state.done
    assert sorted(finalized) == list(range(20))


def test_finalizers_of_the_last_epoch_run_before_the_pipeline_is_stopped() -> None:
    run_stream(_numbers(end=10**9, defer_every=10), stop=lambda record: record.epochs == 3)
    # The first epoch fires the Impulse, the other two read ten numbers each, or fewer on a busy machine.
    assert len(processed) > 1
    assert finalized == processed
