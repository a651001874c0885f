"""The service's clock: real, fast, set off, or standing still until it is told to move.

    Clock()                     the system's time
    Clock(speed=100)            a second lasts ten milliseconds
    Clock(speed=0, start=…)     stands still; `advance` moves it

A clock never goes back, with any offset: timestamps of commits only rise.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock_emulators.simulated_spanner.timestamp import SECOND


class Clock:
    """Tells the moment in nanoseconds since 1970."""

    def __init__(
        self,
        *,
        speed: float = 1.0,
        start: int | None = None,
        offset: int = 0,
        source: Callable[[], int] = time.time_ns,
    ) -> None:
        """`start` is the moment now (the system's, if None), `offset` is added to every moment."""
        self._source = source
        self._speed = speed
        self._origin = source()
        self._base = self._origin if start is None else start
        self._offset = offset
        self._latest = 0

    def now(self) -> int:
        """Return the present moment; never below one returned before."""
        passed = self._source() - self._origin
        moment = self._base + (passed if self._speed == 1 else int(passed * self._speed)) + self._offset
        # A negative offset stops the clock until the source has caught up.
        self._latest = max(self._latest, moment)
        return self._latest

    def advance(self, nanoseconds: int) -> None:
        """Jump ahead."""
        self._base += nanoseconds

    def set_offset(self, nanoseconds: int) -> None:
        """Be ahead of the source by so much (behind, if negative), as a machine with a wrong clock is."""
        self._offset = nanoseconds

    def set_speed(self, speed: float) -> None:
        """Run `speed` times as fast as the source from now on; 0 stands still."""
        moment = self.now()
        self._origin, self._base, self._speed = self._source(), moment - self._offset, speed

    def seconds_until(self, moment: int) -> float | None:
        """Return how long a caller has to wait until `moment`; None: until the clock is moved."""
        missing = moment - self.now()
        if missing <= 0:
            return 0.0
        return missing / SECOND / self._speed if self._speed else None
