"""The kinds of reading of a source: the change stream, and what is read before it or together with it.

A restriction is the frontier of one kind. `ReadChangeStreamFn` asks once which kind it is, and the kind knows the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from apache_beam.io.iobase import RestrictionTracker

from penstock.io.change_streams.coders import FrontierCoder
from penstock.io.change_streams.lineage import LineageEvent
from penstock.io.change_streams.metrics import ReaderMetrics
from penstock.io.change_streams.prefetch import Prefetcher, StreamPool
from penstock.io.change_streams.process_local import ProcessLocal


class SourceFn(Protocol):
    """The DoFn of a source, as a kind uses it; see `ReadChangeStreamFn`."""

    frontier_type: Any
    tracker_type: Any
    metrics_type: Any
    _settings: Any

    def _client(self, stream: Any) -> Any: ...
    def _pool(self, stream: Any) -> StreamPool: ...
    def lineage_events(self, step: Any, frontier: Any) -> Iterable[LineageEvent]: ...


class StreamKind:
    """The change stream itself, as the source's DoFn describes it. Other kinds override what they change. No state."""

    def __init__(self, fn: SourceFn) -> None:
        self._fn = fn

    @property
    def frontier_type(self) -> Any:
        """The class of its frontiers."""
        return self._fn.frontier_type

    def prepared(self, frontier: Any) -> Any:
        """Return the frontier to read instead of one of any kind: a whole or a dealt one, between two bundles."""
        return frontier

    def coder(self, others: FrontierCoder) -> FrontierCoder:
        """Return a coder for frontiers of this kind, and for those which `others` encodes."""
        return others

    def tracker(self, frontier: Any) -> RestrictionTracker:
        """Return the tracker of a frontier."""
        return self._fn.tracker_type(frontier)

    def pool(self, element: Any) -> StreamPool:
        """Return the pool of this process for an element."""
        return self._fn._pool(element)

    def metrics(self, prefetcher: Prefetcher) -> ReaderMetrics:
        """Return the metrics of one `process` call."""
        return self._fn.metrics_type(prefetcher)

    def lineage_events(self, step: Any, frontier: Any) -> Iterable[LineageEvent]:
        """Return the lineage events of a step; `frontier` is the one before it."""
        return self._fn.lineage_events(step, frontier)

    def drained(self, frontier: Any) -> Any:
        """Return what a drain still reads; None: nothing."""
        # As Beam does: a read with an end is finished, a read without one stops.
        return None if frontier.end is None else frontier


POOLS: ProcessLocal[StreamPool] = ProcessLocal()
"""The pools of this process, by kind, DoFn, stream and settings."""
