"""The order of an epoch, and what is done when one fails.

    take over → ( run the epoch: publish the last record, read, process, prepare → commit ) again and again

An epoch is a function of the last record: it publishes what that record names *before* the next record is
committed, and what it stages is published only *after*. A try that fails is thrown away whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from penstock.attempt import Attempt
from penstock.runner.protocol.coordinator import Coordinator, Swept
from penstock.runner.protocol.errors import (
    CommitUnknownError,
    EpochFailedError,
    SupersededError,
)
from penstock.runner.protocol.record import CommitRecord, EpochState

logger = logging.getLogger(__name__)

SWEEP_EVERY = 16
"""Commits between two sweeps."""


class Epoch(Protocol):
    """One try of an epoch, as the runner does it."""

    def __call__(self, record: CommitRecord, attempt: Attempt) -> EpochState | None:
        """Publish what `record` names, read, process and stage; return the new state.

        All Publications of `record` have run and what they emitted is taken in, or this raises. Return None
        when there was nothing to publish, to read or to do: nothing is committed then. The epoch paces
        itself; the loop calls it again at once.
        """


def back_off_s(failures: int) -> float:
    """Return how long to wait after so many failures in a row: 0.5 s, doubled each time, at most 30 s."""
    return min(30.0, 0.5 * 2.0 ** min(failures - 1, 6))


def run_epochs(
    coordinator: Coordinator,
    epoch: Epoch,
    *,
    retries: int,
    stop: Callable[[CommitRecord], bool] = lambda record: False,
    on_commit: Callable[[CommitRecord], None] = lambda record: None,
    on_sweep: Callable[[CommitRecord, Swept], None] = lambda record, swept: None,
    on_failure: Callable[[CommitRecord, int, Exception], None] = lambda record, failures, error: None,
    back_off: Callable[[int], float] = back_off_s,
    pause: Callable[[float], None] = time.sleep,
    sweep_every: int = SWEEP_EVERY,
) -> CommitRecord:
    """Run epochs from the coordinator's record (it has taken over) until the state is done or `stop` says so.

    `stop` is asked between epochs with the last record; what that record still has to publish waits for
    the next driver, so a caller who wants it out lets `stop` wait for `record.state.publications` to be
    empty. An epoch is tried `retries` times more after its first failure, from the same record, with
    back-off; `stop` is asked before each of these tries too, so that nobody who wants to stop has to wait for
    a failure to pass.
    `on_sweep` is called after a sweep, for the clean-up of what sinks have staged; the caller has then
    committed the record it gets. What it raises is reported: leftovers harm nobody until the next sweep.

    Returns the last record.

    Raises:
        EpochFailedError: an epoch failed on every try; the cause is chained.
        SupersededError: another driver has taken over.
        CommitUnknownError: nobody knows whether the last commit took place; starting again finds out.
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
        if since_sweep >= sweep_every:
            since_sweep = 0
            swept = _sweep(coordinator)
            try:
                on_sweep(record, swept)
            except Exception as error:
                logger.warning("a sink could not clean up: %s", _kinds(error))
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
    """Try one epoch until it is committed; None when there was nothing to do, or `stop` wants no other try."""
    failures = 0
    while True:
        try:
            return _try_epoch(coordinator, epoch)
        except (SupersededError, CommitUnknownError):
            raise
        except Exception as error:
            coordinator.check_superseded()  # what failed may be missing because a newer driver has cleaned up
            failures += 1
            if failures > retries:
                raise _failed(coordinator.record.number + 1, failures, error) from error
            on_failure(coordinator.record, failures, error)
            logger.warning(
                "epoch %d failed, try %d of %d: %s",
                coordinator.record.number + 1,
                failures,
                retries + 1,
                _kind(error),
            )
            if not stop(coordinator.record):
                pause(back_off(failures))
            if stop(coordinator.record):
                return None


def _try_epoch(coordinator: Coordinator, epoch: Epoch) -> CommitRecord | None:
    attempt = coordinator.begin()
    state = epoch(coordinator.record, attempt)
    if state is None:
        coordinator.check_superseded()
        return None
    return coordinator.commit(attempt, state)


def _failed(number: int, tries: int, error: Exception) -> EpochFailedError:
    return EpochFailedError(
        f"epoch {number} failed {tries} times in a row, at last with {type(error).__name__}{_place(error)}. "
        f"Record {number - 1} stands: once the cause is gone, start the pipeline again and it goes on from there"
    )


def _place(error: Exception) -> str:
    """Return where an error happened, as its first note says: the step, the element, the epoch."""
    notes: list[str] = getattr(error, "__notes__", [])
    return " " + notes[0].partition(";")[0] if notes else ""


def _kind(error: BaseException) -> str:
    """Return what a log may say of an error: its text only where it is ours, others may quote a row."""
    ours = isinstance(error, OSError) or type(error).__module__.startswith("penstock.")
    return f"{type(error).__name__}: {error}" if ours else type(error).__name__


def _kinds(error: BaseException) -> str:
    """Return the kinds of an error and of its causes."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return ", caused by ".join(map(_kind, chain))


def _sweep(coordinator: Coordinator) -> Swept:
    """Sweep; storage that refuses to delete is reported and tried again next time."""
    try:
        return coordinator.sweep()
    except OSError as error:
        logger.warning("could not clean up the checkpoint folder: %s", error)
        return Swept(more=True)
