"""Pauses between requests grow while a service does not answer, and an outage that is too long is an error."""

from __future__ import annotations

import pytest

from penstock.errors import UnavailableError
from penstock.io.change_streams.backoff import MAX_PAUSE, Backoff


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def new_backoff() -> tuple[Backoff, Clock]:
    clock = Clock()
    return Backoff("Spanner", UnavailableError, clock, draw=lambda low, high: high), clock


def test_pauses_double_up_to_the_longest() -> None:
    service, clock = new_backoff()
    pauses = []
    for _ in range(9):
        service.failed("gone", 1e9)
        pauses.append(round(service.remaining_pause(), 6))
        clock.now += service.remaining_pause()
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, MAX_PAUSE, MAX_PAUSE]


def test_failures_of_other_threads_during_a_pause_do_not_lengthen_it() -> None:
    service, clock = new_backoff()
    service.failed("gone", 1e9)
    clock.now += 0.01
    service.failed("gone", 1e9)
    assert service.remaining_pause() == pytest.approx(0.04)


def test_an_answer_ends_the_outage() -> None:
    service, clock = new_backoff()
    service.failed("gone", 5)
    service.answered()
    assert service.remaining_pause() == 0
    clock.now += 60
    service.failed("gone again", 5)
    assert service.remaining_pause() == pytest.approx(0.05)


def test_the_timeout_counts_from_the_first_failure() -> None:
    service, clock = new_backoff()
    service.failed("refused", 5)
    clock.now += 4.9
    service.failed("refused", 5)
    clock.now += 0.1
    with pytest.raises(UnavailableError, match=r"not answered for 5 s \(unavailable_seconds=5\).*refused"):
        service.failed("refused", 5)
