"""How long a task that reads, and has read nothing yet, waits for data. Pure; the clock is an argument.

An epoch ends with its last task, and each epoch costs CPU time, also one that reads nothing. So while a pipeline is
quiet its tasks wait long. The first task that reads something ends the wait of all the others, because its epoch must
not wait for them. For that all tasks that read must run at the same time and hear each other. Otherwise no task waits
long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from penstock.compat import StrEnum
from penstock.pace import POLL_SECONDS

ALONE_POLL_SECONDS = 0.25
"""How often a reader looks at a wait that only its own data can end."""


class Said(StrEnum):
    """A message of a task to the other tasks of its epoch."""

    READ = "read"
    """It has read something."""
    ENDED = "ended"
    """It has ended without that, so it would not notice data any more."""


class OtherReaders(Protocol):
    """The other tasks of the epoch that read."""

    @property
    def exist(self) -> bool:
        """Whether another task reads."""

    def all_hear(self) -> bool:
        """Whether all of them have begun where they hear what this task says."""

    def say(self, what: Said) -> None:
        """Tell them. `READ` replaces `ENDED`."""

    def heard(self) -> Said | None:
        """What one of them has said in this epoch."""


class NoOtherReaders:
    """The task is the only one that reads."""

    exist = False

    def all_hear(self) -> bool:
        """See `OtherReaders`."""
        return True

    def say(self, what: Said) -> None:
        """See `OtherReaders`."""

    def heard(self) -> Said | None:
        """See `OtherReaders`."""
        return None


class IdleWait:
    """The wait of one task: until `soon`, or until `late` in a quiet epoch. Both are times of `clock`.

    None: the epoch is not quiet. In a quiet epoch the wait ends when another task has read something.
    """

    def __init__(
        self,
        soon: float,
        late: float | None = None,
        others: OtherReaders = NoOtherReaders(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._soon, self._others, self._clock = soon, others, clock
        self._late = late if late is not None and late > soon else None
        self._all_hear: bool | None = None
        self._said: Said | None = None

    @property
    def poll_seconds(self) -> float:
        """How often to look at the end."""
        return ALONE_POLL_SECONDS if self._late is not None and not self._others.exist else POLL_SECONDS

    @property
    def end(self) -> float:
        """The time at which a task that has read nothing ends. It may change from call to call."""
        if self._late is None:
            return self._soon
        heard = self._others.heard()
        if heard is Said.READ:
            return min(self._soon, self._clock())
        if heard is Said.ENDED:
            return self._soon
        # Asked once, when the answer decides: until then tasks may still begin.
        if self._all_hear is None and (self._clock() >= self._soon or not self._others.exist):
            self._all_hear = self._others.all_hear()
        return self._late if self._all_hear else self._soon

    def read_something(self) -> None:
        """Note that the task has read something. May be called often."""
        self._say(Said.READ)

    def ended(self) -> None:
        """Note that the task reads no more."""
        if self._said is None:
            self._say(Said.ENDED)

    def _say(self, what: Said) -> None:
        if self._late is not None and self._said is not what:
            self._said = what
            self._others.say(what)
