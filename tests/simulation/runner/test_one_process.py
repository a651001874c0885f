"""The runner without Spark, on which Beam's suites run a second time."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from tools.beam_suites.runners import PySparkRunnerInOneProcess


def test_a_whole_pipeline_runs_in_this_process() -> None:
    with beam.Pipeline(PySparkRunnerInOneProcess(), PipelineOptions([])) as pipeline:
        words = pipeline | beam.Create(["a", "b", "a"])
        assert_that(words | beam.combiners.Count.PerElement(), equal_to([("a", 2), ("b", 1)]))
