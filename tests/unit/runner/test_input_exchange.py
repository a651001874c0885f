"""Tasks of one executor agree through a file."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from penstock.attempt import Attempt, DriverToken
from penstock.runner.spark.input_exchange import MAX_WAIT_SECONDS, input_of, this_process
from penstock.runner.tasks.epoch import EpochInput, EpochLimits, TaskInput
from tests.support.waiting import join

EPOCH = EpochInput(
    Attempt("job", 1, 7, "first", (DriverToken(1, "token"),)),
    partitions=2,
    limits=EpochLimits(1.0, 1, 1),
    inputs=(TaskInput(), TaskInput()),
    watermarks={},
    state={},
    owners=("A", "B"),
)


def test_two_tasks_in_each_others_processes_exchange_their_inputs(tmp_path: Path) -> None:
    found: dict[str, int] = {}

    def task(partition: int, process: str) -> None:
        found[process] = input_of(partition, EPOCH, process, folder=str(tmp_path), clock=lambda: 0.0)

    threads = [threading.Thread(target=task, args=each, daemon=True) for each in ((0, "B"), (1, "A"))]
    for thread in threads:
        thread.start()
    join(*threads)
    assert found == {"A": 0, "B": 1}


def test_a_task_whose_input_has_another_owner_waits_only_so_long(tmp_path: Path) -> None:
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    index = input_of(0, EPOCH, "C", folder=str(tmp_path), clock=lambda: now[0], pause=pause)
    assert index == 0
    assert MAX_WAIT_SECONDS <= now[0] < MAX_WAIT_SECONDS + 0.01


def test_another_attempt_of_the_epoch_begins_without_the_claims_of_the_first(tmp_path: Path) -> None:
    assert input_of(0, EPOCH, "A", folder=str(tmp_path)) == 0
    again = replace(EPOCH, attempt=replace(EPOCH.attempt, nonce="second"))
    assert input_of(0, again, "A", folder=str(tmp_path)) == 0
    assert input_of(1, again, "B", folder=str(tmp_path)) == 1


def test_a_file_that_a_killed_process_left_incomplete_is_begun_again(tmp_path: Path) -> None:
    input_of(0, EPOCH, "A", folder=str(tmp_path))
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text()[:10])
    assert input_of(1, EPOCH, "B", folder=str(tmp_path)) == 1


def test_without_open_streams_nothing_is_agreed(tmp_path: Path) -> None:
    assert input_of(1, replace(EPOCH, owners=()), "A", folder=str(tmp_path)) == 1
    assert not list(tmp_path.iterdir())


def test_a_process_keeps_its_name() -> None:
    assert this_process() == this_process()
