"""A reader plans its queries by the service's time, for any wall clock of its computer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.spanner.clock import ServiceClock
from penstock.io.spanner.frontier import Advanced, Frontier
from penstock.io.spanner.position import Position
from penstock.io.spanner.prefetch import Prefetcher
from penstock.io.spanner.query import Query
from penstock.io.spanner.read import ReadSpannerFn
from penstock.timestamps import parse_timestamp
from tests.unit.spanner.calls import MILLI, FakeCall, beats, new_backoff

SECOND = 1000 * MILLI
DAY = 86_400 * SECOND


class World:
    """A service's clock and the clocks of a computer that reads from it, moved by hand."""

    def __init__(self, wall: int) -> None:
        self.service, self.wall, self.monotonic = 10 * DAY, wall, 5 * SECOND
        self.asked = 0
        self.reachable = True
        self.clock = ServiceClock(self._ask, wall=lambda: self.wall, monotonic=lambda: self.monotonic)

    def pass_time(self, nanoseconds: int) -> None:
        self.service += nanoseconds
        self.wall += nanoseconds
        self.monotonic += nanoseconds

    def _ask(self) -> int:
        self.asked += 1
        self.pass_time(2 * MILLI)
        if not self.reachable:
            raise UnreachableError("UNAVAILABLE")
        answer = self.service
        self.pass_time(2 * MILLI)
        return answer


@pytest.mark.parametrize("wall", [9 * DAY, 10 * DAY, 11 * DAY])
def test_once_synchronized_the_clock_is_that_of_the_service(wall: int) -> None:
    world = World(wall)
    world.clock.synchronize()
    world.pass_time(7 * SECOND)
    assert world.clock.now() == world.service


def test_a_wall_clock_that_is_set_back_changes_nothing() -> None:
    world = World(10 * DAY)
    world.clock.synchronize()
    world.wall -= DAY
    world.pass_time(SECOND)
    assert world.clock.now() == world.service


def test_the_clock_is_synchronized_once_a_minute() -> None:
    world = World(10 * DAY)
    for _ in range(1000):
        world.clock.synchronize()
        world.pass_time(120 * MILLI)
    assert world.asked == 2


def test_while_the_service_is_unreachable_the_clock_continues_and_retries_soon() -> None:
    world = World(9 * DAY)
    world.reachable = False
    world.clock.synchronize()
    assert world.clock.now() == world.wall
    world.reachable = True
    world.pass_time(SECOND)
    world.clock.synchronize()
    assert world.clock.now() == world.service


class DayBehind:
    """A client of a service that is a day ahead of the wall clock of this computer.

    Its windows end by the real clock of this process, which plays the service's.
    """

    def __init__(self) -> None:
        self.backoff = new_backoff()
        self.clock = ServiceClock(time.time_ns, wall=lambda: time.time_ns() - DAY)

    def open(self, query: Query, position: str, seconds: float) -> FakeCall:
        values = {name: text for name, _, text in query.params}
        end = parse_timestamp(values["end_timestamp"] or "")
        return FakeCall(beats("p", 0, end), end)


@pytest.mark.parametrize("behind", [SECOND, DAY + 3600 * SECOND], ids=["tail", "history"])
def test_a_reader_whose_clock_is_a_day_behind_reads_up_to_the_time_of_the_service(
    monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    transform = ReadFromSpannerChangeStream(project="p", instance="i", database="d", change_stream="S")
    fn = ReadSpannerFn(transform._settings)
    monkeypatch.setattr(fn, "_client", lambda stream: DayBehind())
    start = time.time_ns()
    positions = {"p": Position(start - behind)}
    with fn._pool(transform.stream).prefetching(Frontier(positions, {})) as prefetcher, closing(prefetcher):
        prefetcher.read(positions)
        assert any(position >= start for position in _positions(prefetcher))


def _positions(prefetcher: Prefetcher) -> Iterator[int]:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        batch = prefetcher.take(0.02)
        if batch is not None:
            batch.claimed = len(batch.steps)
            yield from (step.position.timestamp for _, step in batch.steps if isinstance(step, Advanced))


def test_a_clock_stays_behind_the_service_by_the_time_asked_for() -> None:
    clock = ServiceClock(lambda: 1_000, behind=50, wall=lambda: 0, monotonic=lambda: 0)
    clock.synchronize()
    assert clock.now() == 950


def test_the_margin_ends_when_the_service_says_that_it_answers_whole_commits() -> None:
    clock = ServiceClock(lambda: 1_000, behind=50, wall=lambda: 0, monotonic=lambda: 0)
    clock.behind = 0
    clock.synchronize()
    assert clock.now() == 1_000
