"""The service's clock: real, fast, set off, standing still; never back."""

from __future__ import annotations

from penstock_emulators.simulated_spanner.clock import Clock


class Source:
    """A source of time that a test moves."""

    def __init__(self) -> None:
        self.moment = 1_000

    def __call__(self) -> int:
        return self.moment


def test_the_speed_scales_the_elapsed_time() -> None:
    source = Source()
    clock = Clock(speed=100, start=5_000, source=source)
    source.moment += 7
    assert clock.now() == 5_700
    assert clock.seconds_until(5_700 + 100 * 1_000_000_000) == 1.0
    clock.set_speed(0)
    source.moment += 7
    assert clock.now() == 5_700
    assert clock.seconds_until(5_701) is None
    assert clock.seconds_until(5_700) == 0.0
    clock.advance(300)
    assert clock.now() == 6_000


def test_a_clock_that_is_set_back_stops_until_it_has_caught_up() -> None:
    source = Source()
    clock = Clock(source=source)
    clock.set_offset(500)
    assert clock.now() == 1_500
    clock.set_offset(-100)
    assert clock.now() == 1_500
    source.moment += 700
    assert clock.now() == 1_600
