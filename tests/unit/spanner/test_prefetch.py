"""The threads, with windows made by hand instead of queries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from penstock.errors import UnavailableError
from penstock.io.change_streams.status import UnreachableError
from penstock.io.change_streams.turn import Turn
from penstock.io.spanner.frontier import Advanced, Ended, Frontier
from penstock.io.spanner.metrics import SpannerMetrics
from penstock.io.spanner.position import Position
from penstock.io.spanner.prefetch import Prefetcher
from penstock.io.spanner.tracker import SpannerTracker
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.unit.spanner.calls import (
    MILLI,
    FakeCall,
    beats,
    calls_of,
    heartbeat,
    limits,
    new_backoff,
    opened,
    reader_threads,
    taken,
)


def test_an_idle_partition_is_queried_again_from_its_last_heartbeat() -> None:
    start = time.time_ns()
    prefetcher, asked, _ = opened(beats)
    with closing(prefetcher):
        prefetcher.read({"p": Position(start)})
        batches = taken(prefetcher, 0.3)
    seconds = (time.time_ns() - start) / 1e9
    assert all(isinstance(step, Advanced) for batch in batches for _, step in batch.steps)
    assert [begin for _, begin, _ in asked] == [start, *[end for _, _, end in asked[:-1]]]
    assert 4 <= len(asked) <= seconds / 0.04 + 2, "one query per poll, neither idle nor spinning"


def test_the_first_query_covers_only_past_time_and_later_ones_look_ahead() -> None:
    """A window of the emulator sends at its end: existing records must not wait for later ones."""
    start = time.time_ns() - 15_000 * MILLI
    prefetcher, asked, _ = opened(beats, poll_seconds=0.1)
    with closing(prefetcher):
        prefetcher.read({"p": Position(start)})
        begun = time.time_ns()
        taken(prefetcher, 0.4)
    passed = [end for _, _, end in asked if end < begun + 50 * MILLI]
    assert len(passed) == 2, "ten seconds of history, then the rest of it"
    later = [(begin, end) for _, begin, end in asked if end not in passed]
    assert len(later) >= 2
    assert all(end - begin > 90 * MILLI for begin, end in later)


def test_all_partitions_are_read_with_fewer_threads_than_partitions() -> None:
    start = time.time_ns()
    prefetcher, _, _ = opened(beats, max_concurrent_partitions=2)
    with closing(prefetcher):
        prefetcher.read({f"p{number}": Position(start) for number in range(6)})
        assert len(reader_threads()) == 2
        tokens = {batch.token for batch in taken(prefetcher, 0.6)}
    assert tokens == {f"p{number}" for number in range(6)}


def test_the_lowest_partition_is_read_first() -> None:
    now = time.time_ns()
    prefetcher, _, _ = opened(beats)
    with closing(prefetcher):
        prefetcher.read({"high": Position(now - 5 * MILLI), "low": Position(now - 9_000 * MILLI)})
        time.sleep(0.15)
        first = prefetcher.take(0.5)
    assert first is not None
    assert first.token == "low"


def test_a_partition_read_to_the_end_is_not_queried_again() -> None:
    end = time.time_ns()
    prefetcher, asked, _ = opened(beats, end=end)
    with closing(prefetcher):
        prefetcher.read({"p": Position(end - MILLI)})
        steps = [step for batch in taken(prefetcher, 0.2) for _, step in batch.steps]
    assert steps == [Advanced("p", Position(end)), Ended("p")]
    assert len(asked) == 1


def test_an_error_of_a_thread_is_raised_in_the_consumer() -> None:
    def fails(token: str, start: int, end: int) -> Iterator[Any]:
        yield heartbeat(end)
        raise LookupError("broken window")

    prefetcher, _, _ = opened(fails)
    with closing(prefetcher):
        prefetcher.read({"p": Position(time.time_ns())})
        with pytest.raises(LookupError, match="broken window"):
            taken(prefetcher, 1.0)
    assert not reader_threads()


def test_closing_ends_every_thread_and_cancels_no_running_query() -> None:
    prefetcher, _, windows = opened(beats, poll_seconds=0.1)
    prefetcher.read({f"p{number}": Position(time.time_ns()) for number in range(4)})
    taken(prefetcher, 0.25)
    prefetcher.close()
    assert not reader_threads()
    assert not any(window.cancelled_at for window in windows)


def test_a_query_that_does_not_end_is_cancelled_after_its_end_time() -> None:
    def endless(token: str, start: int, end: int) -> Iterator[Any]:
        while True:
            time.sleep(0.01)
            yield heartbeat(time.time_ns())

    prefetcher, _, windows = opened(endless)
    prefetcher.read({"p": Position(time.time_ns())})
    taken(prefetcher, 0.1)
    prefetcher.close()
    assert not reader_threads()
    (window,) = windows
    assert window.cancelled_at > window._end


def test_a_silent_query_is_cancelled_after_its_grace_period() -> None:
    def silent(token: str, start: int, end: int) -> Iterator[Any]:
        while not windows[0].cancelled_at:
            time.sleep(0.01)
        raise UnreachableError("cancelled")
        yield

    prefetcher, _, windows = opened(silent)
    prefetcher.read({"p": Position(time.time_ns())})
    time.sleep(0.05)
    prefetcher.close()
    assert not reader_threads()
    assert windows[0].cancelled_at > windows[0]._end + 400 * MILLI


def test_closing_frees_threads_that_wait_for_credit() -> None:
    def floods(token: str, start: int, end: int) -> Iterator[Any]:
        for step in range(1, 100_000):
            yield heartbeat(start + step)

    prefetcher, _, _ = opened(floods, buffer_bytes=2_000)
    prefetcher.read({"p": Position(time.time_ns() - 1_000 * MILLI)})
    time.sleep(0.2)
    assert prefetcher._state.queued_bytes < 4_000
    prefetcher.close()
    assert not reader_threads()


def test_prefetched_data_stays_within_the_budget() -> None:
    def many(token: str, start: int, end: int) -> Iterator[Any]:
        for step in range(1, 300):
            yield heartbeat(start + step)

    prefetcher, asked, _ = opened(many, buffer_bytes=4_000, max_concurrent_partitions=2)
    with closing(prefetcher):
        prefetcher.read({f"p{number}": Position(time.time_ns() - 1_000 * MILLI) for number in range(20)})
        time.sleep(0.2)
        assert prefetcher._state.queued_bytes < 4_000 + 2 * 2_000
        assert len(asked) < 20, "no query may start while the budget is used up"
        positions: dict[str, int] = {}
        deadline = time.monotonic() + 30
        while len(positions) < 20 and time.monotonic() < deadline:
            for batch in taken(prefetcher, 0.5):
                positions[batch.token] = positions.get(batch.token, 0) + len(batch.steps)
    assert len(positions) == 20, "everybody gets a turn when the consumer takes"


def test_transient_errors_are_retried_from_the_last_record_with_pauses() -> None:
    def breaks_once(token: str, start: int, end: int) -> Iterator[Any]:
        if len(asked) < 3:
            yield heartbeat(start + 1)
            raise UnreachableError("UNAVAILABLE")
        yield heartbeat(end)

    start = time.time_ns() - 50 * MILLI
    prefetcher, asked, _ = opened(breaks_once)
    with closing(prefetcher):
        prefetcher.read({"p": Position(start)})
        taken(prefetcher, 0.5)
    assert [begin for _, begin, _ in asked[:3]] == [start, start + 1, start + 2]
    assert prefetcher.uncounted()[:2] == (len(asked), 2)


def test_an_unavailable_service_is_retried_with_backoff_and_fails_after_the_timeout() -> None:
    def dead(token: str, start: int, end: int) -> Iterator[Any]:
        raise UnreachableError("connection refused")
        yield

    prefetcher, asked, _ = opened(dead, unavailable_seconds=0.8)
    with closing(prefetcher):
        prefetcher.read({f"p{number}": Position(time.time_ns()) for number in range(8)})
        with pytest.raises(UnavailableError, match="connection refused"):
            taken(prefetcher, 5)
    assert len(asked) < 60


@pytest.mark.parametrize("after", [0.0, 0.005])
def test_a_partition_that_alone_is_refused_is_retried_with_growing_pauses(after: float) -> None:
    def refused(token: str, start: int, end: int) -> Iterator[Any]:
        if token == "bad":
            time.sleep(after)
            raise UnreachableError("not now")
        backoff.answered()  # as the client does
        yield heartbeat(end)

    backoff = new_backoff()
    ask, asked, _ = calls_of(refused)
    with closing(Prefetcher(ask, backoff, limits(unavailable_seconds=60), None)) as prefetcher:
        prefetcher.read({"bad": Position(time.time_ns() - MILLI), "good": Position(time.time_ns())})
        taken(prefetcher, 1.0)
    queries = [token for token, _, _ in asked]
    assert 3 <= queries.count("bad") <= 12
    assert queries.count("good") >= 8, "the others go on"


def test_a_bundle_is_not_split_before_the_lowest_partition_has_advanced() -> None:
    def slow_history(token: str, start: int, end: int) -> Iterator[Any]:
        if token == "slow":
            time.sleep(0.4)
        yield heartbeat(end)

    position = Position(time.time_ns() - 5000 * MILLI)
    tracker = SpannerTracker(Frontier({"slow": position, "quick": Position(time.time_ns())}, {}))
    prefetcher, _, _ = opened(slow_history)
    with closing(prefetcher):
        prefetcher.read(tracker.current_restriction().open)
        residual, quick = None, 0
        until = time.monotonic() + PATIENCE_SECONDS
        turn = Turn(prefetcher, SpannerMetrics(prefetcher), PATIENCE_SECONDS, None)
        while residual is None and time.monotonic() < until:
            for batch in turn.batches():
                for count, _, step in batch.claims():
                    assert tracker.try_claim(step)
                    batch.claimed += count
                    quick += isinstance(step, Advanced) and step.token == "quick"
            residual = (tracker.try_split(0) or (None, None))[1]
    assert quick, "others had claims to be cut after"
    assert residual is not None
    assert residual.open["slow"].timestamp > position.timestamp


def test_a_refused_lowest_partition_does_not_delay_a_split() -> None:
    def refused(token: str, start: int, end: int) -> Iterator[Any]:
        raise UnreachableError("not now")
        yield

    backoff = new_backoff()
    ask, asked, _ = calls_of(refused)
    with closing(Prefetcher(ask, backoff, limits(unavailable_seconds=60), None)) as prefetcher:
        prefetcher.read({"bad": Position(time.time_ns() - 5000 * MILLI)})
        wait_until(lambda: len(asked) > 1)
        backoff.answered()  # by another partition
        assert not prefetcher.first_record_pending


def test_a_clock_behind_the_service_does_not_make_the_reader_spin() -> None:
    def ends_at_once(token: str, start: int, end: int) -> Iterator[Any]:
        yield heartbeat(end)

    asked: list[int] = []

    class Instant(FakeCall):
        def __iter__(self) -> Iterator[Any]:
            yield from (message.SerializeToString() for message in self._messages)

    def ask(token: str, start: int, end: int) -> FakeCall:
        asked.append(end)
        return Instant(ends_at_once(token, start, end), end)

    with closing(Prefetcher(ask, new_backoff(), limits(), None)) as prefetcher:
        prefetcher.read({"p": Position(time.time_ns())})
        taken(prefetcher, 0.4)
    assert 5 <= len(asked) <= 12
