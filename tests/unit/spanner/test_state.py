from __future__ import annotations

from typing import Any

from penstock.errors import UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.spanner.frontier import Advanced, Announced
from penstock.io.spanner.position import Position
from penstock.io.spanner.state import Batch, PartitionState, ReadyPartitions


def advanced(timestamp: int) -> Advanced:
    return Advanced("p", Position(timestamp))


def partition(token: str, *lows: int) -> PartitionState:
    state = PartitionState(token, Position(0), Position(0), Backoff("Spanner", UnavailableError))
    state.queue.extend(Batch(token, low, [(None, advanced(low))], 10) for low in lows)
    return state


def test_a_run_of_records_and_heartbeats_is_one_claim_and_lineage_is_another(
    data: Any, children: Any
) -> None:
    first, second, third = data(1), data(2), data(5)
    split = Announced("p", children(4, ("a", ("p",)), ("b", ("p",))))
    steps = [
        (first, advanced(1)),
        (second, advanced(2)),
        (None, advanced(3)),
        (None, split),
        (third, advanced(5)),
    ]
    assert list(Batch("p", 0, steps, 10).claims()) == [
        (3, [first, second], advanced(3)),
        (1, [], split),
        (1, [third], advanced(5)),
    ]


def test_a_long_run_is_several_claims_so_that_a_split_need_not_wait_for_its_end(data: Any) -> None:
    steps = [(data(number), advanced(number)) for number in range(250)]
    claims = list(Batch("p", 0, steps, 10).claims())
    assert [count for count, _, _ in claims] == [100, 100, 50]
    assert [record for _, records, _ in claims for record in records] == [record for record, _ in steps]


def test_small_batches_are_joined_but_none_behind_lineage(children: Any) -> None:
    small, later = Batch("p", 0, [(None, advanced(1))], 10), Batch("p", 0, [(None, advanced(2))], 20)
    assert small.absorbs(later)
    assert (small.steps, small.size) == ([(None, advanced(1)), (None, advanced(2))], 30)
    assert not small.absorbs(Batch("p", 0, [(None, advanced(3))], 1 << 20))
    split = Batch("p", 0, [(None, Announced("p", children(4, ("a", ("p",)))))], 10)
    assert not split.absorbs(later)


def test_the_batch_with_the_lowest_timestamp_is_taken_first_and_dropped_partitions_are_passed_over() -> None:
    ready = ReadyPartitions()
    early, late, dropped = partition("early", 10, 30), partition("late", 20), partition("dropped", 5)
    for each in (late, dropped, early):
        ready.add(each)
    dropped.queue.clear()
    assert [ready.take().low for _ in range(3) if ready] == [10, 20, 30]
    assert not ready


def test_a_batch_that_is_put_back_is_taken_before_later_ones() -> None:
    ready = ReadyPartitions()
    one = partition("p", 10)
    ready.add(one)
    assert ready
    batch = ready.take()
    one.queue.append(Batch("p", 20, [(None, advanced(20))], 10))
    ready.add(one)
    one.queue.appendleft(batch)
    ready.add(one)
    assert [ready.take().low for _ in range(2) if ready] == [10, 20]
    assert not ready
