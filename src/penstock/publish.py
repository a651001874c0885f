"""Publishing exactly once: the post-commit mark, and the name of the attempt that runs.

    staged = rows | beam.ParDo(StageFn())             # writes where no reader looks, emits Publications
    staged | "Publish" >> PublishAfterCommit(MoveFn())  # runs only for what a commit record names

A sink's last step must not run before the epoch that fed it is committed, and must run however often the
driver dies. `PublishAfterCommit` marks that step with a transform annotation. `PySparkRunner` keeps the
elements that reach it in the commit record and runs the step at the head of the next epoch, again and
again until that epoch is committed too; so its work must change nothing when it is repeated, however late.
What the step emits is input of that next epoch. Any other Beam runner sees a Reshuffle before the step.

The module knows Beam but no runner; the runner knows the annotation, not the module's users.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

import apache_beam as beam

POST_COMMIT = "penstock:post_commit:v1"
"""Annotation of a ParDo whose input elements are Publications: they run after the commit that names them."""

CARRIED_RESHUFFLE = "penstock:carried_reshuffle:v1"
"""Annotation of the Reshuffle before such a step; a runner that keeps the mark may leave it out."""


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """Which try of which epoch the running code belongs to; names made from it never collide.

    `job` is minted when a checkpoint folder is created and orders jobs by time; (`generation`, `epoch`)
    rises with every commit, `nonce` differs for each try of each task. Staged files carry all of it in
    their names, so that clean-up can tell what an epoch left behind.
    """

    job: str
    generation: int
    epoch: int
    nonce: str


def _of_this_process() -> Attempt:
    started = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    return Attempt(job=f"local-{started}", generation=0, epoch=0, nonce=uuid.uuid4().hex[:12])


def _mint_outside() -> None:
    global _outside
    _outside = _of_this_process()


_running = threading.local()
_outside = _of_this_process()
os.register_at_fork(after_in_child=_mint_outside)  # a forked worker must not share its parent's nonce


def current_attempt() -> Attempt:
    """Return the attempt that runs in this thread; outside `PySparkRunner` one that lasts for the process.

    The latter's job names rise with the time at which the processes began.
    """
    attempt: Attempt | None = getattr(_running, "attempt", None)
    return _outside if attempt is None else attempt


@contextmanager
def running_attempt(attempt: Attempt) -> Iterator[None]:
    """Make `attempt` the current one for this thread (for runners and tests)."""
    before = getattr(_running, "attempt", None)
    _running.attempt = attempt
    try:
        yield
    finally:
        _running.attempt = before


def current_watermark_us() -> int | None:
    """Return the input watermark of the step whose timer fires in this thread, in µs since 1970.

    Everything below it has arrived. None where the runner does not tell (all but `PySparkRunner`).
    """
    watermark: int | None = getattr(_running, "watermark_us", None)
    return watermark


@contextmanager
def passed_by(watermark_us: int) -> Iterator[None]:
    """Make `watermark_us` the input watermark for this thread (for runners and tests)."""
    before = getattr(_running, "watermark_us", None)
    _running.watermark_us = watermark_us
    try:
        yield
    finally:
        _running.watermark_us = before


@runtime_checkable
class CleansUp(Protocol):
    """What a post-commit DoFn may have besides `process`: the clean-up of what failed epochs staged."""

    def clean_up(self, job: str, generation: int, epoch: int, publications: Collection[Any]) -> None:
        """Delete what this sink staged for `job` at or before (`generation`, `epoch`) and no longer needs.

        Called on the driver, now and then, only by a driver that has itself committed that record.
        `publications` are all elements that the record names for this step; what they name must stay.
        Staged names with a higher (generation, epoch) belong to others and must stay too.
        """


class _MarkedParDo(beam.ParDo):
    def annotations(self) -> dict[str, Any]:
        return {**super().annotations(), POST_COMMIT: b""}


class _CarriedReshuffle(beam.Reshuffle):
    def annotations(self) -> dict[str, Any]:
        return {**super().annotations(), CARRIED_RESHUFFLE: b""}


class PublishAfterCommit(beam.PTransform):
    """Run a DoFn on each element after the commit record that names the element.

    Input elements must have a deterministic coder of their own (registered, not pickle): they live in the
    commit record. The DoFn's `process` may run many times for one element, also after later elements have
    been published, and must then change nothing and emit the same. An exception is retried with the epoch
    (`--epoch_retries`); then the pipeline is FAILED, never DONE.

    Order: none between elements. State: none. Watermark: held by each element until it is published.
    """

    def __init__(self, fn: beam.DoFn) -> None:
        super().__init__()
        self._fn = fn

    def expand(self, publications: beam.PCollection) -> beam.PCollection:
        return publications | "Carry" >> _CarriedReshuffle() | "Publish" >> _MarkedParDo(self._fn)
