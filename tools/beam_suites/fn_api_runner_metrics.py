"""Beam's `FnApiRunnerMetricsTest`, with pipelines on the runner under test."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import fn_runner_test

from tools.beam_suites.runners import runner_under_test


class FnApiRunnerMetricsTest(fn_runner_test.FnApiRunnerMetricsTest):
    def create_pipeline(self) -> beam.Pipeline:
        return beam.Pipeline(runner=runner_under_test())
