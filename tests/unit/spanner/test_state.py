"""The queue between reader threads and consumer: small batches join, and the lowest timestamp comes first."""

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
    state.queue.extend(Batch(token, low, [([], advanced(low))], 10) for low in lows)
    return state


def test_small_batches_are_joined_but_none_behind_lineage(children: Any) -> None:
    small, later = Batch("p", 0, [([], advanced(1))], 10), Batch("p", 0, [([], advanced(2))], 20)
    assert small.absorbs(later)
    assert (small.steps, small.size) == ([([], advanced(1)), ([], advanced(2))], 30)
    assert not small.absorbs(Batch("p", 0, [([], advanced(3))], 1 << 20))
    split = Batch("p", 0, [([], Announced("p", children(4, ("a", ("p",)))))], 10)
    assert not split.absorbs(later)


def test_runs_of_small_batches_are_joined_up_to_the_longest_run(data: Any) -> None:
    batch = Batch("p", 0, [([data(1)], advanced(1))], 10)
    for number in range(2, 151):
        assert batch.absorbs(Batch("p", 0, [([data(number)], advanced(number))], 10))
    assert [(len(run), step) for run, step in batch.steps] == [(100, advanced(100)), (50, advanced(150))]
    assert list(batch.claims()) == [(1, *step) for step in batch.steps]


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
    one.queue.append(Batch("p", 20, [([], advanced(20))], 10))
    ready.add(one)
    one.queue.appendleft(batch)
    ready.add(one)
    assert [ready.take().low for _ in range(2) if ready] == [10, 20]
    assert not ready
