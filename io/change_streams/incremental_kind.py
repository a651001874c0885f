"""Incremental snapshots, read together with the change stream of a source with partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from penstock.io.change_streams.coders import FrontierCoder
from penstock.io.change_streams.incremental.channels import Channel, TableChannel, channels_of
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier, Lost, Merged, Renewed
from penstock.io.change_streams.incremental.merge import SnapshotSource, StreamMerge
from penstock.io.change_streams.incremental.new_tables import KnownTables, NewTablesChannel
from penstock.io.change_streams.incremental.options import NEVER, WHEN_NEEDED, initial_request
from penstock.io.change_streams.incremental.prefetch import MergePool
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.worker import ChunkReader, SnapshotWorker
from penstock.io.change_streams.incremental_tracker import IncrementalCoder, IncrementalTracker
from penstock.io.change_streams.kinds import POOLS, StreamKind
from penstock.io.change_streams.lineage import LineageEvent
from penstock.io.change_streams.prefetch import StreamPool


class IncrementalSource(Protocol):
    """The further methods that the DoFn of a source with incremental snapshots has."""

    def snapshot_source(self, element: Any) -> SnapshotSource:
        """Return the rules of the source about its records."""

    def chunk_reader(self, element: Any, stopped: Callable[[], bool]) -> ChunkReader:
        """Return a new reader of chunks."""

    def signal_rows(self, element: Any, table: str) -> Callable[[], Sequence[Sequence[Any]]]:
        """Return a function that reads the rows of a signal table: texts of id, type and data, ordered by id.

        Only a source with the option `signal_table` needs it.
        """

    def known_tables(self, element: Any) -> KnownTables:
        """Ask the service which tables there are. Only a source with the option `new_tables` needs it."""

    def reads_table(self, table: str) -> bool:
        """Return whether the pipeline reads a table. Only a source with the option `new_tables` needs it."""

    def stream_from_now(self, element: Any) -> Any:
        """Return a new frontier of the change stream, which begins now. It asks the service."""


class IncrementalKind(StreamKind):
    """The change stream with snapshots between its changes. `settings.snapshots` are the user's options.

    A program without signals reads the plain frontier of its source. If it gets signals later, it continues from the
    same checkpoint.
    """

    frontier_type = IncrementalFrontier

    @property
    def _is_wanted(self) -> bool:
        # A runner that only rebalances or decodes may use a DoFn without settings.
        options = None if self._fn._settings is None else self._fn._settings.snapshots
        return options is not None and options.may_begin

    def prepared(self, frontier: Any, progress: SnapshotProgress | None = None) -> Any:
        # A dealt part cannot know whether another part has the snapshots: they are added when all are joined.
        if isinstance(frontier, self._fn.frontier_type) and not frontier.dealt and self._is_wanted:
            return IncrementalFrontier(frontier, progress or SnapshotProgress())
        return frontier

    def first(self, frontier: Any) -> Any:
        """Return the frontier of a pipeline that starts without a checkpoint, given the change stream's."""
        if self._fn._settings.snapshots.snapshot == NEVER:
            return self.prepared(frontier)
        return IncrementalFrontier(frontier, SnapshotProgress().with_initial(initial_request()))

    def coder(self, others: FrontierCoder) -> FrontierCoder:
        return IncrementalCoder(others)

    def tracker(self, frontier: IncrementalFrontier) -> IncrementalTracker:
        return IncrementalTracker(frontier, self._fn.tracker_type)

    def lineage_events(self, step: Any, frontier: IncrementalFrontier) -> Iterable[LineageEvent]:
        if isinstance(step, Merged | Lost | Renewed):
            return ()
        return super().lineage_events(step, frontier.stream)

    def pool(self, element: Any) -> StreamPool:
        # Before `get`, whose lock is held while a pool is made.
        stream, settings = super().pool(element), self._fn._settings
        return POOLS.get((type(self), type(self._fn), element, settings), lambda: self._open(element, stream))

    def _open(self, element: Any, stream: StreamPool) -> MergePool:
        source: Any = self._fn
        settings = self._fn._settings
        options, limits = settings.snapshots, settings.limits

        def channels() -> list[Channel]:
            found = channels_of(options)
            if options.signal_table:
                found.append(TableChannel(source.signal_rows(element, options.signal_table), lambda: None))
            if options.reads_new_tables:
                found.append(NewTablesChannel(lambda: source.known_tables(element), source.reads_table))
            return found

        def make(frontier: IncrementalFrontier) -> StreamMerge:
            worker = SnapshotWorker(
                lambda stopped: source.chunk_reader(element, stopped),
                channels,
                self._fn._client(element).backoff,
                threads=options.parallel_tables,
                poll_seconds=options.poll_seconds,
                unavailable_seconds=limits.unavailable_seconds,
            )
            return StreamMerge(
                source.snapshot_source(element),
                worker,
                options,
                str(element),
                frontier,
                notifications=settings.notification_output,
                dead_letters=settings.error_output,
            )

        renew = (lambda: source.stream_from_now(element)) if options.snapshot == WHEN_NEEDED else None
        return MergePool(stream, make, limits.idle_stream_seconds, renew)
