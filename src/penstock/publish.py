"""Publish exactly once: a step that runs only after the commit that names its input.

    staged = rows | beam.ParDo(StageFn())                  # writes where no reader looks, emits Publications
    staged | "Publish" >> PublishAfterCommit(PublishFn())  # runs only for Publications that a commit record names

The last step of a sink must not run before the epoch that produced its input is committed, and it must run even
if the driver dies after that commit. `PublishAfterCommit` marks the step with a transform annotation.
`PySparkRunner` stores the elements that reach the step in the commit record, and runs the step at the start of the
next epoch. It repeats the step until that epoch is committed too. Repeating the step must therefore change nothing,
however late it happens. The output of the step is input of that next epoch. Any other Beam runner sees a Reshuffle
before the step.

This module imports Beam but no runner. The runner reads the annotation and does not know which sinks use it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol, runtime_checkable

import apache_beam as beam

from penstock.attempt import Attempt, current_attempt, current_watermark_us

__all__ = [
    "CARRIED_RESHUFFLE",
    "FORGETS_AT_END",
    "POST_COMMIT",
    "Attempt",
    "CleansUp",
    "ForgettingParDo",
    "PublishAfterCommit",
    "PublishesEarly",
    "current_attempt",
    "current_watermark_us",
]

POST_COMMIT = "penstock:post_commit:v1"
"""Annotation of a ParDo whose input elements are Publications. It runs after the commit that names them."""

CARRIED_RESHUFFLE = "penstock:carried_reshuffle:v1"
"""Annotation of the Reshuffle before such a step. A runner that understands `POST_COMMIT` may leave it out."""


FORGETS_AT_END = "penstock:forgets_at_end:v1"
"""Annotation of a stateful ParDo in the global window that keeps no state once its input has ended.

For such a step, elements that come after the end mean the same as elements that come before it. So a pipeline that has
ended may be started again with a later end.
"""


@runtime_checkable
class CleansUp(Protocol):
    """Optional second method of a post-commit DoFn: delete what failed epochs staged."""

    def clean_up(self, job: str, generation: int, epoch: int, publications: Collection[Any]) -> None:
        """Delete what this sink staged for `job` at or before (`generation`, `epoch`) and no longer needs.

        The driver calls it from time to time, and only after it committed that record itself. `publications`
        are all elements that the record names for this step; keep everything that they refer to. Keep staged
        names with a higher (generation, epoch) too: they belong to another driver or a later epoch.
        """


@runtime_checkable
class PublishesEarly(Protocol):
    """Optional method of a post-commit DoFn: make publications visible before the step runs."""

    def publish_early(self, publications: Collection[Any]) -> None:
        """Publish these elements, without any output.

        The driver calls it right after the commit that names them. It may run at the same time as the step, before or
        after it, once or not at all. The step repeats it and reports its errors, so it must be a publication that costs
        little when it is repeated, such as a rename. Its effect need not be durable.
        """


class _MarkedParDo(beam.ParDo):
    def annotations(self) -> dict[str, Any]:
        return {**super().annotations(), POST_COMMIT: b""}


class ForgettingParDo(beam.ParDo):
    """A ParDo with the annotation `FORGETS_AT_END`."""

    def annotations(self) -> dict[str, Any]:
        return {**super().annotations(), FORGETS_AT_END: b""}


class _CarriedReshuffle(beam.Reshuffle):
    def annotations(self) -> dict[str, Any]:
        return {**super().annotations(), CARRIED_RESHUFFLE: b""}


class PublishAfterCommit(beam.PTransform):
    """Run a DoFn on each element after the commit of the record that names the element.

    The input elements are stored in the commit record, so their type needs a registered, deterministic coder (not
    pickle). `process` may run many times for one element, even after later elements were published. It must then
    change nothing and emit the same output. If it raises, the epoch is tried again (`--epoch_retries`), and then
    the pipeline is FAILED, never DONE.

    Order: none between elements. State: none. Watermark: each element holds it until the element is published.
    """

    def __init__(self, fn: beam.DoFn) -> None:
        super().__init__()
        self._fn = fn

    def expand(self, publications: beam.PCollection) -> beam.PCollection:
        return publications | "Carry" >> _CarriedReshuffle() | "Publish" >> _MarkedParDo(self._fn)

    def display_data(self) -> dict[str, Any]:
        return {"fn": type(self._fn).__name__}
