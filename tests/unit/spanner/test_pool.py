"""Prefetchers that outlive a bundle, over queries made by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from penstock.io.change_streams.prefetch import ReadAhead
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.frontier import Advanced, Announced, Frontier, Step
from penstock.io.spanner.pool import StreamPool
from penstock.io.spanner.position import Position
from penstock.io.spanner.prefetch import Prefetcher
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.unit.spanner.calls import (
    MILLI,
    Answer,
    FakeCall,
    beats,
    calls_of,
    children,
    heartbeat,
    limits,
    new_backoff,
    reader_threads,
)

Make = Callable[..., tuple[StreamPool, list[tuple[str, int, int]]]]


@pytest.fixture
def pool() -> Iterator[Make]:
    made: list[Prefetcher] = []
    windows: list[list[FakeCall]] = []

    def make(answer: Answer, **changed: Any) -> tuple[StreamPool, list[tuple[str, int, int]]]:
        ask, asked, opened = calls_of(answer)
        windows.append(opened)

        def prefetcher(ahead: ReadAhead) -> Prefetcher:
            made.append(Prefetcher(ask, new_backoff(), limits(**changed), None, ahead=ahead))
            return made[-1]

        return StreamPool(limits(**changed).buffer_bytes, prefetcher), asked

    yield make
    for window in (window for opened in windows for window in opened):
        window.end()
    for prefetcher in made:
        prefetcher.close()
    assert reader_threads() == []


def steps_of(prefetcher: Prefetcher, partitions: Mapping[str, Position], count: int) -> list[Step]:
    """Claim `count` steps and return them."""
    prefetcher.read(partitions)
    found: list[Step] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < until, f"only {found} came"
        batch = prefetcher.take(0.02)
        if batch is not None:
            new = [step for _, step in batch.steps][: count - len(found)]
            batch.claimed = len(new)
            found += new
    return found


def caught_up_after(prefetcher: Prefetcher, partitions: Mapping[str, Position], count: int) -> list[Step]:
    """Claim `count` steps, and return them when no partition is behind: one that is would not be parked."""
    found = steps_of(prefetcher, partitions, count)
    wait_until(lambda: prefetcher.may_stop, "a partition stays behind")
    return found


def position(step: Step) -> Position:
    assert isinstance(step, Advanced)
    return step.position


def in_one_message(*timestamps: int) -> Any:
    message = heartbeat(timestamps[0])
    for timestamp in timestamps[1:]:
        message.values.append(heartbeat(timestamp).values[0])
    return message


def test_the_next_bundle_continues_with_the_batches_that_were_read_ahead(pool: Make) -> None:
    start = time.time_ns() - 1_000 * MILLI

    def few(token: str, begin: int, end: int) -> Iterator[Any]:
        if begin == start:
            yield in_one_message(*(start + number for number in range(1, 7)))
        yield heartbeat(end)

    kept, asked = pool(few)
    found: list[Step] = []
    at = Position(start)
    for _ in range(3):
        with kept.prefetching(Frontier({"p": at}, {})) as prefetcher:
            found += caught_up_after(prefetcher, {"p": at}, 2)
            at = position(found[-1])
    assert found == [Advanced("p", Position(start + number)) for number in range(1, 7)]
    assert [begin for _, begin, _ in asked].count(start) == 1


def test_a_bundle_ends_without_waiting_for_its_windows(pool: Make) -> None:
    at = Position(time.time_ns())
    kept, asked = pool(beats, poll_seconds=600)
    with kept.prefetching(Frontier({"p": at}, {})) as prefetcher:
        steps_of(prefetcher, {"p": at}, 1)
        wait_until(lambda: asked[-1][2] > time.time_ns(), "no window looks ahead")
    assert asked[-1][2] > time.time_ns()
    (thread,) = reader_threads()
    assert thread.is_alive()


def test_a_partition_at_another_position_is_queried_again_and_the_others_continue(pool: Make) -> None:
    begin = Position(time.time_ns())
    kept, asked = pool(beats)
    with kept.prefetching(Frontier({"a": begin, "b": begin}, {})) as prefetcher:
        steps = caught_up_after(prefetcher, {"a": begin, "b": begin}, 4)
    at = {step.token: position(step) for step in steps}
    assert set(at) == {"a", "b"}
    with kept.prefetching(Frontier({"a": at["a"], "b": begin}, {})) as again:  # of b, the bundle is repeated
        assert again is prefetcher
        again_steps = steps_of(again, {"a": at["a"], "b": begin}, 6)
    first = {step.token: position(step) for step in reversed(again_steps)}
    assert first["a"] > at["a"]
    assert [start for token, start, _ in asked if token == "b"].count(begin.timestamp) == 2
    assert [start for token, start, _ in asked if token == "a"].count(begin.timestamp) == 1


def test_a_partition_that_the_bundle_does_not_ask_for_is_dropped_with_its_credit(pool: Make) -> None:
    begin = Position(time.time_ns())
    kept, asked = pool(beats)
    with kept.prefetching(Frontier({"a": begin, "b": begin}, {})) as prefetcher:
        steps = caught_up_after(prefetcher, {"a": begin, "b": begin}, 4)
    at = {step.token: position(step) for step in steps}
    with kept.prefetching(Frontier({"a": at["a"]}, {})) as again:
        assert again is prefetcher
        steps_of(again, {"a": at["a"]}, 3)
        time.sleep(0.1)
        count = sum(token == "b" for token, _, _ in asked)
        assert {step.token for step in steps_of(again, {"a": at["a"]}, 4)} == {"a"}
        assert sum(token == "b" for token, _, _ in asked) == count


@pytest.mark.parametrize("further", [0, 1])
def test_a_bundle_repeated_from_before_an_announcement_gets_the_announcement_again(
    pool: Make, further: int
) -> None:
    """An announcement does not change its partition's position, and two queries may order records of one timestamp
    differently. So the position does not say whether the child is known."""
    start = time.time_ns() - 1_000 * MILLI

    def splits(token: str, begin: int, end: int) -> Iterator[Any]:
        yield heartbeat(start + 1)
        yield children(start + 1, "p", "child")
        yield heartbeat(start + 2)

    kept, _ = pool(splits)
    with kept.prefetching(Frontier({"p": Position(start)}, {})) as prefetcher:
        (advanced,) = steps_of(prefetcher, {"p": Position(start)}, 1)
    at = {"p": position(advanced)}
    with kept.prefetching(Frontier(at, {})) as prefetcher:
        announced, *_ = steps_of(prefetcher, at, 1 + further)
    assert isinstance(announced, Announced)
    again = {"p": Position(start + 1 + further)}  # the bundle was lost, and with it that the child is known
    with kept.prefetching(Frontier(again, {})) as prefetcher:
        assert steps_of(prefetcher, again, 1) == [announced]


def test_two_bundles_at_once_have_two_prefetchers(pool: Make) -> None:
    a, b = {"a": Position(time.time_ns())}, {"b": Position(time.time_ns())}
    kept, _ = pool(beats)
    with kept.prefetching(Frontier(a, {})) as first, kept.prefetching(Frontier(b, {})) as second:
        assert first is not second
        at_a = {"a": position(caught_up_after(first, a, 1)[0])}
        at_b = {"b": position(caught_up_after(second, b, 1)[0])}
    with kept.prefetching(Frontier(at_b, {})) as again:
        assert again is second
        with kept.prefetching(Frontier(at_a, {})) as other:
            assert other is first
            with kept.prefetching(Frontier(at_a, {})) as third:
                assert third is not first, "a second read of the same partitions has its own prefetcher"


def test_a_bundle_of_another_part_stops_parked_prefetchers(pool: Make) -> None:
    """Another worker reads that part now, and two readers would ask for everything twice."""
    a, b = {"a": Position(time.time_ns())}, {"b": Position(time.time_ns())}
    kept, asked = pool(beats)
    with kept.prefetching(Frontier(a, {})) as prefetcher:
        steps_of(prefetcher, a, 1)
    with kept.prefetching(Frontier(b, {})) as other:
        time.sleep(0.1)  # what it asked last may still run
        count = sum(token == "a" for token, _, _ in asked)
        steps_of(other, b, 5)
    assert sum(token == "a" for token, _, _ in asked) == count
    assert prefetcher.ended


def test_a_partition_that_is_behind_is_dropped_when_the_bundle_ends() -> None:
    """Otherwise each worker would ask a slow service again for rows that another worker is being sent."""

    def answer(token: str, begin: int, end: int) -> Iterator[Any]:
        if token == "live":
            yield heartbeat(end)
            return
        while not of_behind()[0].cancelled_at:
            time.sleep(0.005)
        raise UnreachableError("cancelled")

    def of_behind() -> list[FakeCall]:
        return [window for (token, _, _), window in zip(asked, windows, strict=True) if token == "behind"]

    ask, asked, windows = calls_of(answer)
    kept = StreamPool(1 << 20, lambda ahead: Prefetcher(ask, new_backoff(), limits(), None, ahead=ahead))
    partitions = {"behind": Position(time.time_ns() - 60_000 * MILLI), "live": Position(time.time_ns())}
    with kept.prefetching(Frontier(partitions, {})) as prefetcher:
        at = {step.token: position(step) for step in steps_of(prefetcher, partitions, 3)}
        assert not of_behind()[0].cancelled_at
    time.sleep(0.1)
    (window,) = of_behind()
    assert window.cancelled_at
    with kept.prefetching(Frontier({**partitions, **at}, {})) as again:
        assert again is prefetcher
    prefetcher.close()


@pytest.mark.parametrize(("age_seconds", "is_behind"), [(60, True), (0, False)])
def test_a_partition_that_has_just_begun_is_not_a_backlog(
    pool: Make, age_seconds: int, is_behind: bool
) -> None:
    """With many partitions one has just begun at nearly any time, and epochs would always be long."""

    def answers_late(token: str, begin: int, end: int) -> Iterator[Any]:
        time.sleep(0.3)
        yield heartbeat(end)

    kept, _ = pool(answers_late)
    at = {"p": Position(time.time_ns() - age_seconds * 1_000 * MILLI)}
    with kept.prefetching(Frontier(at, {})) as prefetcher:
        prefetcher.serve(Frontier(at, {}))
        assert prefetcher.is_behind is is_behind
        assert not prefetcher.may_stop


def test_an_error_in_the_bundle_ends_its_threads(pool: Make) -> None:
    at = {"p": Position(time.time_ns())}
    kept, _ = pool(beats)
    with pytest.raises(ArithmeticError), kept.prefetching(Frontier(at, {})) as prefetcher:
        steps_of(prefetcher, at, 1)
        raise ArithmeticError
    assert reader_threads() == []


def test_a_failure_of_a_parked_prefetcher_is_raised_in_the_next_bundle(pool: Make) -> None:
    start = time.time_ns() - 1_000 * MILLI

    def breaks(token: str, begin: int, end: int) -> Iterator[Any]:
        yield heartbeat(start + 1)
        time.sleep(0.1)
        raise LookupError("broken window")

    kept, _ = pool(breaks)
    with kept.prefetching(Frontier({"p": Position(start)}, {})) as prefetcher:
        (step,) = steps_of(prefetcher, {"p": Position(start)}, 1)
    time.sleep(0.2)
    with (
        pytest.raises(LookupError, match="broken window"),
        kept.prefetching(Frontier({"p": position(step)}, {})) as again,
    ):
        steps_of(again, {"p": position(step)}, 1)


@pytest.mark.parametrize("flood", [False, True])
def test_a_parked_prefetcher_that_no_bundle_asks_for_ends_and_releases_its_credit(
    pool: Make, flood: bool
) -> None:
    def many(token: str, begin: int, end: int) -> Iterator[Any]:
        for step in range(1, 1_000 if flood else 2):
            yield heartbeat(begin + step)

    at = {"p": Position(time.time_ns() - 1_000 * MILLI)}
    kept, _ = pool(many, idle_stream_seconds=0.2, buffer_bytes=2_000)
    with kept.prefetching(Frontier(at, {})) as prefetcher:
        (step,) = steps_of(prefetcher, at, 1)
    wait_until(lambda: not reader_threads(), reader_threads)
    assert prefetcher._state.queued_bytes == 0
    with kept.prefetching(Frontier({"p": position(step)}, {})) as again:
        assert again is not prefetcher


def test_no_prefetcher_is_parked_without_idle_seconds_or_without_work(pool: Make) -> None:
    at = {"p": Position(time.time_ns())}
    kept, _ = pool(beats, idle_stream_seconds=0)
    with kept.prefetching(Frontier(at, {})) as prefetcher:
        steps_of(prefetcher, at, 1)
    assert reader_threads() == []

    def ends(token: str, begin: int, end: int) -> Iterator[Any]:
        yield children(begin, "p", "child")

    kept, _ = pool(ends)
    with kept.prefetching(Frontier(at, {})) as prefetcher:
        steps_of(prefetcher, at, 2)
    assert reader_threads() == []


def test_all_prefetchers_of_a_process_share_one_budget(pool: Make) -> None:
    """Each may hold one message of each of its partitions beyond it, so that none starves."""

    def flood(token: str, begin: int, end: int) -> Iterator[Any]:
        for step in range(1, 1_000):
            yield heartbeat(begin + step)

    message = len(heartbeat(1).SerializeToString())
    budget = 20 * message
    a, b = {"a": Position(time.time_ns() - 1_000 * MILLI)}, {"b": Position(time.time_ns() - 1_000 * MILLI)}
    shared, _ = pool(flood, buffer_bytes=budget)
    with shared.prefetching(Frontier(a, {})) as first, shared.prefetching(Frontier(b, {})) as second:
        first.read(a)
        second.read(b)
        wait_until(lambda: first._state.queued_bytes and second._state.queued_bytes)
        wait_until(lambda: first._state.queued_bytes + second._state.queued_bytes >= budget - 2 * message)
        queued = [prefetcher._state.queued_bytes for prefetcher in (first, second)]
    assert sum(queued) <= budget + 2 * message
