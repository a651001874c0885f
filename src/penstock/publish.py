"""Publish exactly once: a step that runs only after the commit that names its input.

    staged = rows | beam.ParDo(StageFn())                  # writes where no reader looks, emits Publications
    staged | "Publish" >> PublishAfterCommit(PublishFn())  # runs only for Publications that a commit record names

The last step of a sink must not run before the epoch that produced its input is committed, and it must run even
if the driver dies after that commit. `PublishAfterCommit` gives the step a transform annotation.
`PySparkRunner` stores the elements that reach the step in the commit record, and runs the step at the start of the
next epoch. It repeats the step until that epoch is committed too. Repeating the step must therefore change nothing,
however late it happens. The output of the step is input of that next epoch. Any other Beam runner sees a Reshuffle
before the step.

This module imports Beam but no runner. The runner reads the annotation and does not know which sinks use it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import apache_beam as beam

from penstock.attempt import Attempt, current_attempt, current_staging, current_watermark_us
from penstock.errors import UsageError
from penstock.parked import ParkedTable
from penstock.rewind import RewindPlan

__all__ = [
    "CARRIED_RESHUFFLE",
    "FORGETS_AT_END",
    "MARK_SECONDS",
    "POST_COMMIT",
    "Attempt",
    "CheckpointPosition",
    "ClaimsOutput",
    "CleansUp",
    "ForgettingParDo",
    "MarksComplete",
    "MarksTablesComplete",
    "PacesMarks",
    "ParksTables",
    "PublishAfterCommit",
    "PublishOnDriver",
    "PublishesEarly",
    "PublishesOnDriver",
    "Rewinds",
    "current_attempt",
    "current_staging",
    "current_watermark_us",
]

POST_COMMIT = "penstock:post_commit:v1"
"""Annotation of a ParDo whose input elements are Publications. It runs after the commit that names them."""

CARRIED_RESHUFFLE = "penstock:carried_reshuffle:v1"
"""Annotation of the Reshuffle before such a step. A runner that understands `POST_COMMIT` may leave it out."""


MARK_SECONDS = 5.0
"""Time between two calls of `MarksComplete.mark_complete`, unless the DoFn tells another one.

A stream commits about once a second, and a request to an object store for each commit would cost money.
"""

NO_REWIND = (
    "the sink cannot go back: only tables of Delta and Iceberg keep what they had. Restore the target by its own "
    "means, and start a new job with another checkpoint folder and a start at the time that the target has"
)

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


@dataclass(frozen=True, slots=True)
class CheckpointPosition:
    """The position of a driver in the history of its checkpoint: the number and the digest of its last record.

    `digest_of` returns the digest of an earlier record, or None if the checkpoint does not keep it any more. `claimed`
    is the position with which this driver claimed outputs before; None at its first claim.
    """

    number: int
    digest: str
    digest_of: Callable[[int], str | None]
    claimed: tuple[int, str] | None = None


@runtime_checkable
class ClaimsOutput(Protocol):
    """Optional method of a post-commit DoFn: refuse an output that another checkpoint writes to."""

    def claim_output(self, job: str, position: CheckpointPosition) -> None:
        """Write a claim into the output, or raise if the output has a claim of another history of `job`.

        The driver calls it when it has taken over, and again before each `clean_up`. A copy of a checkpoint has the
        same job name, and its driver does not know of the other one.
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


@runtime_checkable
class PublishesOnDriver(Protocol):
    """Method of a post-commit DoFn that must run in the driver; see `PublishOnDriver`."""

    def publish_on_driver(self, publications: Sequence[Any]) -> None:
        """Publish all elements that a record names for this step.

        The driver calls it at the start of the epoch after the commit, before the step itself runs in the tasks, with
        the same elements each time, in any order. The rule of the step applies: a call may be repeated, however late,
        and must then change nothing. If it raises, the epoch is tried again.
        """


@runtime_checkable
class ParksTables(Protocol):
    """Optional methods of a post-commit DoFn that publishes on the driver: park tables that the target refuses."""

    def publish_or_park(
        self,
        publications: Sequence[Any],
        parked: Sequence[ParkedTable],
    ) -> Sequence[ParkedTable]:
        """Publish as `publish_on_driver`, and return the tables that are parked after it.

        `parked` are the tables that the last record has. The driver calls it also without publications while a table
        is resuming. A call may be repeated with equal arguments, however late, and must then publish nothing a second
        time. The result counts only if the next record is committed, so the files of a table have names that no other
        try uses.
        """

    def clean_up_parked(self, job: str, generation: int, epoch: int, parked: Sequence[ParkedTable]) -> None:
        """Delete files of parked tables that are not among `parked`. When and up to where: see `CleansUp`."""


@runtime_checkable
class MarksComplete(Protocol):
    """Optional method of a post-commit DoFn: tell the target until when it is complete."""

    def mark_complete(self, job: str, record: int, until_us: int) -> None:
        """Write that the target has everything of `job` below `until_us`: exclusive, in microseconds since 1970.

        The driver calls it in a thread, some time after it has committed the record with the number `record`, and not
        for every record. It calls it only after the publications before that time were published. Numbers and times
        grow along the history of a checkpoint, but a driver that was paused may call it with an old pair after its
        successor has called it with newer ones. The target must then keep the newer time. An error is
        logged, and the next call says more.
        """


@runtime_checkable
class MarksTablesComplete(Protocol):
    """Optional method of a post-commit DoFn that parks tables: tell the other tables until when they are complete."""

    def mark_tables_complete(self, job: str, record: int, until_us: int, parked: Collection[str]) -> None:
        """As `MarksComplete.mark_complete`, for all tables of the target that are not `parked`."""


@runtime_checkable
class PacesMarks(Protocol):
    """Optional attribute of a post-commit DoFn with `mark_complete`: how often it is called."""

    @property
    def mark_seconds(self) -> float:
        """Time, in seconds, between two marks, at least. The last record of a driver is marked at once."""


@runtime_checkable
class Rewinds(Protocol):
    """Optional methods of a post-commit DoFn: put the target back to what it had at an earlier time."""

    def plan_rewind(self, job: str, to_us: int) -> RewindPlan:
        """Return how the target goes back to `to_us` or to the latest time before it that is possible. Changes nothing.

        The target is complete until `to_us`. After the rewind it has every change before the time of the plan, and
        takes every change from then on once more, so that the result is as if it came once.

        Raises:
            PenstockError: it cannot go back, why, and what to do instead.
        """

    def rewind(self, attempt: Attempt, plan: RewindPlan) -> None:
        """Put the target back. A call may be repeated after a part of it, by a later driver.

        `attempt` is of the driver that has taken over. From now on the target refuses publications of earlier ones.
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

    With `tags` the result has several outputs, as `beam.ParDo(…).with_outputs(*tags)` has; the main one is `None`.
    """

    def __init__(self, fn: beam.DoFn, *, tags: Sequence[str] = ()) -> None:
        super().__init__()
        self._fn = fn
        self._tags = tuple(tags)

    def expand(self, publications: beam.PCollection) -> Any:
        step = _MarkedParDo(self._fn)
        carried = publications | "Carry" >> _CarriedReshuffle()
        return carried | "Publish" >> (step.with_outputs(*self._tags) if self._tags else step)

    def display_data(self) -> dict[str, Any]:
        return {"fn": type(self._fn).__name__}


class PublishOnDriver(beam.PTransform):
    """Call a function in the driver after the commit, with all elements of an epoch at once.

        staged | PublishOnDriver(publish)     # publish(publications: Sequence[...]) -> None

    For targets that take one commit per epoch, and for functions that need the driver, such as one with a
    `SparkSession`. The function must obey the rule of `PublishAfterCommit`: called again with equal elements, however
    late, it changes nothing. It may be an object with the methods `clean_up` (`CleansUp`) and `mark_complete`
    (`MarksComplete`, `PacesMarks`). The transform emits the elements, after they were published.

    On runners other than `PySparkRunner` the function is called in a worker, with the elements of a bundle. Those
    runners have no commit records, so an element may come again in another bundle.

    Order: none between elements. State: none. Watermark: each element holds it until it is published.
    """

    def __init__(self, publish: Callable[[Sequence[Any]], None]) -> None:
        super().__init__()
        self._publish = publish

    def expand(self, publications: beam.PCollection) -> beam.PCollection:
        marked = PublishAfterCommit(self._fn()).with_output_types(publications.element_type)
        return publications | "Publish" >> marked

    def _fn(self) -> beam.DoFn:
        return _OnDriverFn(self._publish)

    def display_data(self) -> dict[str, Any]:
        return {"publish": getattr(self._publish, "__name__", type(self._publish).__name__)}


class _OnDriverFn(beam.DoFn):
    """Emits its elements. On `PySparkRunner` the driver has published them; elsewhere this DoFn publishes them."""

    def __init__(self, publish: Callable[[Sequence[Any]], None]) -> None:
        self._publish = publish
        self._waiting: list[Any] = []

    def publish_on_driver(self, publications: Sequence[Any]) -> None:
        self._publish(publications)

    def publish_or_park(
        self,
        publications: Sequence[Any],
        parked: Sequence[ParkedTable],
    ) -> Sequence[ParkedTable]:
        """Let the function park tables, if it can."""
        if isinstance(self._publish, ParksTables):
            return self._publish.publish_or_park(publications, parked)
        if publications:
            self._publish(publications)
        return parked

    def clean_up_parked(self, job: str, generation: int, epoch: int, parked: Sequence[ParkedTable]) -> None:
        """Call the clean-up of parked tables of the function, if it has one."""
        if isinstance(self._publish, ParksTables):
            self._publish.clean_up_parked(job, generation, epoch, parked)

    def mark_tables_complete(self, job: str, record: int, until_us: int, parked: Collection[str]) -> None:
        """Let the function tell the tables that are not parked until when they are complete, if it can."""
        if isinstance(self._publish, MarksTablesComplete):
            self._publish.mark_tables_complete(job, record, until_us, parked)

    def clean_up(self, job: str, generation: int, epoch: int, publications: Collection[Any]) -> None:
        """Call the clean-up of the function, if it has one."""
        if isinstance(self._publish, CleansUp):
            self._publish.clean_up(job, generation, epoch, publications)

    @property
    def mark_seconds(self) -> float:
        """The time between two marks, if the function tells it."""
        return self._publish.mark_seconds if isinstance(self._publish, PacesMarks) else MARK_SECONDS

    def mark_complete(self, job: str, record: int, until_us: int) -> None:
        """Let the function tell its target until when it is complete, if it can."""
        if isinstance(self._publish, MarksComplete):
            self._publish.mark_complete(job, record, until_us)

    def plan_rewind(self, job: str, to_us: int) -> RewindPlan:
        """Ask the function how its target goes back, if it can."""
        if not isinstance(self._publish, Rewinds):
            raise UsageError(NO_REWIND)
        return self._publish.plan_rewind(job, to_us)

    def rewind(self, attempt: Attempt, plan: RewindPlan) -> None:
        """Let the function put its target back."""
        if not isinstance(self._publish, Rewinds):
            raise UsageError(NO_REWIND)
        self._publish.rewind(attempt, plan)

    def start_bundle(self) -> None:
        self._waiting = []

    def process(self, publication: Any) -> Iterator[Any]:
        # No driver of PySparkRunner has generation 0; it is the attempt of a process of another runner.
        if current_attempt().generation == 0:
            self._waiting.append(publication)
        yield publication

    def finish_bundle(self) -> None:
        if self._waiting:
            self._publish(self._waiting)
