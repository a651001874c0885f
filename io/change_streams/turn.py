"""Decides which batches a `process` call of a reader takes, when it reports its watermark and when it returns."""

from __future__ import annotations

import time
from collections.abc import Iterator

from penstock.io.change_streams.metrics import ReaderMetrics
from penstock.io.change_streams.prefetch import Batch, Claim, Prefetcher
from penstock.io.change_streams.tracker import Poll
from penstock.pace import Pace

POLL_SECONDS = 0.05
"""How often an idle reader polls its tracker, and how often a busy one reports its watermark."""


class _PollBatch:
    """The claim of a `Poll`, between the batches of a prefetcher."""

    ends_with_lineage = False

    def __init__(self, poll: Poll) -> None:
        self.claimed = 0
        self._poll = poll

    def claims(self) -> Iterator[Claim]:
        return iter([(1, (), self._poll)])


class Turn:
    """The part of a `process` call that takes batches: when it reports its watermark, and when it returns.

    After `deferral_seconds` its polls say that no data is expected, so that the runner may split a bundle that has
    claimed nothing.
    """

    def __init__(
        self, prefetcher: Prefetcher, metrics: ReaderMetrics, deferral_seconds: float, pace: Pace | None
    ) -> None:
        self._prefetcher = prefetcher
        self._metrics = metrics
        self._deadline = time.monotonic() + deferral_seconds
        self._pace = pace if pace is not None and pace.may_return else None
        self._says = pace
        self.over = False
        """Whether the call returns now, because the runner's pace asks for it."""
        self._must_stay = False

    def batches(self) -> Iterator[Batch]:
        """Yield batches to claim until lineage changes, no data comes, or the watermark must be reported.

        The last one is a `Poll` unless lineage changed.
        """
        due = time.monotonic() + POLL_SECONDS
        batch: Batch | None = None
        while time.monotonic() < due:
            # The time is checked between batches only, which are small.
            batch = self._prefetcher.take(self._patience())
            if batch is None:
                break
            yield batch
            if batch.ends_with_lineage:
                return
        if self._says is not None:
            self._says.is_behind = self._prefetcher.is_behind
        # After the deadline a service that promises data and sends none must not hold the bundle any longer.
        in_time = time.monotonic() < self._deadline
        poll = Poll(
            data_expected=in_time and self._prefetcher.data_expected,
            first_record_pending=in_time and self._prefetcher.first_record_pending,
        )
        if batch is None and self._is_asked():
            # While data is expected, do not return: the request would be discarded. (The tracker refuses splits too.)
            self.over = not (poll.data_expected or poll.first_record_pending) and self._prefetcher.may_stop
            self._must_stay = not self.over
        yield _PollBatch(poll)

    def _is_asked(self) -> bool:
        """Whether the runner's pace asks a call to return that has no data at hand."""
        if self._pace is None:
            return False
        return self._metrics.emitted or time.monotonic() >= self._pace.idle_deadline

    def _patience(self) -> float:
        """Return how long to wait for a batch, in seconds."""
        # A call that must stay waits as if there were no pace. Otherwise it would poll without a pause.
        if self._pace is None or self._must_stay:
            return POLL_SECONDS
        if self._metrics.emitted:
            return 0.0
        return min(self._pace.poll_seconds, max(0.0, self._pace.idle_deadline - time.monotonic()))
