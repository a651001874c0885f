"""Records of a query become steps: nothing is emitted twice, and a partition ends only when its lineage says so."""

from __future__ import annotations

from typing import Any

from penstock.io.change_streams.undecodable import UndecodableRecord
from penstock.io.spanner.filter import Selection
from penstock.io.spanner.frontier import Advanced, Announced, Ended, Finished, MovedIn
from penstock.io.spanner.position import Position
from penstock.io.spanner.record import (
    DamagedRecord,
    HeartbeatRecord,
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)
from penstock.io.spanner.steps import announces_end, closes, last_step, to_steps


def test_records_become_steps_and_repeated_ones_are_left_out(data: Any, children: Any) -> None:
    first, again, second = data(10, "t", 0), data(10, "t", 0), data(10, "t", 1)
    end = children(20, ("c", ("p",)))
    steps, position = to_steps(
        "p", Position(5), [first, again, second, HeartbeatRecord(12), HeartbeatRecord(12), end]
    )
    assert steps == [
        ([first, second], Advanced("p", Position(10, {"t": ((0, 1),)}))),
        ([], Advanced("p", Position(12))),
        ([], Announced("p", end)),
    ]
    assert position == Position(20)


def test_a_run_of_records_is_one_step_and_each_other_record_another(data: Any, children: Any) -> None:
    records = [data(1), data(2), HeartbeatRecord(3), children(4, ("a", ("p",)), ("b", ("p",))), data(5)]
    steps, _ = to_steps("p", Position(0), records)
    assert [(len(run), type(step)) for run, step in steps] == [
        (2, Advanced),
        (0, Advanced),
        (0, Announced),
        (1, Advanced),
    ]


def test_a_long_run_is_several_steps_so_that_a_split_need_not_wait_for_its_end(data: Any) -> None:
    records = [data(number) for number in range(1, 251)]
    steps, position = to_steps("p", Position(0), records)
    assert [len(run) for run, _ in steps] == [100, 100, 50]
    assert [record for run, _ in steps for record in run] == records
    assert steps[0][1] == Advanced("p", Position(100, {"t": ((0, 0),)}))
    single, _ = to_steps("p", Position(0), records, max_in_claim=1)
    assert (len(single), single[-1][1]) == (250, Advanced("p", position))


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


def test_records_that_are_filtered_out_advance_the_position_and_are_not_emitted(data: Any) -> None:
    wanted = Selection.checked(["Other"], (), ()).passes
    other = data(11, table_name="Other")
    steps, position = to_steps("p", Position(5), [data(10), other, data(12)], wanted)
    assert position == Position(12, {"t": ((0, 0),)})
    assert steps == [([other], Advanced("p", position))]


def test_a_damaged_record_is_emitted_in_its_place_and_only_once() -> None:
    damaged = DamagedRecord(10, "00000003", "tx", "no mods", b"bytes")
    steps, position = to_steps("READ_S_eu\ntoken", Position(5), [damaged, damaged])
    emitted = UndecodableRecord(
        commit_timestamp=10,
        partition="token",
        position="tx/00000003",
        reason="no mods",
        data=b"bytes",
        format="google.protobuf.Value",
    )
    assert steps == [([emitted], Advanced("READ_S_eu\ntoken", position))]
    assert position == Position(10, {"tx": ((3, 3),)})


def test_a_move_in_closes_the_partition_and_is_not_applied_again() -> None:
    event = PartitionEventRecord(10, "00000002", frozenset("s"), frozenset())
    steps, position = to_steps("p", Position(5), [event, HeartbeatRecord(20)])
    assert steps == [([], MovedIn("p", Position(10, {"": ((2, 2),)}), frozenset("s")))]
    assert closes(steps[-1][1])
    again, _ = to_steps("p", position, [event, HeartbeatRecord(20)])
    assert again == [([], Advanced("p", Position(20)))]


def test_a_move_out_only_advances_the_position() -> None:
    event = PartitionEventRecord(10, "00000002", frozenset(), frozenset("d"))
    steps, position = to_steps("p", Position(5), [event])
    assert steps == [([], Advanced("p", position))]
    assert not closes(steps[-1][1])


def test_a_partition_end_record_finishes_the_partition_and_later_records_are_ignored() -> None:
    steps, _ = to_steps("p", Position(5), [PartitionEndRecord(10, "00000009"), HeartbeatRecord(20)])
    assert steps == [([], Finished("p"))]


def test_a_partition_start_record_ends_only_the_root() -> None:
    record = PartitionStartRecord(10, "00000000", ("a", "b"))
    assert announces_end(Announced("", record))
    assert announces_end(Announced("READ_S_eu\n", record))
    assert not announces_end(Announced("p", record))


def test_tokens_in_records_become_keys_of_the_same_function(children: Any) -> None:
    record = children(10, ("c", ("p", "q")))
    ((_, step),), _ = to_steps("f\np", Position(5), [record])
    assert step == Announced("f\np", children(10, ("f\nc", ("f\np", "f\nq"))))
    start = PartitionStartRecord(10, "00000000", ("a",))
    ((_, step),), _ = to_steps("f\np", Position(5), [start])
    assert step == Announced("f\np", PartitionStartRecord(10, "00000000", ("f\na",)))
    event = PartitionEventRecord(10, "00000002", frozenset("s"), frozenset())
    ((_, step),), _ = to_steps("f\np", Position(5), [event])
    assert isinstance(step, MovedIn)
    assert step.sources == {"f\ns"}
