"""A Flatten of no collections is empty."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.testing.util import assert_that, equal_to

from tests.simulation.batch import run_batch
from tests.simulation.stream import run_stream


def build(p: beam.Pipeline) -> None:
    empty = () | "Empty" >> beam.Flatten(pipeline=p)
    assert_that(empty, equal_to([]))


def test_a_flatten_without_inputs_is_empty_in_a_batch() -> None:
    run_batch(build)


def test_a_flatten_without_inputs_is_empty_in_a_stream_and_the_stream_ends() -> None:
    assert run_stream(build).state.done
