"""The time of the Spanner service, as this process knows it.

A query that ends ahead of the service's time runs until that time has come, and a query that ends before it
leaves changes unread. So a reader that plans its queries by the wall clock of this computer depends on that
clock: set back by a day, it reads only what is older than a day. The reader plans by the service's time instead,
which it asks for with `SELECT CURRENT_TIMESTAMP`, and counts on from there with a clock that is never set.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.io.change_streams.status import UnreachableError
from penstock.timestamps import NANOS

_SYNCHRONIZED_SECONDS = 60
"""How long an answer is used. Monotonic clocks stand still while a computer is suspended."""
_RETRY_SECONDS = 1
"""Time after which the service is asked for its time again, if it did not answer."""


class ServiceClock:
    """Nanoseconds since 1970 by the clock of the service. Safe for threads.

    Before the service has answered once, the wall clock of this process takes its place.
    """

    def __init__(
        self,
        ask: Callable[[], int],
        *,
        behind: int = 0,
        wall: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`ask` returns the service's time, or raises an UnreachableError.

        `behind`: nanoseconds by which `now` stays behind the service's time.
        """
        self._ask = ask
        self.behind = behind
        self._monotonic = monotonic
        # The difference of the two clocks, so that `now` is one addition.
        self._offset = wall() - monotonic()
        self._next_ask = monotonic()
        self._asking = threading.Lock()

    def now(self) -> int:
        """Return the service's time, minus `behind`."""
        return self._offset + self._monotonic() - self.behind

    def synchronize(self) -> None:
        """Ask the service for its time if the last answer is old.

        If the service cannot be reached, the clock counts on as before. The queries of the reader report the outage.
        """
        # One thread asks; the others use the old offset, which is at most a minute old.
        if self._monotonic() < self._next_ask or not self._asking.acquire(blocking=False):
            return
        try:
            # Set before the call: threads that come during an outage do not all wait for a timeout.
            self._next_ask = self._monotonic() + _RETRY_SECONDS * NANOS
            before = self._monotonic()
            asked = self._ask()
            after = self._monotonic()
        except UnreachableError:
            return
        finally:
            self._asking.release()
        # The service answers somewhere between the call and its return.
        self._offset = asked - (before + after) // 2
        self._next_ask = after + _SYNCHRONIZED_SECONDS * NANOS
