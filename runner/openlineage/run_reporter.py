"""`RunReporter`: decides when an event of a run is sent, and sends it without holding up the driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Literal, Protocol

logger = logging.getLogger(__name__)

_LAST_SECONDS = 5.0
"""How long the end of a pipeline waits for its last event: the time limit of one request of the client's."""

Kind = Literal["START", "RUNNING", "COMPLETE", "ABORT", "FAIL"]

_KINDS: Mapping[str, Kind] = {"DONE": "COMPLETE", "DRAINED": "COMPLETE", "FAILED": "FAIL"}
"""The event for each state in which a pipeline ends. Other states are a stop or a cancel: `ABORT`."""


class Send(Protocol):
    """Makes and sends one event, now. It may take long and raise anything."""

    def __call__(self, kind: Kind, at: float, error: str) -> None: ...


class Reports(Protocol):
    """The calls of a pipeline when its run begins, after commits, and at its end. No call waits for a service."""

    def started(self) -> None: ...
    def committed(self) -> None: ...
    def ended(self, state: str, reason: str = "") -> None: ...


class NoReports:
    """The reports of a pipeline without `--openlineage`."""

    def started(self) -> None: ...
    def committed(self) -> None: ...
    def ended(self, state: str, reason: str = "") -> None: ...


class RunReporter:
    """Reports one run: START, at most one RUNNING in `seconds`, and one of COMPLETE, ABORT and FAIL.

    Events are sent by a thread in their order. An event that cannot be sent is dropped, and only the first one is
    logged: each later event says what the run reads and writes, and how far it is. No RUNNING waits behind another.

    Args:
        send: sends an event; `at` is in seconds since 1970.
        close: called in the thread after the last event.
        now: a wall clock. clock: a monotonic clock.
    """

    def __init__(
        self,
        send: Send,
        close: Callable[[], object] = lambda: None,
        *,
        seconds: float,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send, self._close = send, close
        self._seconds, self._now, self._clock = seconds, now, clock
        self._last = float("-inf")
        self._waiting: SimpleQueue[tuple[Kind, float, str] | None] = SimpleQueue()
        # Each number is written by one thread only: the driver counts what it gives, the thread what it has finished.
        self._given = self._finished = 0
        self._ended = threading.Event()
        self._failed = False
        # A daemon: a service that does not answer must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="penstock-openlineage", daemon=True)

    def started(self) -> None:
        """Report the start of the run."""
        self._thread.start()
        self._put("START")

    def committed(self) -> None:
        """Report the progress, unless the last event is too young or still being sent."""
        if self.is_idle() and self._clock() - self._last >= self._seconds:
            self._put("RUNNING")

    def is_idle(self) -> bool:
        """Return whether every event is sent or dropped."""
        return self._finished == self._given

    def ended(self, state: str, reason: str = "") -> None:
        """Report the end, and wait for some seconds until that is sent."""
        self._put(_KINDS.get(state, "ABORT"), reason if state == "FAILED" else "")
        # Behind the last event, so the thread sends that before it ends.
        self._waiting.put(None)
        if not self._ended.wait(_LAST_SECONDS):
            self._warn("the last events were not sent in time")

    def _put(self, kind: Kind, error: str = "") -> None:
        self._given += 1
        self._last = self._clock()
        self._waiting.put((kind, self._now(), error))

    def _run(self) -> None:
        try:
            while (event := self._waiting.get()) is not None:
                self._try(self._send, *event)
                self._finished += 1
            self._try(self._close)
        # Also after an error that is not an `Exception`: the end of the pipeline waits for this.
        finally:
            self._ended.set()

    def _try(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            call(*arguments)
        except Exception as error:
            # Only its type: the text of a client's error may have a URL with a key.
            self._warn(f"{type(error).__name__}; OPENLINEAGE_CLIENT_LOGGING=DEBUG shows more")

    def _warn(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            logger.warning(
                "OpenLineage did not get an event: %s. Events that cannot be sent are dropped; the pipeline is not "
                "affected",
                reason,
            )
