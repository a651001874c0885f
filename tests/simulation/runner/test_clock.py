"""A stream continues when the wall clock is set back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import TimerSpec, on_timer
from apache_beam.utils.timestamp import Timestamp

from penstock.runner.protocol.coordinator import wall_clock_us
from penstock.runner.protocol.record import CommitRecord
from penstock.runner.tasks import epoch
from tests.integration.runner.sources import CountFn
from tests.simulation.stream import run_stream

HOUR_US = 3600 * 10**6
DAY_US = 24 * HOUR_US
SECOND_US = 10**6


def test_a_deferred_residual_does_not_wait_for_the_hour_by_which_the_clock_was_set_back() -> None:
    set_back, asked = [0], itertools.count()

    def after_the_first(record: CommitRecord, *_: object) -> None:
        set_back[0] = HOUR_US if record.epochs >= 2 else 0

    record = run_stream(
        lambda p: p | beam.Create([7]) | beam.ParDo(CountFn(10_000, 50, defer_every=10)),
        on_commit=after_the_first,
        now_us=lambda: wall_clock_us() - set_back[0],
        stop=lambda _: next(asked) > 40,
    )
    assert record.state.done


class Clock:
    """A settable wall clock of driver and tasks that advances by half a second at each reading."""

    def __init__(self) -> None:
        self.now_us = 100 * DAY_US
        self.run_us = 0

    def time_ns(self) -> int:
        self.now_us += SECOND_US // 2
        self.run_us += SECOND_US // 2
        return self.now_us * 1000


clock = Clock()
fired: list[tuple[str, int]] = []
"""Names of timers, and how long the clock had run when they fired."""


class _WaitFn(beam.DoFn):
    """Sets a timer for each key; the value is the delay in seconds."""

    TIMER = TimerSpec("timer", TimeDomain.REAL_TIME)

    def process(
        self, element: tuple[str, int], timer: Any = beam.DoFn.TimerParam(TIMER)
    ) -> Iterator[tuple[str, int]]:
        timer.set(Timestamp(micros=clock.now_us + element[1] * SECOND_US))
        yield from ()

    @on_timer(TIMER)
    def on_time(self, key: str = beam.DoFn.KeyParam) -> None:
        fired.append((key, clock.run_us // SECOND_US))


@pytest.mark.parametrize("set_back_us", [0, DAY_US])
def test_timers_keep_their_remaining_delay_when_the_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch, set_back_us: int
) -> None:
    clock.now_us, clock.run_us = 100 * DAY_US, 0
    fired.clear()
    monkeypatch.setattr(epoch, "time", clock)
    steps = [set_back_us]

    def set_back(record: CommitRecord, *_: object) -> None:
        if record.state.timers and steps:
            clock.now_us -= steps.pop()

    run_stream(
        lambda p: p | beam.Create([("soon", 8), ("later", 20)]) | beam.ParDo(_WaitFn()),
        on_commit=set_back,
        now_us=lambda: clock.time_ns() // 1000,
        stop=lambda _: clock.run_us > 120 * SECOND_US,
    )
    assert [key for key, _ in fired] == ["soon", "later"]
    assert all(delay <= at <= delay + 10 for (_, at), delay in zip(fired, (8, 20), strict=True)), fired
