"""Wait for another thread or process, with a time limit that allows for a busy machine."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock_emulators.oracle import kill

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


RUN_PATIENCE_SECONDS = 900.0
"""For each step of a pipeline; a machine that runs other campaigns beside needs minutes for some."""


def wait_for_run(run: kill.Run, met: Callable[[], object], what: str, log: Path) -> None:
    """Return when `met` is true while the pipeline runs.

    Raises:
        AssertionError: the pipeline ended before, or it was not within `RUN_PATIENCE_SECONDS`.
    """
    end = time.monotonic() + RUN_PATIENCE_SECONDS
    while not met():
        assert run.alive(), f"the pipeline ended before {what}\n{end_of(log)}"
        assert time.monotonic() < end, (
            f"{what} did not come within {RUN_PATIENCE_SECONDS:.0f} s\n{end_of(log)}"
        )
        time.sleep(kill.POLL_SECONDS)


def drain(run: kill.Run, checkpoint: Path, log: Path) -> None:
    """Drain the pipeline with Penstock's command; return when it has ended with status 0."""
    seconds = str(RUN_PATIENCE_SECONDS)
    command = kill.python("penstock.cli.main", "drain", str(checkpoint), "--wait", seconds)
    subprocess.run(command, check=True, capture_output=True, timeout=2 * RUN_PATIENCE_SECONDS)
    assert run.wait(RUN_PATIENCE_SECONDS) == 0, end_of(log)


def end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-5_000:]


def join(*threads: threading.Thread) -> None:
    """Return when all of these threads have ended.

    Raises:
        AssertionError: one of them still runs after `PATIENCE_SECONDS`.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
        assert not thread.is_alive(), f"{thread.name} did not end within {PATIENCE_SECONDS:.0f} s"
