"""Decides which attempt of each task counts for an epoch. Pure.

Spark may run a task more than once: an executor dies, or a task is tried again. The attempts may have read different
data, since sources are read live. Every attempt draws a nonce. It sends the nonce with each block and in its report to
the driver, and each consumer reports from which attempt its blocks came. Before the commit, `pin_attempts` compares
them: an epoch counts only if it consists of exactly one attempt of every task.
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
    """The report of one task attempt to the driver. The protocol does not read `payload`."""

    level: int
    partition: int
    nonce: str
    payload: Any = None


@dataclass(frozen=True, slots=True)
class BlockReceipt:
    """Attempt `by`, of a task one level below, used the block that attempt `nonce` of (level, partition) made."""

    level: int
    partition: int
    nonce: str
    by: str


def pin_attempts(
    results: Iterable[TaskResult], receipts: Iterable[BlockReceipt], shape: Sequence[int]
) -> dict[Task, TaskResult]:
    """Check that all tasks worked on the same data, and return the one result of each task of the epoch.

    `shape[level]` is the number of tasks of that level. Every task takes one block, maybe empty, from every task of
    the level above it, and reports a receipt for it. A result or receipt that arrives twice (it travels with several
    blocks) counts once.

    Raises:
        EpochAbortedError: two attempts of one task were used, a result or receipt is missing or belongs to an
            attempt that is not part of the epoch, or a task is outside of `shape`.
    """
    # Equal duplicates are no conflict: a report may travel with several blocks.
    pins = _one_result_per_task(results)
    _check_all_there(pins, shape)
    _check_receipts(pins, set(receipts), shape)
    return pins


def _one_result_per_task(results: Iterable[TaskResult]) -> dict[Task, TaskResult]:
    pins: dict[Task, TaskResult] = {}
    for result in results:
        first = pins.setdefault((result.level, result.partition), result)
        if first.nonce != result.nonce:
            raise EpochAbortedError(
                f"{_name(result.level, result.partition)} ran twice, and both attempts were used"
            )
    return pins


def _check_all_there(pins: dict[Task, TaskResult], shape: Sequence[int]) -> None:
    tasks = {(level, partition) for level, count in enumerate(shape) for partition in range(count)}
    if missing := tasks - pins.keys():
        raise EpochAbortedError(f"no report came from {_names(missing)}")
    if foreign := pins.keys() - tasks:
        raise EpochAbortedError(f"a report came from {_names(foreign)}, which the epoch does not have")


def _check_receipts(pins: dict[Task, TaskResult], receipts: set[BlockReceipt], shape: Sequence[int]) -> None:
    # No two attempts draw the same nonce, so it names the task too.
    attempts = {result.nonce: task for task, result in pins.items()}
    seen: set[tuple[Task, Task]] = set()
    for receipt in receipts:
        consumer = attempts.get(receipt.by)
        if consumer is None or consumer[0] != receipt.level + 1:
            raise EpochAbortedError(
                f"a block of {_name(receipt.level, receipt.partition)} was taken by an attempt that is not "
                "part of the epoch"
            )
        _check_pin(pins, receipt, consumer)
        seen.add(((receipt.level, receipt.partition), consumer))
    _check_complete(seen, shape)


def _check_pin(pins: dict[Task, TaskResult], receipt: BlockReceipt, consumer: Task) -> None:
    pin = pins.get((receipt.level, receipt.partition))
    if pin is None or pin.nonce != receipt.nonce:
        raise EpochAbortedError(
            f"{_name(*consumer)} took its block of {_name(receipt.level, receipt.partition)} from another "
            "attempt than the one whose report came"
        )


def _check_complete(seen: set[tuple[Task, Task]], shape: Sequence[int]) -> None:
    # Counting receipts is not enough: a lost block and a foreign one would cancel each other out.
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
