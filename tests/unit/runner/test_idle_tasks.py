"""Idle tasks help tasks that read: real files and connections, and threads in place of the tasks."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.attempt import Attempt, DriverToken
from penstock.runner.protocol.record import Residual
from penstock.runner.spark import idle_tasks
from penstock.runner.spark.idle_tasks import IdleTasks
from penstock.runner.spark.input_exchange import input_of
from penstock.runner.tasks.epoch import EpochInput, EpochLimits, TaskInput
from tests.support.waiting import join, wait_until

SECONDS = 30
READING = TaskInput(residuals=(Residual("read", "1", b"", 0, 0),))
EPOCH = EpochInput(
    Attempt("job", 1, 7, "first", (DriverToken(1, "token"),)),
    partitions=2,
    limits=EpochLimits(1.0, 1, 1, catches_up=True),
    inputs=(READING, TaskInput()),
    watermarks={},
    state={},
    owners=("A", ""),
)


def begin(epoch: EpochInput, folder: Path, process: str, partition: int) -> IdleTasks:
    """Return the help of a task that has begun."""
    index = input_of(partition, epoch, process, folder=str(folder), clock=_late())
    return IdleTasks(index, epoch, folder=str(folder), clock=_late())


def _late() -> Any:
    """Return a clock that passes a limit of seconds after a hundred questions."""
    times = iter(range(10**6))
    return lambda: next(times) / 100


def helped(reader: IdleTasks, *others: IdleTasks) -> int | None:
    """Return what a helper answers the reader; None if no helper comes before all others have given up."""
    threads = [threading.Thread(target=each.give, daemon=True) for each in others]
    calls: list[Future[Any] | None] = []
    with reader.taken() as helpers:
        for thread in threads:
            thread.start()
        if helpers is not None:

            def called() -> bool:
                calls.append(helpers.submit(divmod, 7, 3))
                return calls[-1] is not None or not any(thread.is_alive() for thread in threads)

            wait_until(called)
        answer = calls[-1].result(SECONDS) if calls and calls[-1] else None
    join(*threads)
    return answer


def test_an_idle_task_helps_until_the_reader_has_ended(tmp_path: Path) -> None:
    assert helped(begin(EPOCH, tmp_path, "A", 0), begin(EPOCH, tmp_path, "B", 1)) == (2, 1)


def test_idle_tasks_begin_with_different_readers(tmp_path: Path) -> None:
    epoch = replace(
        EPOCH, partitions=4, inputs=(READING, READING, TaskInput(), TaskInput()), owners=("A", "B", "", "")
    )
    tasks = [begin(epoch, tmp_path, "ABCD"[number], number) for number in range(4)]
    threads = [threading.Thread(target=task.give, daemon=True) for task in tasks[2:]]
    with tasks[0].taken() as first, tasks[1].taken() as second:
        for thread in threads:
            thread.start()
        assert first is not None
        assert second is not None
        for helpers in (first, second):
            wait_until(lambda helpers=helpers: helpers.submit(divmod, 7, 3) is not None)
    join(*threads)


@pytest.mark.parametrize(
    "epoch",
    [
        replace(EPOCH, limits=replace(EPOCH.limits, catches_up=False)),
        replace(EPOCH, inputs=(READING, READING)),
    ],
    ids=["the epoch is short", "both read"],
)
def test_there_is_no_help(epoch: EpochInput, tmp_path: Path) -> None:
    assert helped(begin(epoch, tmp_path, "A", 0), begin(epoch, tmp_path, "B", 1)) is None


def test_an_idle_task_does_not_keep_the_slot_that_a_reader_waits_for(tmp_path: Path) -> None:
    begin(EPOCH, tmp_path, "B", 1).give()  # returns, although no reader has begun


def test_the_address_of_an_earlier_attempt_is_not_used(tmp_path: Path) -> None:
    reader = begin(EPOCH, tmp_path, "A", 0)
    again = replace(EPOCH, attempt=replace(EPOCH.attempt, nonce="second"))
    begin(again, tmp_path, "A", 0)
    assert helped(reader, begin(again, tmp_path, "B", 1)) is None


def test_a_task_that_gets_no_port_reads_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("no port")

    monkeypatch.setattr(idle_tasks, "HelperPool", refuse)
    with begin(EPOCH, tmp_path, "A", 0).taken() as helpers:
        assert helpers is None
