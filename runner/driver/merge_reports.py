"""What the tasks of an epoch report, put together: the failure of one, or the parts of the next record's state. Pure.

A task reports for its key groups only. Of all others, and of stages that it had no reason to look at, the record
keeps what it has.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from penstock.runner import metrics
from penstock.runner.protocol.record import EpochState, StateRun, Timers
from penstock.runner.tasks.epoch import Failure, StateOf, TaskReport

_Ranged = TypeVar("_Ranged", StateRun, Timers)


def raise_failure(reports: Iterable[TaskReport], epoch: int) -> None:
    """Raise what a task failed with: the user's own exception, where it pickles."""
    for report in reports:
        if report.failure is not None:
            raise _error_of(report.failure, epoch)


def _error_of(failure: Failure, epoch: int) -> BaseException:
    pickled = failure.error
    error: BaseException = RuntimeError(failure.summary) if pickled is None else pickle.loads(pickled)
    error.add_note(f"in {failure.where}, epoch {epoch}; in the worker:\n{failure.trace}")
    return error


def state_of(state: EpochState) -> dict[str, StateOf]:
    names = {run.stage for run in state.state_runs} | {t.stage for t in state.timers}
    holds: Mapping[str, Any] = state.extra.get("holds", {})
    return {
        name: StateOf(
            runs=tuple(run for run in state.state_runs if run.stage == name),
            timers=tuple(
                (t.first_key_group, t.last_key_group, t.event_us, t.processing_us, _hold(holds, t))
                for t in state.timers
                if t.stage == name
            ),
        )
        for name in names
    }


def _hold(holds: Mapping[str, Any], timers: Timers) -> int | None:
    hold: int | None = holds.get(timers.stage, {}).get(str(timers.first_key_group))
    return hold


def timers_after(
    state: EpochState, reports: Sequence[TaskReport]
) -> tuple[tuple[Timers, ...], dict[str, dict[str, int]]]:
    """Earliest timers and holds: what tasks report, and the old ones of key groups that none looked at."""
    before = state.extra.get("holds", {})
    entries = [(t, _hold(before, t)) for t in state.timers]
    for report in reports:
        for name, (first, last, event, processing, hold) in report.timers.items():
            entries = [
                (part, old)
                for timers, old in entries
                for part in (_outside(timers, first, last) if timers.stage == name else [timers])
            ]
            if last >= first:
                entries.append((Timers(name, first, last, event, processing), hold))
    kept = [(t, h) for t, h in entries if t.pending or h is not None]
    holds: dict[str, dict[str, int]] = {}
    for timers, hold in kept:
        if hold is not None:
            holds.setdefault(timers.stage, {})[str(timers.first_key_group)] = hold
    return tuple(timers for timers, _ in kept), holds


def runs_after(runs: Iterable[StateRun], reports: Iterable[TaskReport]) -> tuple[StateRun, ...]:
    """The runs that tasks report for their key groups, and the old ones of all other groups."""
    after = list(runs)
    for report in reports:
        for name, sealed in report.runs.items():
            first, last = report.timers[name][:2]
            after = [
                part for run in after for part in (_outside(run, first, last) if run.stage == name else [run])
            ]
            after.extend(sealed)
    return tuple(after)


def _outside(ranged: _Ranged, first: int, last: int) -> list[_Ranged]:
    """The parts of a range of key groups that lie outside `first` to `last` (inclusive)."""
    parts = []
    if ranged.first_key_group < first:
        parts.append(replace(ranged, last_key_group=min(ranged.last_key_group, first - 1)))
    if ranged.last_key_group > last:
        parts.append(replace(ranged, first_key_group=max(ranged.first_key_group, last + 1)))
    return parts


def watermarks_after(before: Mapping[str, int], reports: Iterable[TaskReport]) -> dict[str, int]:
    """By name the lowest of all partitions, but never lower than before."""
    lowest: dict[str, int] = {}
    for report in reports:
        for name, mark in report.watermarks.items():
            lowest[name] = min(mark, lowest.get(name, mark))
    return {**before, **{name: max(mark, before.get(name, mark)) for name, mark in lowest.items()}}


def counters_after(before: Any, reports: Iterable[TaskReport]) -> list[str]:
    infos = metrics.from_json(before)
    for report in reports:
        infos.extend(metrics.worth_keeping(report.metrics))
    return metrics.to_json(metrics.merged(infos))
