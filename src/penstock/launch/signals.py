"""One request to stop out of the signals that people and supervisors send: SIGINT, SIGTERM, SIGHUP.

with StopSignals(abort).installed() as signals:
    ...
    if signals.requested: ...
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

BURST_SECONDS = 1.0
"""Signals within this time of the first one belong to the same request.

GNU `timeout` sends SIGTERM twice at one moment (to its child, then to the process group), and so do service managers
that signal a whole group. A person who presses Ctrl-C a second time wants to abort, and needs longer than this.
"""

_EXIT_CODE = 130
"""128 plus the number of SIGINT, as shells report it."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask for a stop.

    SIGHUP is left out if this process ignores it: `nohup` starts a program that way, so that it survives its terminal.
    """
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (
        (signal.SIGINT, signal.SIGTERM) if ignores_hangup else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    )


def exit_at_once() -> None:
    """Until `StopSignals` is installed, let every stop signal end this process with 130 and without a traceback.

    Python's default handler raises KeyboardInterrupt, which shows a traceback if it comes while modules are imported.
    """
    for number in stop_signals():
        signal.signal(number, lambda *_: os._exit(_EXIT_CODE))


def restore_defaults() -> None:
    """Undo `exit_at_once`, for programs that handle signals themselves."""
    for number in stop_signals():
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


class StopSignals:
    """The first signal requests a stop with a checkpoint, one after `BURST_SECONDS` or more calls `abort`.

    While `nothing_runs` is true there is nothing to stop. Then the first signal raises KeyboardInterrupt, so the
    process does not wait for a service that does not answer. `clock` returns seconds and never goes back.
    """

    def __init__(self, abort: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.nothing_runs = False
        self._abort = abort
        self._clock = clock
        self._first: float | None = None

    @property
    def requested(self) -> bool:
        """True after the first signal."""
        return self._first is not None

    def install(self) -> None:
        """Handle the stop signals. Call it again after code that may set its own handlers, as a Spark context does."""
        for number in stop_signals():
            signal.signal(number, self._received)

    @contextmanager
    def installed(self) -> Iterator[StopSignals]:
        """Handle the stop signals within a block and restore the previous handlers after it."""
        before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in stop_signals()}
        self.install()
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _received(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        if self._first is None:
            self._first = now
            if self.nothing_runs:
                raise KeyboardInterrupt
        elif now - self._first >= BURST_SECONDS:
            self._abort()
