"""Ends the read of a splittable DoFn when its budget is used up, with a split from a thread. Uses Beam internals."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from apache_beam.runners.sdf_utils import ThreadsafeRestrictionTracker

from penstock.runner.harness.idle_wait import IdleWait

# Polled, and not triggered by the writers: a check for each record would cost the reader more than 100 wake-ups a
# second cost the machine.
_POLL_SECONDS = 0.01
_IDLE_POLL_SECONDS = 0.05
"""Time between two polls of a read that has emitted nothing for a while."""
_LIMITED_IDLE_POLL_SECONDS = 0.02
"""The same for a read with a small limit, which it may exceed by what it reads in this time."""
_MANY = 10_000
"""Records that a reader needs longer for than a poll."""


@dataclass(slots=True)
class Budget:
    """When to split a read: at `deadline`, when it has written `records`, or when the bundle has written `bytes`.

    A read is split at the end of `idle` if the reading step has emitted nothing in this bundle. Both are times of
    `time.monotonic`. Bytes are counted as encoded for the exchange. `may_end_early`: the reader may return
    without a split; `catches_up`: see `penstock.pace`.
    """

    deadline: float
    idle: IdleWait
    records: int
    bytes: int
    may_end_early: bool = True
    catches_up: bool = False


class SplitTimer:
    """Splits a running restriction at fraction 0, from a thread, once the budget is used up.

    It calls `try_split` of the reading operation, not of the bundle. Beam's split of a bundle never asks a tracker
    whose progress is complete, so an idle reader that has caught up would run without an end.
    """

    def __init__(self, op: Any, budget: Budget, output_size: Callable[[], tuple[int, int]]) -> None:
        self._op = op
        self._budget = budget
        self._output_size = output_size
        self._records_before = output_size()[0]
        # With a small limit the reader reaches it within milliseconds, and would read several times as much.
        limited = budget.records < _MANY
        self._poll_seconds = _POLL_SECONDS / 10 if limited else _POLL_SECONDS
        self._idle_poll_seconds = _LIMITED_IDLE_POLL_SECONDS if limited else _IDLE_POLL_SECONDS
        self._ended = threading.Event()
        # A daemon: if the reader hangs in user code, this thread must not keep the worker process alive.
        self._thread = threading.Thread(target=self._run, name="penstock-split", daemon=True)
        self.residuals: list[Any] = []
        self._error: BaseException | None = None

    def __enter__(self) -> SplitTimer:
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._ended.set()
        self._thread.join()
        if self._has_emitted():
            self._budget.idle.read_something()
        self._budget.idle.ended()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            pause = self._poll_seconds
            while not self._ended.wait(pause):
                emitted = self._has_emitted()
                if self._is_used_up(emitted) and self._split():
                    return
                pause = self._poll_seconds if emitted else self._idle_pause(pause)
        except BaseException as error:
            self._error = error
            _raise_at_next_claim(error)

    def _idle_pause(self, last: float) -> float:
        """Return how long to wait for the next poll of an idle read, after a pause of `last` seconds.

        An idle pipeline waits for most of its life, so the polls are what it costs.
        """
        left = self._budget.idle.end - time.monotonic()
        if left <= 0:  # the tracker has refused the split
            return self._poll_seconds
        return min(2 * last, left, self._idle_poll_seconds)

    def _is_used_up(self, emitted: bool) -> bool:
        records, size = self._output_size()
        budget = self._budget
        if emitted:
            budget.idle.read_something()
        deadline = budget.deadline if emitted else budget.idle.end
        read = records - self._records_before
        return time.monotonic() >= deadline or read >= budget.records or size >= budget.bytes

    def _has_emitted(self) -> bool:
        # A reader that collects a batch has claimed changes and emitted nothing yet.
        if self._output_size()[0] > self._records_before:
            return True
        # Not only whether the bundle has written to an edge: a step that is fused with the reading one may collect
        # elements until the bundle ends, as staged sinks do. These counters are the ones of Beam's metrics (2.77). Each
        # bundle sets them to zero, and an element is counted before the next step gets it.
        return any(receiver.opcounter.element_counter.value() for receiver in self._op.receivers)

    def _split(self) -> bool:
        # This thread calls `try_split` while the other thread processes: Beam's own splits come from another thread
        # too, and the tracker's wrapper has a lock. None means that no element is being processed, or that the tracker
        # refuses now.
        split = self._op.try_split(0.0)
        # The primary is not needed: the reader notices the split at its next claim and returns.
        if split is None:
            return False
        _, residuals = split
        self.residuals = [residual for _, residual in residuals]
        return True


def _raise_at_next_claim(error: BaseException) -> None:
    """End the read whose tracker raised `error` in `try_split`, or a read without an end would never return.

    Only the thread that reads can end the read, and it calls the tracker whenever it claims a position. So the next
    claim must raise the error. Beam 2.77 offers no access to the tracker of the current element: the invoker that holds
    it is a Cython class with private attributes. But the error has passed through the tracker's thread-safe wrapper, a
    plain Python object, so its frame is in the traceback.
    """

    def try_claim(position: Any) -> bool:
        raise error

    for frame, _ in traceback.walk_tb(error.__traceback__):
        tracker = frame.f_locals.get("self")
        if isinstance(tracker, ThreadsafeRestrictionTracker):
            tracker.try_claim = try_claim
