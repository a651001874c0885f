"""When a reader's call returns, with a runner's pace and without, in virtual time."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from penstock.io.change_streams import turn as module
from penstock.io.change_streams.metrics import ReaderMetrics
from penstock.io.change_streams.prefetch import Traffic
from penstock.io.change_streams.tracker import Poll
from penstock.io.change_streams.turn import POLL_SECONDS, Turn
from penstock.pace import Pace, current_pace, reading_at


class Clock:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Batch:
    """One record."""

    ends_with_lineage = False
    claimed = 0

    def claims(self) -> Any:
        return iter([(1, ["record"], "step")])


class Prefetcher:
    """Has what is put into `ready`, and otherwise lets the time pass."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ready: deque[Batch] = deque()
        self.waits: list[float] = []
        self.data_expected = self.first_record_pending = False
        self.may_stop = True
        self.is_behind = False

    def take(self, timeout: float) -> Any:
        if self.ready:
            return self.ready.popleft()
        self.waits.append(timeout)
        self._clock.now += timeout
        return None

    def uncounted(self) -> Traffic:
        return Traffic()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def turn_of(prefetcher: Any, pace: Pace | None) -> tuple[Turn, ReaderMetrics]:
    metrics = ReaderMetrics(prefetcher)
    return Turn(prefetcher, metrics, 10.0, pace), metrics


def take_round(turn: Turn, metrics: ReaderMetrics) -> int:
    """Claim the batches of one round; return how many records they had."""
    count = 0
    for batch in turn.batches():
        for number, records, step in batch.claims():
            metrics.claimed(records, step)
            batch.claimed += number
            count += len(records)
    return count


def test_a_reader_with_a_pace_returns_as_soon_as_it_has_emitted_what_is_at_hand(clock: Clock) -> None:
    prefetcher = Prefetcher(clock)
    prefetcher.ready.extend([Batch(), Batch()])
    turn, metrics = turn_of(prefetcher, Pace(clock.now + 5))
    assert take_round(turn, metrics) == 2
    assert turn.over
    assert prefetcher.waits == [0.0], "it does not wait for more"


def test_a_reader_whose_pace_lets_it_not_return_ends_by_a_split(clock: Clock) -> None:
    prefetcher = Prefetcher(clock)
    prefetcher.ready.extend([Batch(), Batch()])
    turn, metrics = turn_of(prefetcher, Pace(clock.now + 5, may_return=False))
    assert take_round(turn, metrics) == 2
    assert not turn.over


def test_a_reader_with_a_pace_waits_for_data_until_its_idle_deadline(clock: Clock) -> None:
    prefetcher = Prefetcher(clock)
    turn, metrics = turn_of(prefetcher, Pace(clock.now + 0.12))
    while not turn.over:
        take_round(turn, metrics)
    assert prefetcher.waits == pytest.approx([POLL_SECONDS, POLL_SECONDS, 0.02])


@pytest.mark.parametrize("reason", ["may_stop", "data_expected", "first_record_pending"])
def test_a_reader_stays_while_its_return_would_discard_a_request_and_does_not_spin(
    clock: Clock, reason: str
) -> None:
    prefetcher = Prefetcher(clock)
    prefetcher.ready.append(Batch())
    setattr(prefetcher, reason, reason != "may_stop")
    turn, metrics = turn_of(prefetcher, Pace(clock.now))
    for _ in range(5):
        take_round(turn, metrics)
        assert not turn.over
    assert prefetcher.waits.count(0.0) <= 1
    setattr(prefetcher, reason, reason == "may_stop")
    take_round(turn, metrics)
    assert turn.over


def test_a_reader_without_a_pace_reads_until_it_is_split(clock: Clock) -> None:
    prefetcher = Prefetcher(clock)
    prefetcher.ready.append(Batch())
    turn, metrics = turn_of(prefetcher, None)
    for _ in range(5):
        take_round(turn, metrics)
        assert not turn.over
    assert set(prefetcher.waits) == {POLL_SECONDS}


def test_a_poll_expects_no_data_after_the_time_of_deferral(clock: Clock) -> None:
    prefetcher = Prefetcher(clock)
    prefetcher.data_expected = True
    turn, _ = turn_of(prefetcher, None)
    polls: list[Poll] = []
    for _ in range(2):
        polls += [step for batch in turn.batches() for _, _, step in batch.claims()]
        clock.now += 10
    assert [poll.data_expected for poll in polls] == [True, False]


def test_the_pace_belongs_to_the_bundle_that_runs() -> None:
    assert current_pace() is None
    with reading_at(Pace(1.0)):
        assert current_pace() == Pace(1.0)
    assert current_pace() is None


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_reader_tells_its_pace_whether_it_is_behind(clock, is_behind):
    prefetcher = Prefetcher(clock)
    prefetcher.is_behind = is_behind
    pace = Pace(clock.now, is_behind=not is_behind)
    turn, metrics = turn_of(prefetcher, pace)
    prefetcher.ready.append(Batch())
    take_round(turn, metrics)
    assert pace.is_behind is is_behind
