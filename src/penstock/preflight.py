"""Asks a pipeline's transforms, before it starts, whether they can do their work.

A transform that depends on an external system may have methods without arguments. `check` asks the system from this
process and raises an error that says what to do. `check_start` does the same for the position where reading starts,
which a pipeline that resumes from a checkpoint does not use. A third method, `setup_warnings`, returns texts about what
works now and may fail later, such as log that the server keeps without limit; `start_warnings` returns more of them for
a pipeline that does not resume. A `SetupWarning` that the option `accept_warnings` names is left out.

Programs that start a pipeline call `preflight` first. So a wrong name costs a second and gives one sentence, instead of
a Spark session and a failed epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor

from penstock.errors import SeveralProblemsError, UnavailableError

__all__ = ["methods_named", "preflight"]


def preflight(pipeline: beam.Pipeline, *, resuming: bool | None = None) -> list[str]:
    """Call the checks of every transform and of the runner, and return the warnings of the transforms.

    `check` is always called, `check_start` unless the pipeline is `resuming` from a checkpoint. None: the runner is
    asked with its method `resumes`; pipelines of other runners start from their beginning.

    Raises:
        SeveralProblemsError: several checks failed. The error of a single one is raised unchanged.
    """
    checks = _Checks()
    runner = getattr(pipeline, "runner", None)
    # Beam's Pipeline has no public property for its options.
    options = getattr(pipeline, "_options", None)
    if resuming is None:
        resuming = bool(checks.call(getattr(runner, "resumes", None), options))
    if not resuming:
        checks.names, checks.warning_names = ("check_start", "check"), ("setup_warnings", "start_warnings")
    pipeline.visit(checks)
    checks.call(getattr(runner, "check", None), pipeline)
    if checks.errors:
        raise SeveralProblemsError.of(checks.errors)
    accepted = frozenset((options.get_all_options().get("accept_warnings") if options else None) or ())
    return [text for text in checks.warnings if getattr(text, "name", None) not in accepted]


def methods_named(pipeline: beam.Pipeline, name: str) -> list[Callable[[], Any]]:
    """Return the methods with this name of all transforms of a pipeline, such as `measure` (`penstock.measurement`)."""
    found = _Methods(name)
    pipeline.visit(found)
    return found.methods


class _Methods(PipelineVisitor):
    def __init__(self, name: str) -> None:
        self._name = name
        self.methods: list[Callable[[], Any]] = []

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        self.visit_transform(transform_node)

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        if callable(method := getattr(transform_node.transform, self._name, None)):
            self.methods.append(method)


class _Checks(PipelineVisitor):
    def __init__(self) -> None:
        self.names: Sequence[str] = ("check",)
        self.warning_names: Sequence[str] = ("setup_warnings",)
        self.warnings: list[str] = []
        self.errors: list[Exception] = []

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        self.visit_transform(transform_node)

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        for name in self.names:
            self.call(getattr(transform_node.transform, name, None))
        for name in self.warning_names:
            # A source that cannot be read has nothing to warn of.
            if not self.errors and callable(warn := getattr(transform_node.transform, name, None)):
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
