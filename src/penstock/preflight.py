"""Ask a pipeline's transforms, before it starts, whether they can do their work.

A transform that depends on something outside may have a method `check()`: it asks the service from this
process and raises what the user has to put right. Whoever starts a pipeline calls `preflight` first, so that
a wrong name costs a second and one sentence, not a Spark session and a failed epoch.
"""

from __future__ import annotations

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor


def preflight(pipeline: beam.Pipeline) -> None:
    """Call `check()` of every transform that has one; the first error is raised as it is."""
    pipeline.visit(_Checks())


class _Checks(PipelineVisitor):
    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        self.visit_transform(transform_node)

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        check = getattr(transform_node.transform, "check", None)
        if callable(check):
            check()
