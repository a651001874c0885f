"""Since when the service has not answered, and when to ask it again: back-off with jitter, clock injected."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.io.change_streams.status import UnreachableError

Answer = TypeVar("Answer")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds; the pause doubles from one to the other, and each is drawn from its upper half."""


class Backoff:
    """One service as all reader threads of a process see it. Times are seconds of `clock`.

    A failure while a pause runs belongs to the same attempt, so that many threads do not make the pause grow
    faster than one. The object outlives `process` calls: a reader that is cut every half second must still
    find out that the service has been gone for a minute.
    """

    def __init__(
        self,
        service: str,
        error: type[Exception],
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._service = service
        self._error = error
        self._clock = clock
        self._draw = draw
        self._lock = threading.Lock()
        self._since: float | None = None
        self._pause = 0.0
        self._not_before = 0.0

    def answered(self) -> None:
        """Forget the outage: the service has sent something."""
        if self._since is not None:
            with self._lock:
                self._since, self._pause, self._not_before = None, 0.0, 0.0

    def failed(self, reason: str, timeout: float) -> None:
        """Note a failed attempt and lengthen the pause.

        Raises:
            the error given at the start: the service has not answered for `timeout` seconds.
        """
        with self._lock:
            now = self._clock()
            self._since = now if self._since is None else self._since
            if now - self._since >= timeout:
                raise self._error(
                    f"{self._service} has not answered for {now - self._since:.0f} s "
                    f"(unavailable_seconds={timeout:g}). Start the same command again when it does. "
                    f"The last answer: {reason}"
                )
            if now >= self._not_before:
                self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
                self._not_before = now + self._draw(self._pause / 2, self._pause)

    def ask(self, question: Callable[[], Answer], unavailable_seconds: float) -> Answer:
        """Return the answer to `question`, asked again after a pause while it raises `UnreachableError`.

        Raises:
            the error given at the start: the service did not answer for `unavailable_seconds`.
            other errors of `question`, as they are.
        """
        while True:
            try:
                answer = question()
            except UnreachableError as error:
                self.failed(str(error), unavailable_seconds)
                time.sleep(self.remaining_pause())
            else:
                self.answered()
                return answer

    def remaining_pause(self) -> float:
        """Return the seconds to wait before the next attempt; 0 when there is no outage."""
        return max(0.0, self._not_before - self._clock()) if self._since is not None else 0.0
