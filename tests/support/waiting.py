"""Wait for another thread or process, with a time limit that allows for a busy machine."""

from __future__ import annotations

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
