"""The order of everything in an epoch, and what happens if a part of it fails.

    take over → ( run the epoch: publish the last record, read, process, prepare → commit ), repeated

An epoch is a function of the last record. It publishes what that record names *before* the next record is
committed. Files that the epoch stages are published only *after* the next commit. A try that fails is discarded as
a whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from penstock.attempt import Attempt
from penstock.errors import PenstockError
from penstock.runner.protocol.coordinator import Coordinator, SweepResult
from penstock.runner.protocol.errors import (
    CommitUnknownError,
    EpochFailedError,
    SupersededError,
)
from penstock.runner.protocol.record import CommitRecord, EpochState

logger = logging.getLogger(__name__)

SWEEP_EVERY = 16
"""Number of commits between two sweeps."""

MAX_ERROR_TEXT = 1000
"""Number of characters of a user's error that the message of `EpochFailedError` repeats."""


class Epoch(Protocol):
    """One try of an epoch, as the runner does it."""

    def __call__(self, record: CommitRecord, attempt: Attempt) -> EpochState | None:
        """Publish what `record` names, read, process and stage; return the new state.

        When this returns, all Publications of `record` have run and their output is part of the epoch; otherwise it
        raises. Return None if there was nothing to publish, to read or to do: then nothing is committed. The epoch
        itself waits in that case; the loop calls it again at once.
        """


def back_off_s(failures: int) -> float:
    """Return the pause after a number of failures in a row: 0.5 s, doubled each time, at most 30 s."""
    # The exponent is limited too: 2.0 ** failures overflows if an epoch fails for days.
    return min(30.0, 0.5 * 2.0 ** min(failures - 1, 6))


def run_epochs(
    coordinator: Coordinator,
    epoch: Epoch,
    *,
    retries: int,
    stop: Callable[[CommitRecord], bool] = lambda record: False,
    on_commit: Callable[[CommitRecord], None] = lambda record: None,
    on_sweep: Callable[[CommitRecord, SweepResult], None] = lambda record, swept: None,
    on_failure: Callable[[CommitRecord, int, Exception], None] = lambda record, failures, error: None,
    back_off: Callable[[int], float] = back_off_s,
    pause: Callable[[float], None] = time.sleep,
    sweep_every: int = SWEEP_EVERY,
) -> CommitRecord:
    """Run epochs from the coordinator's record until the state is done or `stop` returns True.

    The coordinator must have taken over.

    - `retries`: after a failure the epoch is repeated up to this many times, from the same record, with back-off. An
      error that is not `retryable` is final.
    - `stop` is called with the last record, between epochs and before each retry. If it returns True, the
      Publications of that record wait for the next driver; to publish them first, let it return True only once
      `record.state.publications` is empty.
    - `on_commit` is called after each commit, with the new record.
    - `on_sweep` is called after each sweep, so that sinks can delete files that failed epochs staged. A sweep follows
      every `sweep_every` commits, and the last commit of a pipeline that is done. An error in `on_sweep` is logged:
      leftovers do no harm until the next sweep.
    - `on_failure` is called before each retry, with the last record, the number of failures in a row and the error.

    Returns the last record, which this driver has committed.

    Raises:
        EpochFailedError: an epoch failed on its last try; the cause is chained.
        SupersededError: another driver has taken over.
        CommitUnknownError: it is unknown whether the last commit succeeded; the next start finds out.
    """
    record = coordinator.record
    since_sweep = 0
    while not (record.state.done or stop(record)):
        committed = _run_epoch(coordinator, epoch, retries, stop, on_failure, back_off, pause)
        if committed is None:
            continue
        record = committed
        on_commit(record)
        since_sweep += 1
        # Sweep at the end too: no later driver would delete the files that the last failed epochs staged.
        if since_sweep >= sweep_every or record.state.done:
            since_sweep = 0
            swept = _sweep(coordinator)
            try:
                on_sweep(record, swept)
            except Exception as error:
                logger.warning("a sink could not clean up: %s", _redacted_chain(error))
    return record


def _run_epoch(
    coordinator: Coordinator,
    epoch: Epoch,
    retries: int,
    stop: Callable[[CommitRecord], bool],
    on_failure: Callable[[CommitRecord, int, Exception], None],
    back_off: Callable[[int], float],
    pause: Callable[[float], None],
) -> CommitRecord | None:
    """Try one epoch until it is committed; None if there was nothing to do, or if `stop` wants no other try."""
    failures = 0
    while True:
        try:
            return _try_epoch(coordinator, epoch)
        except (SupersededError, CommitUnknownError):
            # Never tried again: another driver owns the checkpoint, or this epoch may be committed already.
            raise
        except Exception as error:
            # A file may be missing because a newer driver has deleted it. Then the right error is SupersededError.
            coordinator.check_superseded()
            failures += 1
            number = coordinator.record.number + 1
            if failures > retries or not _is_retryable(error):
                raise _epoch_failed(number, failures, error) from error
            on_failure(coordinator.record, failures, error)
            logger.warning(
                "epoch %d failed, try %d of %d: %s", number, failures, retries + 1, _redacted(error)
            )
            # Ask before the pause, so that a stop need not wait for it, and after it, because it takes up to 30 s.
            if not stop(coordinator.record):
                pause(back_off(failures))
            if stop(coordinator.record):
                return None


def _try_epoch(coordinator: Coordinator, epoch: Epoch) -> CommitRecord | None:
    attempt = coordinator.begin()
    state = epoch(coordinator.record, attempt)
    if state is None:
        # A busy driver finds out about a newer one when it commits. An idle driver does not commit, so it must ask.
        coordinator.check_superseded_while_idle()
        return None
    return coordinator.commit(attempt, state)


def _is_retryable(error: Exception) -> bool:
    """Whether another try may succeed. Errors of users' code and of other libraries may be temporary."""
    return not isinstance(error, PenstockError) or error.retryable


def _epoch_failed(number: int, tries: int, error: Exception) -> EpochFailedError:
    if not _is_retryable(error):
        failed = f"epoch {number} failed, and another try would fail in the same way:"
    elif tries == 1:
        failed = f"epoch {number} failed:"
    else:
        failed = f"epoch {number} failed {tries} times in a row; the last error is"
    kind = f"{type(error).__name__}{_origin(error)}"
    text = str(error).strip()[:MAX_ERROR_TEXT]
    resume = (
        f"Record {number - 1} is the last one. When the cause is removed, start the pipeline again, and it continues "
        "from there"
    )
    return EpochFailedError(
        f"{failed} {kind}{': ' * bool(text)}{text.removesuffix('.')}. {resume}",
        redacted=f"{failed} {kind}. {resume}",
    )


def _origin(error: Exception) -> str:
    """Return where an error was raised: the step and the element, as its first note says."""
    notes: list[str] = getattr(error, "__notes__", [])
    return " " + notes[0].partition(";")[0] if notes else ""


def _redacted(error: BaseException) -> str:
    """Return the text of an error for a log. The text of an error from other code may contain values of rows."""
    if isinstance(error, PenstockError):
        return f"{type(error).__name__}: {error.redacted}"
    # The text of an OSError comes from the operating system. It names files and no values.
    return f"{type(error).__name__}: {error}" if isinstance(error, OSError) else type(error).__name__


def _redacted_chain(error: BaseException) -> str:
    """Return the redacted texts of an error and of its causes."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return ", caused by ".join(map(_redacted, chain))


def _sweep(coordinator: Coordinator) -> SweepResult:
    """Sweep. If the storage refuses to delete, log it; the next sweep tries again."""
    try:
        return coordinator.sweep()
    except OSError as error:
        logger.warning("could not clean up the checkpoint folder: %s", error)
        return SweepResult(more=True)
