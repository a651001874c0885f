"""The time at which a reader should end its bundle. A runner sets it, sources read it. Imports neither Beam nor Spark.

A Beam runner ends the bundle of a splittable DoFn by a split, and cannot see whether the reader has more data ready.
`PySparkRunner` commits and publishes after each bundle, so a record becomes visible only after the end of its bundle.
Therefore this runner tells its readers when to return without a split. On other runners there is no pace, and a reader
reads until it is split.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from penstock.thread_value import ThreadValue

__all__ = ["Pace", "current_pace", "reading_at"]


POLL_SECONDS = 0.05
"""How often a reader looks at its pace, and an idle one at its tracker."""


@dataclass(slots=True)
class Pace:
    """The time at which a reader should return, by `time.monotonic`.

    A reader that has emitted records should return as soon as it has no more of them ready. A reader that has emitted
    none should wait for data until `idle_deadline`. A reader that is behind its source, or that would lose work by
    returning, should not return.

    `idle_until` is that deadline, or a function that returns it if it may change; `poll_seconds` is how often a reader
    should look at it. Without `may_return` a reader should not return: the runner splits it.

    The runner limits how many changes an epoch reads. A reader that emits several changes as one element counts them in
    `claimed`, because the runner sees elements only.

    A reader says in `is_behind` whether its source had more data the last time it looked. While it is behind, the
    runner makes its bundles longer and says so in `catches_up`: the output of the bundle is late in any case, so a
    step after the reader may hold it until the bundle ends, or store it elsewhere. Such a step counts the bytes in
    `held_bytes`, because the runner limits the output of a bundle too.
    """

    idle_until: float | Callable[[], float]
    poll_seconds: float = POLL_SECONDS
    may_return: bool = True
    catches_up: bool = False
    claimed: int = 0
    held_bytes: int = 0
    is_behind: bool = False

    @property
    def idle_deadline(self) -> float:
        """The deadline as it is now."""
        return self.idle_until() if callable(self.idle_until) else self.idle_until


_pace = ThreadValue[Pace]()


def current_pace() -> Pace | None:
    """Return the pace of the bundle that runs in this thread; None: the runner sets none."""
    return _pace.value


def reading_at(pace: Pace | None) -> AbstractContextManager[None]:
    """Set the pace for this thread, or none (for runners and tests)."""
    return _pace.set_to(pace)
