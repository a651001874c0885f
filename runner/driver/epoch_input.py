"""Makes the input of an epoch's tasks from the last record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.attempt import Attempt
from penstock.runner.driver.compatibility import pending_impulses
from penstock.runner.driver.pacing import Pacing
from penstock.runner.driver.residuals import Residuals
from penstock.runner.driver.teststream import TestStreamEvent
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.record import EpochState, Residual
from penstock.runner.tasks.epoch import (
    QUIET_BYTES,
    EpochInput,
    EpochLimits,
    StepState,
    TaskInput,
    TestStreamBlock,
)


class EpochInputs:
    """Makes the input of each epoch of a plan.

    `partitions` is the number of tasks per level. `state_folder` is where tasks find state runs; empty in batch.
    `staging` is what sinks are offered for staged files.
    """

    def __init__(
        self,
        plan: Plan,
        residuals: Residuals,
        *,
        partitions: int,
        limits: EpochLimits,
        state_folder: str,
        staging: str | None = None,
    ) -> None:
        self._plan = plan
        self._residuals = residuals
        self._limits = limits
        self._state_folder = state_folder
        self._staging = staging
        self.partitions = partitions

    def make(
        self,
        attempt: Attempt,
        state: EpochState,
        due: Sequence[Residual],
        waiting: Sequence[Residual],
        *,
        event: TestStreamEvent | None,
        owners: tuple[str, ...],
        committed_nonces: frozenset[str],
        test_clock_us: int | None,
        publication_inputs: Sequence[int],
        set_back_us: int = 0,
        pacing: Pacing | None = None,
        quiet_seconds: float = 0.0,
        max_records: int | None = None,
    ) -> EpochInput:
        """Return the input of a try of the epoch that follows `state`: it reads `due`, and `waiting` is kept.

        `owners` is by input the process that has run it in the last epoch. `publication_inputs` is by publication the
        index of its input. `pacing` and `max_records` limit each task in this epoch; None is the limit of all epochs.
        """
        limits = replace(self._limits, quiet_seconds=quiet_seconds)
        if pacing is not None:
            if quiet_seconds and pacing.is_quiet:
                max_bytes = min(limits.max_bytes, QUIET_BYTES)
                limits = replace(limits, is_quiet=True, max_bytes=max_bytes)
            limits = replace(
                limits,
                seconds=pacing.reading_seconds,
                idle_seconds=pacing.idle_seconds,
                catches_up=pacing.catches_up,
            )
        return EpochInput(
            attempt=attempt,
            partitions=self.partitions,
            limits=limits if max_records is None else replace(limits, max_records=max_records),
            inputs=tuple(
                self._task_input(p, state, due, publication_inputs, event) for p in range(self.partitions)
            ),
            watermarks=dict(state.watermarks),
            state=stored_state(state),
            waiting_residuals_us=_lowest_watermarks(waiting),
            earliest_window_end_us=self._residuals.earliest_window_ends_us([*due, *waiting]),
            state_folder=self._state_folder,
            staging=self._staging,
            owners=owners,
            committed_nonces=committed_nonces,
            test_clock_us=test_clock_us,
            set_back_us=set_back_us,
        )

    def _task_input(
        self,
        partition: int,
        state: EpochState,
        due: Sequence[Residual],
        publication_inputs: Sequence[int],
        event: TestStreamEvent | None,
    ) -> TaskInput:
        # An Impulse and an event of a TestStream must run once, so only the task of partition 0 gets them.
        first = partition == 0
        return TaskInput(
            impulses=pending_impulses(state, self._plan) if first else (),
            # In turn: residuals of one source are neighbours in the record, and should be read by different tasks.
            residuals=tuple(due[partition :: self.partitions]),
            publications=tuple(
                publication
                for publication, index in zip(state.publications, publication_inputs, strict=True)
                if index == partition
            ),
            test_stream=(TestStreamBlock(event.step, event.block),) if event and event.step and first else (),
        )

    def readers(self, due: Sequence[Residual]) -> range:
        """Return the indices of the inputs that read one of these residuals."""
        return range(min(len(due), self.partitions))


def stored_state(state: EpochState) -> dict[str, StepState]:
    """Return the state runs and timers of a record by the name of their step."""
    names = {run.stage for run in state.state_runs} | {timers.stage for timers in state.timers}
    return {
        name: StepState(
            runs=tuple(run for run in state.state_runs if run.stage == name),
            timers=tuple(timers for timers in state.timers if timers.stage == name),
        )
        for name in names
    }


def _lowest_watermarks(residuals: Iterable[Residual]) -> dict[str, int]:
    lowest: dict[str, int] = {}
    for residual in residuals:
        us = residual.watermark_us
        lowest[residual.transform] = min(us, lowest.get(residual.transform, us))
    return lowest
