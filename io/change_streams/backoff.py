"""Decides when to repeat a request that a service did not answer: back-off with jitter. The clock is injected."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.io.change_streams.status import UnreachableError

Answer = TypeVar("Answer")

MIN_PAUSE, MAX_PAUSE = 0.05, 5.0
"""Seconds. The pause doubles from the first to the longest, and each is drawn at random from its upper half."""


SAY_AFTER_SECONDS = 2.0
"""Time after which a caller that waits for an answer is told why."""

logger = logging.getLogger(__name__)


class Backoff:
    """The back-off of one service, for all reader threads of a process. Times are seconds of `clock`.

    Failures during a pause count as one attempt. So the pause does not grow faster when more threads ask.
    The object outlives `process` calls: a reader that is split every half second must still notice that the service
    has not answered for a minute.
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
        """End the back-off: the service has answered."""
        # Looked at without the lock first: readers call this for each message.
        if self._since is not None:
            with self._lock:
                self._since, self._pause, self._not_before = None, 0.0, 0.0

    def failed(self, reason: str, timeout: float) -> None:
        """Record a failed attempt and lengthen the pause.

        Raises:
            the error class given to the constructor: the service has not answered for `timeout` seconds.
        """
        with self._lock:
            now = self._clock()
            # The first failure of a row: the limit counts from there, through all pauses.
            self._since = now if self._since is None else self._since
            if now - self._since >= timeout:
                raise self._error(
                    f"{self._service} has not answered for {now - self._since:.0f} s "
                    f"(unavailable_seconds={timeout:g}). Start the same command again when it does. "
                    f"The last answer: {reason}"
                )
            # Threads that fail during a pause asked before it began: they say nothing new.
            if now >= self._not_before:
                self._pause = min(max(2 * self._pause, MIN_PAUSE), MAX_PAUSE)
                self._not_before = now + self._draw(self._pause / 2, self._pause)

    def ask(self, question: Callable[[], Answer], unavailable_seconds: float) -> Answer:
        """Return the answer to `question`, asked again after a pause while it raises `UnreachableError`.

        Raises:
            the error class given to the constructor: the service did not answer for `unavailable_seconds`.
            other errors of `question`, as they are.
        """
        said = False
        while True:
            try:
                answer = question()
            except UnreachableError as error:
                self.failed(str(error), unavailable_seconds)
                if not said and self._silent_seconds() >= SAY_AFTER_SECONDS:
                    said = True
                    text = "%s does not answer; it is asked again for %.0f s at most. The last answer: %s"
                    logger.warning(text, self._service, unavailable_seconds, error)
                time.sleep(self.remaining_pause())
            else:
                self.answered()
                return answer

    def _silent_seconds(self) -> float:
        return 0.0 if self._since is None else self._clock() - self._since

    def remaining_pause(self) -> float:
        """Return the seconds to wait before the next attempt; 0 while the service answers."""
        return max(0.0, self._not_before - self._clock()) if self._since is not None else 0.0
