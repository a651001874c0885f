"""Chooses how long tasks read, and how long a task that has nothing to read waits for data. Pure.

An epoch ends when its last task has ended. While data arrives, a task without data must not delay the output of the
other tasks, so it waits only a moment. While no data arrives, tasks wait longer: each epoch costs CPU time.

While a reader is behind its source, the age of its changes does not depend on the length of an epoch but on the pace of
the pipeline. Longer epochs then share the fixed cost between more changes.
"""

from __future__ import annotations

_MIN_SECONDS = 0.02
"""Wait of a task without data while other tasks have data."""

_QUIET_SECONDS = 1.5
"""Wait of all tasks of a quiet pipeline. Its watermark is behind by this and the time of one epoch without work: about
2 s in all. Stops and drains wait as long."""

_QUIET_EPOCHS = 3
"""The same, as a multiple of `--epoch_seconds`: a user who makes epochs short wants a recent watermark."""


_BACKLOG_EPOCHS = 4
"""Longest reading of a task, as a multiple of `--epoch_seconds`, while a reader is behind."""


class Pacing:
    """Chooses the times of the next epoch from what the last ones have read.

    The wait begins with the longest one, is shortest after an epoch that read something, and doubles with each one that
    did not. The reading doubles with each epoch after which a reader is behind, and is `--epoch_seconds` otherwise.
    Neither is part of a record: they change only when an epoch ends, and not what it contains.
    """

    def __init__(self, max_seconds: float, *, hurried: bool = True) -> None:
        """`hurried` False: every epoch is as long as it may be."""
        self._max_seconds = max_seconds
        self._without_data = 0
        self._min_seconds = min(_MIN_SECONDS, max_seconds) if hurried else max_seconds
        self.idle_seconds = max_seconds
        self.reading_seconds = max_seconds

    @property
    def catches_up(self) -> bool:
        """Whether the next epoch reads longer than `--epoch_seconds`."""
        return self.reading_seconds > self._max_seconds

    @property
    def quiet_seconds(self) -> float:
        """How long tasks may wait if data at one of them ends the wait of all; 0: not longer than `idle_seconds`."""
        seconds = min(_QUIET_SECONDS, _QUIET_EPOCHS * self._max_seconds)
        return seconds if self._without_data and seconds > self._max_seconds else 0.0

    @property
    def is_quiet(self) -> bool:
        """Whether the next data is probably not near. The first epoch without data only publishes what was read."""
        return self._without_data > 1

    def observe(self, records_read: int, *, is_behind: bool = False) -> None:
        """Take in how many records an epoch has read, and whether a reader is behind after it."""
        longest = _BACKLOG_EPOCHS * self._max_seconds
        self.reading_seconds = min(2 * self.reading_seconds, longest) if is_behind else self._max_seconds
        self._without_data = 0 if records_read else self._without_data + 1
        longer = min(2 * self.idle_seconds, self._max_seconds)
        self.idle_seconds = self._min_seconds if records_read else longer
