"""Wait for another thread or process, with a time limit that allows for a busy machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 120.0
"""Nothing here takes so long; a machine that runs two other things beside may be ten times slower than usual."""


def wait_until(
    met: Callable[[], object], what: str | Callable[[], object] = "it did not come", every: float = 0.02
) -> None:
    """Return when `met` is true.

    Raises:
        AssertionError: it was not within `PATIENCE_SECONDS`; the message is `what`, or what `what` returns.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while not met():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(every)


def join(*threads: threading.Thread) -> None:
    """Return when all of these threads have ended.

    Raises:
        AssertionError: one of them still runs after `PATIENCE_SECONDS`.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
        assert not thread.is_alive(), f"{thread.name} did not end within {PATIENCE_SECONDS:.0f} s"
