"""Chooses how long a task that has nothing to read waits for data. Pure.

An epoch ends when its last task has ended. While data arrives, a task without data must not delay the output of the
other tasks, so it waits only a moment. While no data arrives, tasks wait longer: each epoch costs CPU time.
"""

from __future__ import annotations

_MIN_SECONDS = 0.02
"""Wait of a task without data while other tasks have data."""

_QUIET_SECONDS = 1.5
"""Wait of all tasks of a quiet pipeline. Its watermark is behind by this and the time of one epoch without work: about
2 s in all. Stops and drains wait as long."""

_QUIET_EPOCHS = 3
"""The same, as a multiple of `--epoch_seconds`: a user who makes epochs short wants a recent watermark."""


class Pacing:
    """Chooses the wait of the next epoch from what the last ones have read.

    It begins with the longest wait, is shortest after an epoch that read something, and doubles with each one that did
    not. It is no part of a record: it changes only when an epoch ends, and not what it contains.
    """

    def __init__(self, max_seconds: float, *, hurried: bool = True) -> None:
        """`hurried` False: every epoch is as long as it may be."""
        self._max_seconds = max_seconds
        self._is_quiet = False
        self._min_seconds = min(_MIN_SECONDS, max_seconds) if hurried else max_seconds
        self.idle_seconds = max_seconds

    @property
    def quiet_seconds(self) -> float:
        """How long tasks may wait if data at one of them ends the wait of all; 0: not longer than `idle_seconds`."""
        seconds = min(_QUIET_SECONDS, _QUIET_EPOCHS * self._max_seconds)
        return seconds if self._is_quiet and seconds > self._max_seconds else 0.0

    def observe(self, records_read: int) -> None:
        """Take in how many records an epoch has read."""
        # Quiet only after a whole longest wait without data: the next data is probably not near.
        self._is_quiet = not records_read and self.idle_seconds >= self._max_seconds
        longer = min(2 * self.idle_seconds, self._max_seconds)
        self.idle_seconds = self._min_seconds if records_read else longer
