"""Adds incremental snapshots to the DoFn of a source with partitions (a mixin)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from apache_beam import coders
from apache_beam.io.iobase import RestrictionTracker
from apache_beam.utils.timestamp import Timestamp

from penstock.io.change_streams.incremental.channels import Channel, TableChannel, channels_of
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier, Lost, Merged, Renewed
from penstock.io.change_streams.incremental.merge import SnapshotSource, StreamMerge
from penstock.io.change_streams.incremental.options import NEVER, WHEN_NEEDED, initial_request
from penstock.io.change_streams.incremental.prefetch import MergePool
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.worker import ChunkReader, SnapshotWorker
from penstock.io.change_streams.incremental_tracker import IncrementalCoder, IncrementalTracker
from penstock.io.change_streams.lineage import LineageEvent
from penstock.io.change_streams.prefetch import StreamPool
from penstock.io.change_streams.tracker import rebalanced


class IncrementalReading:
    """A mixin for a source's DoFn; it comes before the DoFn in the bases. `settings.snapshots` are the user's options.

    A program without signals reads the plain frontier of its source. If it gets signals later, it continues from the
    same checkpoint.
    """

    _settings: Any
    frontier_type: ClassVar[Any]
    tracker_type: ClassVar[Any]

    # Methods that a source implements.

    def snapshot_source(self, element: Any) -> SnapshotSource:
        """Return the rules of the source about its records."""
        raise NotImplementedError

    def chunk_reader(self, element: Any, stopped: Callable[[], bool]) -> ChunkReader:
        """Return a new reader of chunks."""
        raise NotImplementedError

    def signal_rows(self, element: Any, table: str) -> Callable[[], Sequence[Sequence[Any]]]:
        """Return a function that reads the rows of a signal table: texts of id, type and data, ordered by id."""
        raise NotImplementedError

    def stream_from_now(self, element: Any) -> Any:
        """Return a new frontier of the change stream, which begins now. It asks the service."""
        raise NotImplementedError

    def stream_lineage(self, step: Any, frontier: Any) -> Iterable[LineageEvent]:
        """Return the lineage events of a step of the change stream; see `ReadChangeStreamFn.lineage_events`."""
        raise NotImplementedError

    # The DoFn.

    @property
    def _merges(self) -> bool:
        # A runner that only rebalances or decodes may use a DoFn without settings.
        options = None if self._settings is None else self._settings.snapshots
        return options is not None and (options.takes_signals or options.snapshot == WHEN_NEEDED)

    def with_snapshots(self, frontier: Any) -> Any:
        """Return the frontier with snapshots, if the program may read them while it reads changes."""
        if isinstance(frontier, self.frontier_type) and self._merges:
            return IncrementalFrontier(frontier, SnapshotProgress())
        return frontier

    def with_initial(self, frontier: Any) -> Any:
        """Return the frontier of a pipeline that starts without a checkpoint."""
        if self._settings.snapshots.snapshot == NEVER:
            return self.with_snapshots(frontier)
        return IncrementalFrontier(frontier, SnapshotProgress().with_initial(initial_request()))

    def create_tracker(self, restriction: Any) -> RestrictionTracker:
        # A dealt part cannot know whether another part has the snapshots: `rebalance` adds them.
        if isinstance(restriction, self.frontier_type) and not restriction.dealt:
            restriction = self.with_snapshots(restriction)
        if isinstance(restriction, IncrementalFrontier):
            return IncrementalTracker(restriction, self.tracker_type)
        return super().create_tracker(restriction)  # type: ignore[misc]

    def restriction_coder(self) -> coders.Coder:
        return IncrementalCoder(super().restriction_coder())  # type: ignore[misc]

    def rebalance(
        self, element: Any, residuals: Sequence[tuple[Any, Timestamp]], n: int
    ) -> list[tuple[Any, Timestamp]]:
        """Join all residuals of one element and deal them out over `n` slots; see `rebalanced`."""
        # A checkpoint of a program without signals has plain frontiers. Joined, they can get an empty progress.
        plain = all(isinstance(frontier, self.frontier_type) for frontier, _ in residuals)
        if residuals and plain and self._merges:
            whole = self.with_snapshots(self.frontier_type.join([frontier for frontier, _ in residuals]))
            residuals = [(whole, residuals[0][1])]
        if any(isinstance(frontier, IncrementalFrontier) for frontier, _ in residuals):
            return rebalanced(IncrementalFrontier, residuals, n)
        dealt: list[tuple[Any, Timestamp]] = super().rebalance(element, residuals, n)  # type: ignore[misc]
        return dealt

    def lineage_events(self, step: Any, frontier: Any) -> Iterable[LineageEvent]:
        if isinstance(step, Merged | Lost | Renewed):
            return ()
        stream = frontier.stream if isinstance(frontier, IncrementalFrontier) else frontier
        return self.stream_lineage(step, stream)

    def merge_pool(self, element: Any, stream: StreamPool, backoff: Any) -> MergePool:
        """Return the pool that adds snapshots to a pool of the change stream."""
        settings = self._settings
        options, limits = settings.snapshots, settings.limits

        def channels() -> list[Channel]:
            found = channels_of(options)
            if options.signal_table:
                rows = self.signal_rows(element, options.signal_table)
                found.append(TableChannel(rows, lambda: None))
            return found

        def make(frontier: IncrementalFrontier) -> StreamMerge:
            worker = SnapshotWorker(
                lambda stopped: self.chunk_reader(element, stopped),
                channels,
                backoff,
                threads=options.parallel_tables,
                poll_seconds=options.poll_seconds,
                unavailable_seconds=limits.unavailable_seconds,
            )
            return StreamMerge(
                self.snapshot_source(element),
                worker,
                options,
                str(element),
                frontier,
                notifications=settings.notification_output,
                dead_letters=settings.error_output,
            )

        renews = options.snapshot == WHEN_NEEDED
        renew = (lambda: self.stream_from_now(element)) if renews else None
        return MergePool(stream, make, limits.idle_stream_seconds, renew)
