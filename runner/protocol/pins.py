"""Which attempt of each task an epoch is made of (pure).

An epoch is one Spark job of levels of tasks. Spark rates Python tasks as deterministic: when an executor dies
it may run one again, and the second attempt reads other data. So each attempt draws a nonce, heads its blocks
with it and sends a control record; whoever reads a block reports from which attempt it came. Before the
commit `pinned` puts controls and reports together: an epoch counts only if it is made of exactly one
attempt of every task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.runner.protocol.errors import EpochAbortedError

Task = tuple[int, int]
"""(level, partition)."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one task attempt tells the driver beside its data; `payload` is the runner's own."""

    level: int
    partition: int
    nonce: str
    payload: Any = None


@dataclass(frozen=True, slots=True)
class BlockReceipt:
    """Attempt `by`, of a task one level below, took its block of (level, partition) from attempt `nonce`."""

    level: int
    partition: int
    nonce: str
    by: str


def pinned(
    controls: Iterable[TaskResult], taken: Iterable[BlockReceipt], shape: Sequence[int]
) -> dict[Task, TaskResult]:
    """Return the one control record of each task of the epoch.

    `shape[level]` is the number of tasks of that level. Every task takes one block, maybe empty, from every
    task of the level above it, and reports it. A control record or a report that comes twice (it travels with
    several blocks) counts once.

    Raises:
        EpochAbortedError: two attempts of one task were seen, a control record or report is missing or belongs to
            an attempt that is not part of the epoch, or a task is outside of `shape`.
    """
    pins = _one_control_per_task(controls)
    _check_all_there(pins, shape)
    _check_reports(pins, set(taken), shape)
    return pins


def _one_control_per_task(controls: Iterable[TaskResult]) -> dict[Task, TaskResult]:
    pins: dict[Task, TaskResult] = {}
    for control in controls:
        first = pins.setdefault((control.level, control.partition), control)
        if first.nonce != control.nonce:
            raise EpochAbortedError(
                f"{_name(control.level, control.partition)} ran twice, and both attempts were used"
            )
    return pins


def _check_all_there(pins: dict[Task, TaskResult], shape: Sequence[int]) -> None:
    tasks = {(level, partition) for level, count in enumerate(shape) for partition in range(count)}
    if missing := tasks - pins.keys():
        raise EpochAbortedError(f"no control record came from {_names(missing)}")
    if foreign := pins.keys() - tasks:
        raise EpochAbortedError(
            f"a control record came from {_names(foreign)}, which the epoch does not have"
        )


def _check_reports(pins: dict[Task, TaskResult], taken: set[BlockReceipt], shape: Sequence[int]) -> None:
    attempts = {control.nonce: task for task, control in pins.items()}
    seen: set[tuple[Task, Task]] = set()
    for report in taken:
        consumer = attempts.get(report.by)
        if consumer is None or consumer[0] != report.level + 1:
            raise EpochAbortedError(
                f"a block of {_name(report.level, report.partition)} was taken by an attempt that is not "
                "part of the epoch"
            )
        _check_pin(pins, report, consumer)
        seen.add(((report.level, report.partition), consumer))
    _check_complete(seen, shape)


def _check_pin(pins: dict[Task, TaskResult], report: BlockReceipt, consumer: Task) -> None:
    pin = pins.get((report.level, report.partition))
    if pin is None or pin.nonce != report.nonce:
        raise EpochAbortedError(
            f"{_name(*consumer)} took its block of {_name(report.level, report.partition)} from another "
            "attempt than the one whose control record came"
        )


def _check_complete(seen: set[tuple[Task, Task]], shape: Sequence[int]) -> None:
    for level in range(len(shape) - 1):
        for consumer in range(shape[level + 1]):
            for producer in range(shape[level]):
                if ((level, producer), (level + 1, consumer)) not in seen:
                    raise EpochAbortedError(
                        f"{_name(level + 1, consumer)} got no block of {_name(level, producer)}"
                    )


def _name(level: int, partition: int) -> str:
    return f"task {partition} of level {level}"


def _names(tasks: set[Task]) -> str:
    first, *rest = sorted(tasks)
    return _name(*first) + (f" and {len(rest)} others" if rest else "")
