"""Beam pipelines on Spark, through PySpark.

    from penstock.runner import PySparkRunner

    with beam.Pipeline(runner=PySparkRunner(), options=options) as pipeline:
        ...

Also as `--runner=penstock.runner.PySparkRunner`.

Names are loaded when they are first used: the workers' daemon lives in this package too, and sets up logging
before it imports Beam.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.extras import extra_packages

if TYPE_CHECKING:
    from penstock.runner.driver.residuals import ResidualView
    from penstock.runner.options import PySparkOptions
    from penstock.runner.pipeline_runner import PySparkRunner
    from penstock.runner.planning.checks import UnsupportedPipelineError
    from penstock.runner.remote import RemoteJob
    from penstock.runner.result import Progress, PySparkPipelineResult
    from penstock.runner.spark.session import begin_session

__all__ = [
    "Progress",
    "PySparkOptions",
    "PySparkPipelineResult",
    "PySparkRunner",
    "RemoteJob",
    "ResidualView",
    "UnsupportedPipelineError",
    "begin_session",
]

_HOMES = {
    "Progress": "result",
    "PySparkOptions": "options",
    "PySparkPipelineResult": "result",
    "PySparkRunner": "pipeline_runner",
    "RemoteJob": "remote",
    "ResidualView": "driver.residuals",
    "UnsupportedPipelineError": "planning.checks",
    "begin_session": "spark.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra_packages("runner"):
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
