"""Prefetchers that merge chunks of tables with a change stream, and their pool.

A `MergingPrefetcher` has the interface of the stream's prefetcher and passes its batches on. Rows and reports come as
batches between them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import PositionLostError
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier, Lost, Renewed
from penstock.io.change_streams.incremental.merge import StreamMerge
from penstock.io.change_streams.incremental.options import initial_request
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.prefetch import Batch, Claim, Prefetcher, StreamPool, Traffic

_LOGGER = logging.getLogger(__name__)

_MAX_CLAIMS = 32
"""Claims of rows in one batch: between two batches the bundle reports its watermark."""


class RowBatch:
    """Rows and reports of snapshots."""

    ends_with_lineage = False

    def __init__(self, merge: StreamMerge) -> None:
        self._merge = merge
        self.claimed = 0

    def claims(self) -> Iterator[Claim]:
        """Yield claims. One that is refused comes again, first, in the next bundle."""
        for _ in range(_MAX_CLAIMS):
            if not self._merge.has_rows:
                return
            # The entry stays in the merge's queue until it was claimed, so a refused claim loses nothing.
            yield 1, *self._merge.next_claim()
            # The bundle asks for the next claim only if this one was granted.
            self._merge.row_claimed()


class MergedBatch:
    """A batch of the change stream, with the rows that must precede its changes."""

    def __init__(self, batch: Batch, merge: StreamMerge) -> None:
        self._batch, self._merge = batch, merge

    @property
    def ends_with_lineage(self) -> bool:
        return self._batch.ends_with_lineage

    @property
    def claimed(self) -> int:
        return self._batch.claimed

    @claimed.setter
    def claimed(self, count: int) -> None:
        self._batch.claimed = count

    def claims(self) -> Iterator[Claim]:
        for count, records, step in self._batch.claims():
            if not records:
                yield count, records, step
                continue
            # Noted at the moment of the claim: chunks that arrive between two claims must see the changes in the order
            # of the claims.
            yield count, *self._merge.note(records, step)
            self._merge.changes_claimed(records)


class StepBatch:
    """A batch of one step without records."""

    ends_with_lineage = True

    def __init__(self, step: Any, claimed: Callable[[], None]) -> None:
        """`claimed` is called when the step was claimed."""
        self.claimed = 0
        self._step, self._was_claimed = step, claimed

    def claims(self) -> Iterator[Claim]:
        yield 1, (), self._step
        self._was_claimed()


class MergingPrefetcher:
    """The prefetcher of a change stream with snapshots."""

    def __init__(
        self, stream: Prefetcher, merge: StreamMerge | None, renew: Callable[[], Any] | None
    ) -> None:
        """`merge` None: a dealt part without the snapshots. `renew` returns a new frontier for a stream that has lost
        its position; None: that is an error.
        """
        self.stream, self._merge, self._renew = stream, merge, renew
        self._closed = False
        self._renewed: Renewed | None = None

    def serve(self, frontier: IncrementalFrontier) -> None:
        """Read the partitions and tables that are readable in `frontier`, which has every claim so far."""
        if self._closed:
            return  # this bundle has lost its position; the next one begins again
        if frontier.lost and self._renew is not None:
            progress = (frontier.progress or SnapshotProgress()).with_initial(initial_request())
            self._renewed = Renewed(self._renew(), progress)
            return
        if self._merge is not None:
            self._merge.look(frontier)
        self.stream.serve(frontier.stream)

    def take(self, timeout: float) -> Any:
        """Return a batch of rows, if there are any, otherwise one of the stream; None after `timeout` seconds."""
        if self._renewed is not None:
            return StepBatch(self._renewed, self._begin_again)
        if self._closed:
            self._pause.wait(timeout)
            return None
        # Rows before changes: the frontier's hold waits for them.
        if self._merge is not None and self._merge.has_rows:
            return RowBatch(self._merge)
        try:
            batch = self.stream.take(timeout)
        except PositionLostError as lost:
            if self._renew is None:
                raise
            _LOGGER.warning("changes are lost, so a new snapshot of all tables begins: %s", lost)
            # The loss is claimed first, so that it is in the checkpoint. The next bundle that has the whole frontier
            # begins the new snapshot.
            self._closed = True
            self.stream.close()
            return StepBatch(Lost(), lambda: None)
        if batch is None or self._merge is None or not self._merge.notes_changes:
            return batch
        return MergedBatch(batch, self._merge)

    def _begin_again(self) -> None:
        renewed, self._renewed = self._renewed, None
        if renewed is not None and self._merge is not None:
            self._merge.begin_again(renewed.progress)

    _pause = threading.Event()
    """Never set."""

    @property
    def data_expected(self) -> bool:
        return not self._closed and self.stream.data_expected

    @property
    def first_record_pending(self) -> bool:
        return not self._closed and self.stream.first_record_pending

    @property
    def is_behind(self) -> bool:
        return not self._closed and self.stream.is_behind

    @property
    def may_stop(self) -> bool:
        return self._closed or self.stream.may_stop

    def uncounted(self) -> Traffic:
        return self.stream.uncounted()

    def close(self) -> None:
        """End the threads of both."""
        if self._merge is not None:
            self._merge.stop()
        self.stream.close()


class MergePool:
    """Prefetchers for the frontiers of a source that has incremental snapshots.

    One reader of snapshots is parked between bundles. It continues only with a bundle that knows every claim of it.
    """

    def __init__(
        self,
        stream: StreamPool,
        make: Callable[[IncrementalFrontier], StreamMerge],
        idle_seconds: float,
        renew: Callable[[], Any] | None = None,
    ) -> None:
        """`stream` is the pool of the change stream. `renew`: see `MergingPrefetcher`."""
        self._stream, self._make, self._idle_seconds, self._renew = stream, make, idle_seconds, renew
        self._lock = threading.Lock()
        self._parked: StreamMerge | None = None

    @contextmanager
    def prefetching(self, frontier: IncrementalFrontier) -> Iterator[Any]:
        """Yield a prefetcher for a bundle."""
        with self._stream.prefetching(frontier.stream) as stream:
            if frontier.progress is None:
                yield MergingPrefetcher(stream, None, self._renew)
                return
            # Outside of the `try`: a merge that cannot be made has no threads to stop.
            merge = self._resumed(frontier)
            try:
                yield MergingPrefetcher(stream, merge, self._renew)
            except BaseException:
                merge.stop()
                raise
            self._park(merge)

    def _resumed(self, frontier: IncrementalFrontier) -> StreamMerge:
        # Taken out under the lock, so that two bundles never resume the same merge.
        with self._lock:
            parked, self._parked = self._parked, None
        if parked is not None:
            if parked.resume(frontier):
                return parked
            parked.stop()
        return self._make(frontier)

    def _park(self, merge: StreamMerge) -> None:
        merge.park(self._idle_seconds)
        with self._lock:
            parked, self._parked = self._parked, merge
        if parked is not None:
            parked.stop()
