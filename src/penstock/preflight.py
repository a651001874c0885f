"""Asks a pipeline's transforms, before it starts, whether they can do their work.

A transform that depends on an external system may have methods without arguments. `check` asks the system from this
process and raises an error that says what to do. `check_start` does the same for the position where reading starts,
which a pipeline that resumes from a checkpoint does not use. A third method, `setup_warnings`, returns texts about what
works now and may fail later, such as log that the server keeps without limit.

Programs that start a pipeline call `preflight` first. So a wrong name costs a second and gives one sentence, instead of
a Spark session and a failed epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor

__all__ = ["preflight"]


def preflight(pipeline: beam.Pipeline, *, resuming: bool = False) -> list[str]:
    """Call the checks of every transform and return their warnings. The first error is raised unchanged.

    `check` is always called, `check_start` unless the pipeline is `resuming` from a checkpoint.
    """
    checks = _Checks(("check",) if resuming else ("check_start", "check"))
    pipeline.visit(checks)
    return checks.warnings


class _Checks(PipelineVisitor):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.warnings: list[str] = []

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        self.visit_transform(transform_node)

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        for name in self._names:
            check = getattr(transform_node.transform, name, None)
            if callable(check):
                check()
        warn = getattr(transform_node.transform, "setup_warnings", None)
        if callable(warn):
            self.warnings += warn()
