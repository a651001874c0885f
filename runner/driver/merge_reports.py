"""Merges the reports of an epoch's tasks into parts of the next record's state, or raises the failure of one. Pure.

A task reports only for its key groups. Entries for other key groups, and for stages the task did not run, are
copied from the previous record.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from penstock.compat import add_note
from penstock.runner import metrics
from penstock.runner.protocol.record import EarliestTimers, StateRun, WatermarkKey
from penstock.runner.tasks.epoch import Failure, TaskReport

_Ranged = TypeVar("_Ranged", StateRun, EarliestTimers)


def raise_failure(reports: Iterable[TaskReport]) -> None:
    """Raise the error that a task failed with: the user's own exception, if it pickles.

    Its first note says where it was raised: the step, and the element that was read.
    """
    # The first failure is enough: `check_reports` has kept only tasks that failed themselves, not those below them.
    for report in reports:
        if report.failure is not None:
            raise _error_of(report.failure)


def _error_of(failure: Failure) -> BaseException:
    pickled = failure.error
    # An exception may not pickle, for example because it holds a socket. Its text is better than no error.
    error: BaseException = RuntimeError(failure.summary) if pickled is None else pickle.loads(pickled)
    add_note(error, f"in {failure.where}; in the worker:\n{failure.trace}")
    return error


def timers_after(
    before: Iterable[EarliestTimers], reports: Iterable[TaskReport]
) -> tuple[EarliestTimers, ...]:
    """Return the timers that tasks report, and the previous ones of key groups that no task reports."""
    # A task that ran with another number of partitions reports other key groups than the last record has, so
    # entries are cut at the borders of the reported groups.
    after = list(before)
    for report in reports:
        for reported in report.timers.values():
            after = _without_groups(after, reported.stage, reported.first_key_group, reported.last_key_group)
            after.append(reported)
    return tuple(timers for timers in after if timers.pending or timers.hold_us is not None)


def runs_after(runs: Iterable[StateRun], reports: Iterable[TaskReport]) -> tuple[StateRun, ...]:
    """Return the runs that tasks report for their key groups, and the previous ones of all other groups."""
    after = list(runs)
    for report in reports:
        for name, sealed in report.runs.items():
            # The key groups come from the timers, which a task reports for each store that it seals. They cannot come
            # from the runs: a task whose state became empty seals no run, and then the old runs must be removed.
            groups = report.timers[name]
            after = _without_groups(after, name, groups.first_key_group, groups.last_key_group)
            after.extend(sealed)
    return tuple(after)


def _without_groups(entries: Iterable[_Ranged], stage: str, first: int, last: int) -> list[_Ranged]:
    """Cut key groups `first` to `last` (inclusive) of a stage out of the entries."""
    return [
        part
        for entry in entries
        for part in (_outside(entry, first, last) if entry.stage == stage else [entry])
    ]


def _outside(ranged: _Ranged, first: int, last: int) -> list[_Ranged]:
    """Return the parts of a range of key groups outside `first` to `last` (inclusive)."""
    parts = []
    if ranged.first_key_group < first:
        parts.append(replace(ranged, last_key_group=min(ranged.last_key_group, first - 1)))
    if ranged.last_key_group > last:
        parts.append(replace(ranged, first_key_group=max(ranged.first_key_group, last + 1)))
    return parts


def watermarks_after(
    before: Mapping[WatermarkKey, int], reports: Iterable[TaskReport]
) -> dict[WatermarkKey, int]:
    """Return for each key the lowest watermark of all partitions, but never a lower one than before."""
    lowest: dict[WatermarkKey, int] = {}
    for report in reports:
        for key, us in report.watermarks.items():
            # The lowest of all partitions: an element may come from any of them.
            lowest[key] = min(us, lowest.get(key, us))
    # A step can report a lower watermark than before, for example after a rescaling or an edit of the pipeline. Beam's
    # model does not allow a watermark to go back, and panes were fired by the higher one.
    return {**before, **{key: max(us, before.get(key, us)) for key, us in lowest.items()}}


def metrics_after(before: Iterable[bytes], reports: Iterable[TaskReport]) -> tuple[bytes, ...]:
    """Return the users' metrics of the job: the last record's, merged with the metrics of the epoch's tasks."""
    infos = metrics.deserialized(before)
    for report in reports:
        infos.extend(metrics.user_metrics(report.metrics))
    return metrics.serialized(metrics.merged(metrics.within_table_limit(infos)))
