"""Decides whether work is due, and when. Pure: functions of the state of a record, the plan and a time.

The driver asks before each epoch: is there work for an epoch now, and if not, how long to wait? Residuals and
processing-time timers are due at a time. Publications, pending Impulses and events of a TestStream are due at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.runner.driver.compatibility import pending_impulses
from penstock.runner.driver.parked_tables import is_resuming
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.record import EpochState, Residual, WatermarkKey
from penstock.runner.tasks.epoch import BEGINNING_US, MAX_US

# Element ids are `<epoch>.<index>` (`NextStates._new_residuals`), so no id has this sign.
_SUCCESSOR = "+"


def residuals_due_until_us(now_us: int, committed_us: int) -> int:
    """Return the time up to which residuals are due (inclusive).

    That is `now_us`. But if the wall clock was set back since the last commit, `not_before_us` may be far in the
    future, so every residual is treated as due. Otherwise reading would stop until the clock catches up.
    """
    return now_us if now_us >= committed_us else MAX_US


def timers_set_back_us(state: EpochState, now_us: int, committed_us: int) -> int:
    """Return by how much the tasks must move pending processing-time timers back; 0: not at all.

    If the wall clock was set back since the last commit, timers would wait longer by that difference. Moved back by
    it, they keep their remaining delay. An epoch must move them at once: the next commit has the time of the new clock,
    and then the difference is no longer known.
    """
    return max(0, committed_us - now_us) if _processing_times(state) else 0


def split_by_due(residuals: Iterable[Residual], until_us: int) -> tuple[list[Residual], list[Residual]]:
    """Return the residuals that are due (`not_before_us` <= `until_us`), and those that must wait."""
    residuals = list(residuals)
    blocked = waiting_successors(residuals)
    due: list[Residual] = []
    waiting: list[Residual] = []
    for residual in residuals:
        ready = (
            residual.not_before_us <= until_us and (residual.transform, residual.element_id) not in blocked
        )
        (due if ready else waiting).append(residual)
    return due, waiting


def id_of_successor(element_id: str) -> str:
    """Return the element id of a read that begins only when the read of `element_id` has ended."""
    return element_id + _SUCCESSOR


def is_successor(later: str, earlier: str) -> bool:
    """Whether the read `later` follows the read `earlier` of one element, directly or not. Both are element ids."""
    return (
        later != earlier
        and later.rstrip(_SUCCESSOR) == earlier.rstrip(_SUCCESSOR)
        and len(later) > len(earlier)
    )


def waiting_successors(residuals: Iterable[Residual]) -> set[tuple[str, str]]:
    """Return (step, element id) of the reads that must wait until an earlier read of their element has ended."""
    ids = {(residual.transform, residual.element_id) for residual in residuals}
    return {
        (step, later)
        for step, later in ids
        if later.endswith(_SUCCESSOR)
        # Any shorter chain of signs, not only the direct predecessor, whose read may have ended already.
        and any((step, later[:size]) in ids for size in range(len(later.rstrip(_SUCCESSOR)), len(later)))
    }


class Schedule:
    """Decides for the pipeline of a plan whether an epoch has work to do."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._carried = tuple(WatermarkKey.carried(edge.name) for edge in plan.edges if edge.routing.carried)

    def is_busy(self, state: EpochState, due: Sequence[Residual], now_us: int) -> bool:
        """Whether earlier epochs left work that is due: residuals, Publications, Impulses or timers."""
        return bool(
            due
            or state.publications
            or is_resuming(state)
            or pending_impulses(state, self._plan)
            or processing_timer_due(state, now_us)
        )

    def needs_epoch(self, state: EpochState, due: Sequence[Residual], now_us: int) -> bool:
        """Whether to run an epoch now.

        Also true when no work is due, if an epoch can advance a watermark, or can find that the pipeline is done.
        It can do neither while residuals wait, or if only timers remain and the watermarks are settled.
        """
        if self.is_busy(state, due, now_us):
            return True
        if state.residuals:
            return False
        # If there are neither timers nor residuals, an epoch finds that the pipeline is done.
        return not (self.watermarks_settled(state) and any(timers.pending for timers in state.timers))

    def longest_wait_seconds(
        self, state: EpochState, due: Sequence[Residual], waiting: Sequence[Residual], tasks: int, now_us: int
    ) -> float:
        """Return how long the `tasks` of an epoch may wait for data, if data at one of them ends the wait of all.

        0: the epoch has other work, whose results must not wait. Otherwise until a residual or timer is due.
        """
        # The watermark of a reader goes on while it waits, but is known when the epoch ends. Windows, and elements that
        # wait for side inputs, may need it.
        waits_for_watermark = any(
            timers.event_us is not None and timers.event_us < MAX_US for timers in state.timers
        ) or any(stage.sides for stage in self._plan.stages)
        if (
            state.publications
            or is_resuming(state)
            or pending_impulses(state, self._plan)
            or state.draining
            or waits_for_watermark
            # A task reads its residuals one after the other, so data of the second one would not end its wait.
            or not 0 < len(due) <= tasks
        ):
            return 0.0
        return seconds_until_next_due(replace(state, residuals=tuple(waiting)), now_us)

    def watermarks_settled(self, state: EpochState) -> bool:
        """Whether the last epoch already started from the current watermarks of all carried steps.

        If so, another epoch advances no watermark, and only the clock can make something due.
        """
        return all(
            key in state.watermarks and state.observed_watermarks.get(key) == state.watermarks[key]
            for key in self._carried
        )

    def carried_watermarks(self, state: EpochState) -> dict[WatermarkKey, int]:
        """Return the watermarks of carried steps that the state has."""
        return {key: state.watermarks[key] for key in self._carried if key in state.watermarks}

    def input_complete(self, state: EpochState) -> bool:
        """Whether no more elements can reach a carried step: all their watermarks are at the end of time."""
        return all(state.watermarks.get(key, BEGINNING_US) >= MAX_US for key in self._carried)

    def advance_clock_to_next_timer(self, state: EpochState, clock_us: int) -> int | None:
        """Return by how much the clock of a TestStream must advance, in µs, to make the next timer due.

        None if there is no processing-time timer, or if an epoch without a clock event may still do work.
        """
        times = _processing_times(state)
        if not times or state.residuals or not self.watermarks_settled(state):
            return None
        return min(times) - clock_us


def processing_timer_due(state: EpochState, now_us: int) -> bool:
    """Whether the processing time of a timer has come."""
    return any(time_us <= now_us for time_us in _processing_times(state))


def seconds_until_next_due(state: EpochState, now_us: int) -> float:
    """Return the time until the next residual or processing-time timer is due; infinity if there is none."""
    blocked = waiting_successors(state.residuals)
    times = _processing_times(state)
    times += [r.not_before_us for r in state.residuals if (r.transform, r.element_id) not in blocked]
    return max(0.0, (min(times) - now_us) / 1e6) if times else math.inf


def _processing_times(state: EpochState) -> list[int]:
    return [timers.processing_us for timers in state.timers if timers.processing_us is not None]
