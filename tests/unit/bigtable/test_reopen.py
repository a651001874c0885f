"""A waiting segment asks the service soon, and then less and less often."""

from __future__ import annotations

from penstock.io.bigtable.keys import EVERYTHING, KeyRange
from penstock.io.bigtable.reopen import MAX_WAIT_SECONDS, ReopenSchedule

LOW = KeyRange(b"", b"m")


def seconds_until_due(stalls: ReopenSchedule, now: list[float], waiting: dict[KeyRange, KeyRange]) -> float:
    started = now[0]
    while not stalls.due(waiting):
        now[0] += 0.01
        assert now[0] < started + 60
    return now[0] - started


def test_a_segment_asks_after_the_first_wait_and_waits_twice_as_long_each_time() -> None:
    now = [0.0]
    stalls = ReopenSchedule(0.05, lambda: now[0])
    waits = [seconds_until_due(stalls, now, {LOW: EVERYTHING}) for _ in range(9)]
    assert [round(wait, 1) for wait in waits[:5]] == [0.1, 0.1, 0.2, 0.4, 0.8]
    assert MAX_WAIT_SECONDS <= waits[-1] <= MAX_WAIT_SECONDS + 0.02


def test_a_segment_with_another_target_asks_after_the_first_wait_again() -> None:
    now = [0.0]
    stalls = ReopenSchedule(0.05, lambda: now[0])
    for _ in range(5):
        seconds_until_due(stalls, now, {LOW: EVERYTHING})
    assert seconds_until_due(stalls, now, {LOW: KeyRange(b"", b"z")}) < 0.07


def test_segments_that_have_not_waited_for_a_while_are_forgotten() -> None:
    now = [0.0]
    stalls = ReopenSchedule(0.05, lambda: now[0])
    stalls.due({KeyRange(b"", bytes([n, 1])): EVERYTHING for n in range(200)})
    now[0] = 60
    stalls.due({LOW: EVERYTHING})
    assert len(stalls._waits) == 1
