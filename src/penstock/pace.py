"""The time at which a reader should end its bundle. A runner sets it, sources read it. Imports neither Beam nor Spark.

A Beam runner ends the bundle of a splittable DoFn by a split, and cannot see whether the reader has more data at hand.
`PySparkRunner` commits and publishes after each bundle, so a record that waits for the end of its bundle is that much
later. It therefore tells its readers when to return on their own. On other runners there is no pace, and a reader reads
until it is split.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Pace", "current_pace", "reading_at"]


@dataclass(frozen=True, slots=True)
class Pace:
    """The time at which a reader should return, by `time.monotonic`.

    A reader that has emitted records should return as soon as it has no more of them at hand. One that has emitted none
    should wait for data until `idle_deadline`. Neither holds while the reader would lose work by returning.
    """

    idle_deadline: float


def current_pace() -> Pace | None:
    """Return the pace of the bundle that runs in this thread; None: the runner sets none."""
    pace: Pace | None = getattr(_thread, "pace", None)
    return pace


@contextmanager
def reading_at(pace: Pace | None) -> Iterator[None]:
    """Set the pace for this thread, or none (for runners and tests)."""
    previous = current_pace()
    _thread.pace = pace
    try:
        yield
    finally:
        _thread.pace = previous


# A thread-local, because a DoFn has no argument through which a runner could hand it a value that Beam does not know.
_thread = threading.local()
