"""The splittable DoFn that every source inherits.

A source adds a native record, a decoder, a pure `Frontier`, a tracker, a prefetcher with its pool, a client, and
subclasses of the two classes here and of `transform.ReadFromChangeStream`. The docstring of its `read` module says what
it promises about order, repeats and the watermark.

1. `initial_restriction` asks the service once whether the stream can be read, with retries, before any reading.
2. `process` takes a prefetcher from the worker's pool, claims its steps, emits records, and sets the watermark
   from the frontier. It returns when it is split, when no work remains, or when only other parts can advance. If the
   runner sets a pace (`penstock.pace`), it also returns when it has emitted records and has no more ready.
3. `rebalance` lets a runner join the residuals of all bundles and deal them out again, between bundles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import apache_beam as beam
from apache_beam import coders
from apache_beam.io.iobase import RestrictionTracker
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.utils.timestamp import Duration, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from penstock import timeline
from penstock.attempt import current_attempt
from penstock.errors import SetupError, UsageError
from penstock.io.change_streams import coders as shared_coders
from penstock.io.change_streams.arguments import check_end, require_same
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier
from penstock.io.change_streams.kinds import POOLS, StreamKind
from penstock.io.change_streams.lineage import LINEAGE_EVENTS, LineageEvent
from penstock.io.change_streams.metrics import LAG_MS, ReaderMetrics
from penstock.io.change_streams.outputs import Outputs, at_time, outputs_of
from penstock.io.change_streams.prefetch import Batch, Prefetcher, StreamPool
from penstock.io.change_streams.refusals import refused_now
from penstock.io.change_streams.tracker import FrontierTracker, Poll, rebalanced
from penstock.io.change_streams.turn import Turn
from penstock.io.change_streams.watermark import FrontierWatermarkEstimatorProvider, beam_watermark
from penstock.pace import Pace, current_pace
from penstock.table_times import NAMESPACE_PREFIX

_DEFER_SECONDS = 0.05
"""Delay after which a part that waits for other parts is started again."""


class ReadChangeStreamFn(beam.DoFn, RestrictionProvider):
    """Turns `ChangeStream` elements into timestamped native records; its own restriction provider.

    A source's subclass sets the class attributes and implements `connect`, `open_pool`, `ask_service` and
    `first_frontier`. Records have a `commit_timestamp` in nanoseconds, which becomes their event time.
    """

    frontier_type: ClassVar[Any]
    tracker_type: ClassVar[type[FrontierTracker]]
    frontier_coder: ClassVar[type[shared_coders.FrontierCoder]]
    metrics_type: ClassVar[type[ReaderMetrics]]
    watermark_estimators: ClassVar = FrontierWatermarkEstimatorProvider()
    no_rewind: ClassVar[str] = (
        "this source cannot go back to a time exactly. Restore the target by its own means, and start a new job with "
        "another checkpoint folder and a snapshot"
    )
    """Why the source cannot go back, and what to do instead."""
    split_deferral_seconds: ClassVar[float] = 5.0
    """How long a reader that is behind may refuse splits while it waits for the service's first message."""

    def __init__(self, settings: Any) -> None:
        super().__init__()
        self._settings = settings
        self._suspended: Prefetcher | None = None

    def kinds(self) -> tuple[StreamKind, ...]:
        """Return the kinds of reading; a source that has others adds them before the change stream."""
        return (StreamKind(self),)

    def kind_of(self, frontier: Any) -> StreamKind:
        """Return the kind of a restriction."""
        return next(kind for kind in self.kinds() if isinstance(frontier, kind.frontier_type))

    # Methods that a source implements.

    def connect(self, stream: Any) -> Any:
        """Return this process's client for the stream; it has a `backoff`. Imports the client's library."""
        raise NotImplementedError

    def open_pool(self, stream: Any) -> StreamPool:
        """Return a new pool of prefetched streams."""
        raise NotImplementedError

    def ask_service(self, client: Any, stream: Any) -> Any:
        """Check once that the stream can be read, and return what the service said about it.

        Raises:
            UnreachableError: ask again later.
            ChangeStreamError: the stream cannot be read; the message says why and what to do.
        """
        raise NotImplementedError

    def lineage_events(self, step: Any, frontier: Any) -> Iterable[LineageEvent]:
        """Return the lineage events of a step other than a `Poll`; `frontier` is the stream's one before the step.

        Records and heartbeats have none. A source whose partitions never change need not implement this method.
        """
        return ()

    def first_frontier(self, stream: Any, said: Any) -> Any:
        """Return a frontier with all work of the stream; `said` is the result of `ask_service`."""
        raise NotImplementedError

    # The read.

    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(FrontierWatermarkEstimatorProvider()),
    ) -> Iterator[WindowedValue]:
        """Read until the stream's end, a split or the end of the turn, or until only other parts can advance."""
        frontier = tracker.current_restriction()
        kind = self.kind_of(frontier)
        watermark.set_watermark(beam_watermark(frontier.watermark))
        outputs, lineage = self._outputs(element), self._lineage(kind, element, tracker)
        pool, pace = kind.pool(element), current_pace()
        with (
            self._prefetching(pool, frontier) as prefetcher,
            self._counting(kind.metrics(prefetcher)) as metrics,
        ):
            for batch in self._batches_to_claim(prefetcher, tracker, watermark, metrics, pace):
                # This loop is not in a generator of its own, because each element would pass through one more `yield`.
                for count, records, step in batch.claims():
                    # Made before the claim, because the step may remove its partition from the frontier.
                    events = lineage(step) if lineage is not None and not records else ()
                    if not tracker.try_claim(step):  # the reader was split: the residual has the rest
                        yield from outputs.rest()
                        return
                    batch.claimed += count
                    metrics.claimed(records, step)
                    if pace is not None:
                        # At once, and not after the batch: the runner ends a bundle that has read nothing for 20 ms,
                        # and on a busy machine the steps behind need longer for one batch.
                        pace.claimed = metrics.changes
                    if timeline.enabled:
                        timeline.trace("emitted", commits=_commits(records), epoch=current_attempt().epoch)
                    yield from outputs.of(records)
                    yield from events
                # Before the next claim of a `Poll` and before the watermark: both may end the call.
                yield from outputs.rest()
        frontier = tracker.current_restriction()
        if not frontier.done:
            # A part that can progress has only ended its turn, so it is due at once.
            tracker.defer_remainder(Duration(seconds=0 if frontier.can_progress else _DEFER_SECONDS))

    def _batches_to_claim(
        self,
        prefetcher: Prefetcher,
        tracker: Any,
        watermark: Any,
        metrics: ReaderMetrics,
        pace: Pace | None,
    ) -> Iterator[Batch]:
        """Yield batches to claim while the frontier can progress. Between rounds, report watermark and metrics."""
        turn = Turn(prefetcher, metrics, self.split_deferral_seconds, pace)
        frontier = tracker.current_restriction()
        metrics.observe(frontier)
        # Invariant: at the start of a round the tracker has every claim of the round before, so `serve` gets exact
        # positions.
        while frontier.can_progress and not turn.over:
            prefetcher.serve(frontier)
            yield from turn.batches()
            frontier = tracker.current_restriction()
            metrics.observe(frontier)
            watermark.set_watermark(beam_watermark(frontier.watermark))

    def _outputs(self, stream: Any) -> Outputs:
        namespace, settings = self.metrics_type.namespace, self._settings
        return outputs_of(stream, namespace, batches=settings.batches, error_output=settings.error_output)

    def _lineage(
        self, kind: StreamKind, stream: Any, tracker: Any
    ) -> Callable[[Any], list[TaggedOutput]] | None:
        """Return a function from a step to lineage outputs; None if the pipeline takes none."""
        if not self._settings.lineage_output:
            return None

        def outputs(step: Any) -> list[TaggedOutput]:
            if type(step) is Poll:
                return []
            return [
                TaggedOutput(LINEAGE_EVENTS, at_time(event.time, event.document(str(stream))))
                for event in kind.lineage_events(step, tracker.current_restriction())
            ]

        return outputs

    def start_bundle(self) -> None:
        self._close_suspended()

    def teardown(self) -> None:
        self._close_suspended()

    def _close_suspended(self) -> None:
        """Close the prefetcher of a `process` call that an error in a later step left suspended.

        `process` is a generator. When a step after it raises, Beam drops the generator without closing it, and the
        prefetcher's threads would read on until the generator is collected.
        """
        if self._suspended is not None:
            self._suspended.close()
            self._suspended = None

    @contextmanager
    def _prefetching(self, pool: StreamPool, frontier: Any) -> Iterator[Prefetcher]:
        # An attribute and not a local name, so that `_close_suspended` can find the prefetcher.
        with pool.prefetching(frontier) as self._suspended:
            yield self._suspended
            self._suspended = None

    @contextmanager
    def _counting(self, metrics: ReaderMetrics) -> Iterator[ReaderMetrics]:
        """Report the metrics when the call ends, also by an error."""
        try:
            yield metrics
        finally:
            for name, count in metrics.finish().items():
                Metrics.counter(metrics.namespace, name).inc(count)
            for name, value in metrics.gauges(refused_now()).items():
                Metrics.gauge(metrics.namespace, name).set(value)
            tables = NAMESPACE_PREFIX + metrics.namespace.rpartition(".")[2]
            for table, time_ms in metrics.table_times_ms().items():
                Metrics.gauge(tables, table).set(time_ms)
            if (lag_ms := metrics.lag_ms(time.time_ns())) is not None:
                Metrics.distribution(metrics.namespace, LAG_MS).update(lag_ms)

    def _pool(self, stream: Any) -> StreamPool:
        return POOLS.get((type(self), stream, self._settings), lambda: self.open_pool(stream))

    def _client(self, stream: Any) -> Any:
        if not self._ends_earlier(stream):
            require_same(stream.identity, self._settings.identity, SetupError)
        return self.connect(stream)

    def _ends_earlier(self, stream: Any) -> bool:
        """Whether this is the program's stream, read to an earlier end than the program's.

        A program that moves or removes the end first reads to the end that the checkpoint has.
        """
        return (
            stream.end is not None
            and (self._settings.end is None or stream.end < self._settings.end)
            and self._with_end(stream).identity == self._settings.identity
        )

    def _with_end(self, stream: Any) -> Any:
        return replace(stream, end=self._settings.end)

    def check(self, stream: Any) -> Any:
        """Check that the stream can be read, with retries, and return the result of `ask_service`.

        Raises:
            ChangeStreamError: it cannot be read; the message says why and what to do.
            UnavailableError: the service did not answer for `unavailable_seconds`.
        """
        client = self._client(stream)
        limit = self._settings.limits.unavailable_seconds
        return client.backoff.ask(lambda: self.ask_service(client, stream), limit)

    def check_start(self, stream: Any) -> None:
        """Check that reading can begin at the stream's start. A pipeline that resumes does not use the start.

        Raises:
            ChangeStreamError: it cannot; the message says why and what to do.
        """
        check_end(stream.start, stream.end, SetupError)

    # The restriction provider.

    def initial_restriction(self, element: Any) -> Any:
        """Check the start and the service, and return a frontier with all work of the stream.

        So errors of the setup are raised before any change is read.
        """
        self.check_start(element)
        return self.first_frontier(element, self.check(element))

    def read_on(self, element: Any) -> Any | None:
        """Return the element that begins after the end of `element` and has the program's end.

        None if `element` already has the program's end.

        For runners, when a program starts from a checkpoint. The two reads have no change in common: the end is
        inclusive. The second one must begin after the first has ended, so that changes of a key stay in order.

        Raises:
            SetupError: the program's end is earlier than the end of `element`.
        """
        if element.end == self._settings.end or self._with_end(element).identity != self._settings.identity:
            return None  # changes of another stream are rejected when the element is read
        if not self._ends_earlier(element):
            raise SetupError(
                f"the program reads the {self._settings.identity}, but its checkpoint was made for a later end: the "
                f"{element.identity}. Changes after the new end may be published already. Pass the same end as before, "
                "a later one, or none; or pass another folder as --checkpoint_dir. To end the pipeline at this moment, "
                "let it run with the same end as before and drain it: run penstock drain with its checkpoint folder"
            )
        return replace(self._with_end(element), start=self.first_time_after(element.end))

    def rewound(self, element: Any, restrictions: Sequence[Any], to: int) -> Any:
        """Return a restriction with all work of `element` from the time `to` on, nanoseconds, inclusive.

        `restrictions` are all residuals of the element. For runners, when a target goes back to an earlier time. Every
        change before `to` was read, and those from then on are read once more. Asks the service.

        Raises:
            PenstockError: this cannot be done exactly, and what to do instead.
        """
        raise UsageError(self.no_rewind)

    def lost_by_rewind(self, restrictions: Sequence[Any]) -> str:
        """Return what the job may have read since any time, and does not read again after `rewound`; "": nothing."""
        if not any(isinstance(each, IncrementalFrontier) for each in restrictions):
            return ""
        return (
            "the job can read snapshots of tables while it runs (signals, new_tables). If it has read one since the "
            "time, the target loses its rows, and the job does not read them again"
        )

    def first_time_after(self, end: int) -> int:
        """Return the start, in nanoseconds, of a read that follows one with this end."""
        return end + 1

    def create_tracker(self, restriction: Any) -> RestrictionTracker:
        restriction = self._prepared(restriction)
        return self.kind_of(restriction).tracker(restriction)

    def _prepared(self, restriction: Any) -> Any:
        for kind in self.kinds():
            restriction = kind.prepared(restriction)
        return restriction

    def restriction_coder(self) -> coders.Coder:
        coder = self.frontier_coder()
        for kind in reversed(self.kinds()):
            coder = kind.coder(coder)
        return coder

    def truncate(self, element: Any, restriction: Any) -> Any:
        """Return what a drain still reads; None: nothing."""
        return self.kind_of(restriction).drained(restriction)

    def restriction_size(self, element: Any, restriction: Any) -> float:
        """Return the number of partitions that are readable or waiting."""
        # A number of partitions and not of bytes, because no service reports how much is unread.
        return float(len(restriction.readable) + len(restriction.waiting))

    def rebalance(
        self, element: Any, residuals: Sequence[tuple[Any, Timestamp]], n: int
    ) -> list[tuple[Any, Timestamp]]:
        """Join all residuals of one element and deal them out over `n` slots; see `rebalanced`."""
        # Parts of one kind may be joined to a whole of another one. So parts of both may come, and the first kind of
        # `kinds` that is among them knows how to join them.
        present = {self.kind_of(frontier).frontier_type for frontier, _ in residuals}
        joined = [kind.frontier_type for kind in self.kinds() if kind.frontier_type in present]
        return rebalanced(joined[0], residuals, n, self._prepared) if joined else []


class Unbounded:
    """A mixin for a source's DoFn that reads a stream without end: it makes the output an unbounded PCollection.

    Beam reads the mark from the `process` function of the class, so a bounded and an unbounded read need two classes.
    """

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(FrontierWatermarkEstimatorProvider()),
    ) -> Any:
        return super().process(element, tracker, watermark)  # type: ignore[misc]


def _commits(records: Iterable[Any]) -> list[int]:
    return [record.commit_timestamp for record in records]
