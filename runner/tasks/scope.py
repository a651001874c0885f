"""The identity of one task attempt: the part of the plan, of the epoch and of the key groups that it works on."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from penstock.attempt import Attempt
from penstock.runner.planning.plan import Plan, Stage
from penstock.runner.protocol.record import EarliestTimers
from penstock.runner.store.keys import groups_of
from penstock.runner.tasks.epoch import EpochInput, StepState, TaskInput


def _new_nonce() -> str:
    # 16 characters: the width of this field in the header of a frame (`protocol/frames.py`).
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True)
class TaskScope:
    """One attempt of the task that runs a level of a plan for one partition, in one epoch.

    `nonce` differs for each attempt, also for those that Spark repeats. `input_index` is the input that it runs: at
    level 0 maybe one that was made for another partition (`shared_inputs`). `process` is where it runs; "" if the tasks
    do not exchange inputs.
    """

    plan: Plan
    level: int
    partition: int
    epoch: EpochInput
    input_index: int
    process: str = ""
    # Drawn in the worker. If the driver sent it with the task, all attempts that Spark makes of a task would share it.
    nonce: str = field(default_factory=_new_nonce)

    @property
    def partitions(self) -> int:
        """How many tasks the level has."""
        return self.epoch.partitions

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the task, in the order in which they end."""
        return self.plan.at(self.level)

    @property
    def input(self) -> TaskInput:
        """Impulses, residuals and publications for the stages of the task."""
        return self.epoch.inputs[self.input_index].for_steps(self.plan.steps_at(self.level))

    @property
    def attempt(self) -> Attempt:
        """The attempt of the epoch, with the nonce of this task."""
        return replace(self.epoch.attempt, nonce=self.nonce)

    @property
    def key_groups(self) -> tuple[int, int]:
        """The first and the last key group of the task (inclusive). The driver runs no task without key groups."""
        groups = groups_of(self.partition, self.partitions)
        return groups.start, groups.stop - 1

    def earliest_timers(self, step: str) -> EarliestTimers:
        """The earliest timers of a step that the last record holds for the key groups of the task."""
        first, last = self.key_groups
        # After a change of the parallelism an entry overlaps with several tasks, and each of them takes its times. A
        # time that is too early only makes a task open its state; without it a timer would never fire.
        mine = [
            timers
            for timers in self.epoch.state.get(step, StepState()).timers
            if timers.first_key_group <= last and timers.last_key_group >= first
        ]
        return EarliestTimers(
            step,
            first,
            last,
            event_us=_earliest(timers.event_us for timers in mine),
            processing_us=_earliest(timers.processing_us for timers in mine),
            hold_us=_earliest(timers.hold_us for timers in mine),
        )


def _earliest(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)
