"""An epoch counts only if it is made of exactly one attempt of every task."""

from __future__ import annotations

import itertools

import pytest

from penstock.runner.protocol import BlockReceipt, EpochAbortedError, TaskResult, pin_attempts

SHAPE = (2, 3, 1)


def controls() -> list[TaskResult]:
    """One control record of each task; the nonce of task (l, p) is 'l.p'."""
    return [
        TaskResult(level, p, f"{level}.{p}", payload=(level, p))
        for level, n in enumerate(SHAPE)
        for p in range(n)
    ]


def reports() -> list[BlockReceipt]:
    """Every task took from every task of the level above."""
    return [
        BlockReceipt(level, producer, f"{level}.{producer}", f"{level + 1}.{consumer}")
        for level in range(len(SHAPE) - 1)
        for producer, consumer in itertools.product(range(SHAPE[level]), range(SHAPE[level + 1]))
    ]


def test_one_attempt_of_each_task_gives_its_control_records():
    pins = pin_attempts(controls(), reports(), SHAPE)
    assert {task: control.payload for task, control in pins.items()} == {task: task for task in pins}
    assert len(pins) == sum(SHAPE)


def test_a_result_that_arrives_twice_counts_once():
    assert pin_attempts(controls() * 2, reports() * 3, SHAPE) == pin_attempts(controls(), reports(), SHAPE)


def test_an_epoch_of_one_level_needs_no_reports():
    assert set(pin_attempts([TaskResult(0, 0, "a"), TaskResult(0, 1, "b")], [], (2,))) == {(0, 0), (0, 1)}


def test_two_attempts_of_a_task_abort():
    with pytest.raises(EpochAbortedError, match=r"task 1 of level 0 ran twice, and both attempts were used"):
        pin_attempts([*controls(), TaskResult(0, 1, "again")], reports(), SHAPE)


@pytest.mark.parametrize("missing", range(sum(SHAPE)))
def test_a_missing_control_record_aborts(missing):
    left = controls()
    gone = left.pop(missing)
    with pytest.raises(
        EpochAbortedError, match=rf"no report came from task {gone.partition} of level {gone.level}"
    ):
        pin_attempts(left, reports(), SHAPE)


def test_a_control_record_of_an_unknown_task_aborts():
    with pytest.raises(
        EpochAbortedError, match=r"came from task 9 of level 0, which the epoch does not have"
    ):
        pin_attempts([*controls(), TaskResult(0, 9, "x")], reports(), SHAPE)


@pytest.mark.parametrize("index", range(len(reports())))
def test_a_block_of_another_attempt_than_the_control_record_aborts(index):
    taken = reports()
    was = taken[index]
    taken[index] = BlockReceipt(was.level, was.partition, "another", was.by)
    with pytest.raises(
        EpochAbortedError,
        match=rf"its block of task {was.partition} of level {was.level} from another attempt",
    ):
        pin_attempts(controls(), taken, SHAPE)


@pytest.mark.parametrize("index", range(len(reports())))
def test_a_missing_block_aborts(index):
    taken = reports()
    was = taken.pop(index)
    with pytest.raises(
        EpochAbortedError, match=rf"got no block of task {was.partition} of level {was.level}"
    ):
        pin_attempts(controls(), taken, SHAPE)


def test_a_report_of_an_attempt_without_a_control_record_aborts():
    with pytest.raises(EpochAbortedError, match=r"taken by an attempt that is not part of the epoch"):
        pin_attempts(controls(), [*reports(), BlockReceipt(0, 0, "0.0", "lost attempt")], SHAPE)


def test_a_report_from_the_wrong_level_aborts():
    with pytest.raises(EpochAbortedError, match=r"taken by an attempt that is not part of the epoch"):
        pin_attempts(controls(), [*reports(), BlockReceipt(0, 0, "0.0", "2.0")], SHAPE)
