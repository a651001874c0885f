"""Logs in a DoFn, at two levels and under two names."""

from __future__ import annotations

import logging
import sys

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.runner import PySparkRunner


def log(number: int) -> int:
    logging.getLogger("step").info("info of %d", number)
    logging.getLogger("step").warning("warning of %d", number)
    logging.getLogger("silenced").warning("hidden")
    return number


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    with beam.Pipeline(runner=PySparkRunner(), options=PipelineOptions(sys.argv[1:])) as pipeline:
        _ = (
            pipeline
            | beam.Create([7])
            | beam.Map(log)
            | beam.LogElements(prefix="element ", level=logging.INFO)
        )
