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
from typing import Any

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor

from penstock.errors import SeveralProblemsError, UnavailableError

__all__ = ["preflight"]


def preflight(pipeline: beam.Pipeline, *, resuming: bool | None = None) -> list[str]:
    """Call the checks of every transform and of the runner, and return the warnings of the transforms.

    `check` is always called, `check_start` unless the pipeline is `resuming` from a checkpoint. None: the runner is
    asked with its method `resumes`; pipelines of other runners start from their beginning.

    Raises:
        SeveralProblemsError: several checks failed. The error of a single one is raised unchanged.
    """
    checks = _Checks()
    runner = getattr(pipeline, "runner", None)
    if resuming is None:
        # Beam's Pipeline has no public property for its options.
        resuming = bool(checks.call(getattr(runner, "resumes", None), getattr(pipeline, "_options", None)))
    checks.names = ("check",) if resuming else ("check_start", "check")
    pipeline.visit(checks)
    checks.call(getattr(runner, "check", None), pipeline)
    if checks.errors:
        raise SeveralProblemsError.of(checks.errors)
    return checks.warnings


class _Checks(PipelineVisitor):
    def __init__(self) -> None:
        self.names: Sequence[str] = ()
        self.warnings: list[str] = []
        self.errors: list[Exception] = []

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        self.visit_transform(transform_node)

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        for name in self.names:
            self.call(getattr(transform_node.transform, name, None))
        # A source that cannot be read has nothing to warn of.
        if not self.errors and callable(warn := getattr(transform_node.transform, "setup_warnings", None)):
            self.warnings += warn()

    def call(self, check: Any, *arguments: Any) -> Any:
        """Return what a check returns, if there is one, and keep its error."""
        # A service that does not answer costs its whole time limit, and a later check may ask the same one.
        if not callable(check) or any(isinstance(error, UnavailableError) for error in self.errors):
            return None
        try:
            return check(*arguments)
        except Exception as error:
            self.errors.append(error)
            return None
