"""Waiting for a pipeline: as long as it publishes something, however slow the machine is. And stopping it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from penstock_emulators.oracle.kill import Run
from penstock_emulators.oracle.lines import visible_files

PATIENCE_SECONDS = 180.0
"""How long a pipeline may publish nothing before the demo fails. Also the limit for steps that only end a process."""


class PipelineEndedError(RuntimeError):
    """The pipeline ended before the demo stopped it; it has printed the reason."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the pipeline ended with status {status}; its last message has the reason")
        self.status = status


class Patience:
    """Fails when nothing has changed for `PATIENCE_SECONDS`. It has no limit for the whole wait, because the pace of a
    busy machine has none either.
    """

    def __init__(self, progress: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        """`progress` returns any value that changes while the work goes on."""
        self._progress = progress
        self._clock = clock
        self._last: object = None
        self._since = clock()

    def check(self, what: str) -> None:
        """Compare the progress with the last call.

        Raises:
            RuntimeError: nothing has changed for `PATIENCE_SECONDS`; `what` did not come.
        """
        now, progress = self._clock(), self._progress()
        if progress != self._last:
            self._last, self._since = progress, now
        elif now - self._since > PATIENCE_SECONDS:
            raise RuntimeError(f"{what} did not come: nothing was published for {PATIENCE_SECONDS:g} s")


def wait_for(
    run: Run,
    output: Path,
    met: Callable[[], object],
    what: str,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Wait until `met` returns true. `meanwhile` is called several times a second.

    Raises:
        PipelineEndedError: the pipeline ended.
        RuntimeError: it published nothing below `output` for `PATIENCE_SECONDS`.
    """

    def met_by_a_living_pipeline() -> bool:
        if met():
            return True
        meanwhile()
        if not run.alive():
            raise PipelineEndedError(run.wait(0))
        return False

    _wait(output, met_by_a_living_pipeline, what)


def wait_for_end(run: Run, output: Path) -> int:
    """Wait until a pipeline ends that reads up to a given time; return its exit status.

    Raises:
        RuntimeError: it published nothing below `output` for `PATIENCE_SECONDS`.
    """
    _wait(output, lambda: not run.alive(), "the end of the pipeline")
    return run.wait(0)


def stop(run: Run) -> None:
    """Stop a pipeline with SIGINT, as Ctrl-C does.

    Raises:
        RuntimeError: it did not end with the status of Ctrl-C, 130.
        TimeoutExpired: it still runs after `PATIENCE_SECONDS`.
    """
    run.send(signal.SIGINT)
    status = run.wait(PATIENCE_SECONDS)
    if status != 130:
        raise RuntimeError(f"after Ctrl-C the pipeline ended with status {status}, not 130")


def _wait(output: Path, met: Callable[[], object], what: str) -> None:
    patience = Patience(lambda: len(visible_files(output)))
    while not met():
        patience.check(what)
        time.sleep(0.3)
