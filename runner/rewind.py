"""Puts a pipeline and its target back to an earlier time, while the pipeline is stopped.

    rewind = Rewind.planned(pipeline, "/data/checkpoints/orders", to_us, sink="Write/")
    rewind.plan                       # what it will do; nothing is changed yet
    rewind.perform()

1. Take over the checkpoint, so that a driver that was paused cannot commit.
2. Write the note of the rewind (`store/rewind_note.py`): no driver runs until it is deleted.
3. Put the target back.
4. Commit a record whose source begins at the time, without state and publications.
5. Delete the note.

A rewind that was killed is planned again: after step 2 from the note, before it from the beginning. Each step may be
repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.attempt import offering_staging
from penstock.errors import UsageError
from penstock.publish import NO_REWIND, Rewinds
from penstock.rewind import RewindPlan
from penstock.runner.driver.compatibility import check_compatibility, state_for_plan
from penstock.runner.driver.other_driver import refuse_while_another_runs
from penstock.runner.driver.post_commit import PostCommitFn, post_commit_fns
from penstock.runner.driver.residuals import Residuals
from penstock.runner.driver.rewound_state import check_rewindable, rewound_state, time_text
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.graph import build_plan
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.coordinator import Coordinator
from penstock.runner.protocol.record import CommitRecord, EpochState
from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.store.drivers import DriverNotes, Ended, Pipeline, Process, Started
from penstock.runner.store.rewind_note import BegunRewind, RewindNote


@dataclass(frozen=True, slots=True)
class Rewind:
    """A rewind that is planned.

    `lost` names rows that may be lost, or is "". `has_begun`: it continues one that an earlier command has begun.
    """

    begun: BegunRewind
    lost: str
    has_begun: bool
    state: EpochState
    record: CommitRecord
    checkpoint: Checkpoint
    fn: Rewinds

    @classmethod
    def planned(cls, pipeline: Any, folder: str, to_us: int, sink: str) -> Rewind:
        """Plan a rewind of a Beam pipeline and its checkpoint. Nothing is changed.

        `sink` is the beginning of the name of the step that publishes to the target. Other post-commit steps, such as
        the step of dead letters, keep what they have.

        Raises:
            PenstockError: the pipeline cannot go back, why, and what to do.
        """
        checkpoint = Checkpoint.existing(folder)
        last = checkpoint.last_record()
        if last is None or not last.state.residuals:
            raise UsageError("the job has read nothing yet, or has ended: there is nothing to go back to")
        refuse_while_another_runs(checkpoint, last)
        plan = build_plan(pipeline.to_runner_api(), streaming=True)
        context = PlanContext(plan)
        check_compatibility(last, context, ())
        fn = _rewinding(plan, context, sink)
        state = state_for_plan(last.state, plan, ())
        begun = RewindNote(checkpoint).read()
        # A plan that was begun counts: the target may be back already, at the versions that this plan names.
        found = begun or _decide(checkpoint, state, fn, to_us, sink)
        if (found.asked_us, found.sink) != (to_us, sink):
            raise UsageError(
                f"a rewind to {time_text(found.asked_us)} has begun and has not ended: repeat it first, with "
                f"--to {time_text(found.asked_us)}"
            )
        residual, lost = Residuals(context).rewound(state.residuals, found.plan.to_us)
        after = rewound_state(state, residual, found.plan.to_us)
        return cls(found, lost, begun is not None, after, last, checkpoint, fn)

    @property
    def plan(self) -> RewindPlan:
        """The time and the versions to which the target goes back."""
        return self.begun.plan

    def perform(self, crash: Callable[[str], None] = lambda step: None) -> None:
        """Put target and checkpoint back. Tests let `crash` raise at a step.

        Raises:
            SupersededError: a driver has taken over.
            PenstockError: the target refused. A repetition continues.
        """
        coordinator, note = Coordinator(self.checkpoint), RewindNote(self.checkpoint)
        record = coordinator.take_over()
        crash("took over")
        notes = DriverNotes(self.checkpoint)
        earlier = notes.started(self.record.generation)
        pipeline = Pipeline() if earlier is None else earlier.pipeline
        notes.note_start(record.generation, Started(Process.current(), pipeline))
        try:
            self._refuse_changed(record)
            note.write(self.begun)
            if note.read() != self.begun:
                raise UsageError("another rewind has begun since this one was planned: repeat the command")
            crash("noted")
            # A driver that took over before the note was there does not know of it.
            coordinator.check_superseded()
            attempt = coordinator.begin()
            with offering_staging(self.checkpoint.staging_location):
                self.fn.rewind(attempt, self.plan)
            crash("put the target back")
            coordinator.commit(attempt, self.state)
            crash("committed")
        finally:
            notes.note_end(record.generation, Ended("STOPPED"))
        # The last change: a command that is killed before it only deletes the note when it is repeated. A target that
        # is back may be complete until an earlier time than was asked for, so another rewind would be refused.
        note.delete()

    def _refuse_changed(self, record: CommitRecord) -> None:
        if record.number != self.record.number + 1:
            raise UsageError("the job has run since the rewind was planned: repeat the command")


def _rewinding(plan: Plan, context: PlanContext, sink: str) -> Rewinds:
    """Return the one post-commit DoFn of the sink."""
    found: list[PostCommitFn] = [
        each for each in post_commit_fns(plan, context) if each.step.startswith(sink)
    ]
    if len(found) != 1 or not isinstance(found[0].fn, Rewinds):
        raise UsageError(NO_REWIND)
    return found[0].fn


def _decide(checkpoint: Checkpoint, state: EpochState, fn: Rewinds, to_us: int, sink: str) -> BegunRewind:
    check_rewindable(state, to_us)
    with offering_staging(checkpoint.staging_location):
        plan = fn.plan_rewind(checkpoint.job, to_us)
    return BegunRewind(to_us, sink, plan)
