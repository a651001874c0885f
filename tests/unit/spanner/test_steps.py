from __future__ import annotations

from typing import Any

from penstock.io.spanner.frontier import Advanced, Announced, Ended, Finished, Position
from penstock.io.spanner.record import HeartbeatRecord
from penstock.io.spanner.steps import last_step, to_steps


def test_records_become_steps_and_repeated_ones_are_left_out(data: Any, children: Any) -> None:
    first, again, second = data(10, "t", 0), data(10, "t", 0), data(10, "t", 1)
    end = children(20, ("c", ("p",)))
    steps, position = to_steps(
        "p", Position(5), [first, again, second, HeartbeatRecord(12), HeartbeatRecord(12), end]
    )
    assert steps == [
        (first, Advanced("p", Position(10, {"t": ((0, 0),)}))),
        (second, Advanced("p", Position(10, {"t": ((0, 1),)}))),
        (None, Advanced("p", Position(12))),
        (None, Announced("p", end)),
    ]
    assert position == Position(20)


def test_query_that_ends_after_a_child_record_finishes_the_partition() -> None:
    assert last_step("p", Position(20), 30, 30, announced=True) == Finished("p")


def test_query_that_ends_without_a_child_record_does_not_finish_the_partition() -> None:
    assert last_step("p", Position(20), 30, None, announced=False) is None


def test_query_that_reached_the_end_ends_the_partition() -> None:
    assert last_step("p", Position(20), 30, 30, announced=False) == Ended("p")


def test_query_that_went_beyond_the_last_record_lets_the_next_begin_after_it() -> None:
    seen = Position(20, {"t": ((0, 0),)})
    assert last_step("p", seen, 21, None, announced=False) == Advanced("p", Position(21))
    assert last_step("p", seen, 20, None, announced=False) is None, "the timestamp itself may not be complete"


def test_window_end_without_a_row_does_not_count_as_read() -> None:
    assert last_step("p", Position(20), 1000, None, announced=False) is None
