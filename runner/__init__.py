"""Beam pipelines on Spark, through PySpark.

    from penstock.runner import PySparkRunner

    with beam.Pipeline(runner=PySparkRunner(), options=options) as pipeline:
        ...

Also as `--runner=penstock.runner.PySparkRunner`.
"""

from penstock.runner.checks import UnsupportedPipelineError
from penstock.runner.options import PySparkOptions
from penstock.runner.pipeline_runner import PySparkRunner
from penstock.runner.residuals import ResidualView
from penstock.runner.result import Progress, PySparkPipelineResult

__all__ = [
    "Progress",
    "PySparkOptions",
    "PySparkPipelineResult",
    "PySparkRunner",
    "ResidualView",
    "UnsupportedPipelineError",
]
