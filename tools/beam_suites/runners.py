"""Our runner for Beam's suites, which name a runner in the options and pass it no other options."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.test_pipeline import TestPipeline

from penstock.runner import PySparkOptions, PySparkPipelineResult, PySparkRunner
from penstock.runner.planning import graph
from tools.beam_suites.oneprocess import OneProcessContext

OURS = {
    "penstock": "tools.beam_suites.runners.PySparkRunnerWithCheckpoints",
    "one-process": "tools.beam_suites.runners.PySparkRunnerInOneProcess",
}
"""The names of our runner in options: on Spark, and with its tasks in this process."""

started: list[PySparkPipelineResult] = []
"""All pipelines that our runner has started in this process, finished or not."""


class PySparkRunnerWithCheckpoints(PySparkRunner):
    """`PySparkRunner` that gives each stream without a TestStream a new checkpoint folder.

    If `drained`, a pipeline runs as a stream, bounded or not, and is drained as soon as it has started.
    """

    def __init__(self, drained: bool = False, spark: Any = None) -> None:
        super().__init__(spark)
        self._drained = drained

    def run_proto(
        self, proto: api.Pipeline, options: PipelineOptions, datasets: Any = None
    ) -> PySparkPipelineResult:
        settings = options.view_as(PySparkOptions)
        if (self._drained or _is_stream(proto, options)) and not settings.checkpoint_dir:
            settings.checkpoint_dir = str(Path(tempfile.mkdtemp(prefix="penstock-suites-")) / "checkpoint")
        result = super().run_proto(proto, options, datasets)
        started.append(result)
        if self._drained:
            result.drain()
        return result


class PySparkRunnerInOneProcess(PySparkRunnerWithCheckpoints):
    """The same plan, tasks and records, without Spark."""

    def __init__(self, drained: bool = False) -> None:
        super().__init__(drained, OneProcessContext())


def runner_under_test(drained: bool = False) -> Any:
    """The runner that TestPipeline's options name: ours, or Beam's FnApiRunner."""
    named = PipelineOptions(TestPipeline.get_options_list()).view_as(StandardOptions).runner
    if named == OURS["one-process"]:
        return PySparkRunnerInOneProcess(drained)
    return PySparkRunnerWithCheckpoints(drained) if named in OURS.values() else FnApiRunner(is_drain=drained)


def _is_stream(proto: api.Pipeline, options: PipelineOptions) -> bool:
    scripted = any(t.spec.urn == "beam:transform:teststream:v1" for t in proto.components.transforms.values())
    return not scripted and (graph.is_streaming(proto) or bool(options.view_as(StandardOptions).streaming))
