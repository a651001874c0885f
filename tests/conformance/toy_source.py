"""A complete source, as an example: lists in memory as a change stream. It passes the conformance tests.

    LISTS["orders"] = Lists(a=[Record(...), ...], b=[...])
    records = pipeline | ReadFromLists(name="orders", start=0)

Each list is a partition, in the order of commit timestamps. A source for a real system also has a client of its
service, threads that read ahead, a decoder and, if its partitions split or merge, its own frontier.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from apache_beam import coders

from penstock.errors import SetupError, UnavailableError
from penstock.io.change_streams import coders as shared
from penstock.io.change_streams import flat, flat_tracker
from penstock.io.change_streams.arguments import named, period
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.connection import Connection
from penstock.io.change_streams.metrics import ReaderMetrics
from penstock.io.change_streams.options import StreamOptions
from penstock.io.change_streams.prefetch import Traffic, WithoutPool
from penstock.io.change_streams.read_fn import ReadChangeStreamFn, ReadFromChangeStream, Unbounded
from penstock.io.change_streams.settings import Limits, Settings
from penstock.io.change_streams.source import WithIdentity
from penstock.options import options


@dataclass(frozen=True, slots=True)
class Record:
    commit_timestamp: int
    key: str


class Lists:
    """The service. A test sets `on_read` to raise errors."""

    def __init__(self, **lists: list[Record]) -> None:
        self.lists, self.backoff = lists, Backoff("Lists", UnavailableError)
        self.on_read: Callable[[], None] = lambda: None


LISTS: dict[str, Lists] = {}


@dataclass(frozen=True, slots=True)
class ListStream(WithIdentity):
    name: str
    start: int
    end: int | None

    def __str__(self) -> str:
        return f"lists {self.name}"


class Batch:
    """One record, one report that an idle list is complete up to now, or the end of a list."""

    def __init__(self, step: flat.Advanced | flat.Ended, *records: Record) -> None:
        self.claimed, self._step, self._records = 0, step, records
        self.ends_with_lineage = isinstance(step, flat.Ended)

    def claims(self) -> Iterator[tuple[int, Sequence[Record], flat.Advanced | flat.Ended]]:
        yield 1, self._records, self._step


class Prefetcher:
    data_expected = first_record_pending = False
    may_stop = True

    def __init__(self, lists: Lists, stream: ListStream, limits: Limits) -> None:
        self._lists, self._stream, self._closed = lists, stream, threading.Event()
        self._unavailable_seconds, self._received_bytes = limits.unavailable_seconds, 0

    def serve(self, frontier: flat.FlatFrontier) -> None:
        self._at = dict(frontier.positions)

    def take(self, timeout: float) -> Batch:
        self._lists.backoff.ask(self._lists.on_read, self._unavailable_seconds)
        name = min(self._at, key=lambda name: self._at[name].watermark)
        (index, low), now, end = self._at[name], time.time_ns(), self._stream.end
        record = next(iter(self._lists.lists[name][index:]), None)
        if record is not None and (end is None or record.commit_timestamp <= end):
            self._at[name] = flat.FlatPosition(index + 1, max(low, record.commit_timestamp))
            self._received_bytes += len(repr(record))
            wanted = [record] if record.commit_timestamp >= self._stream.start else []
            return Batch(flat.Advanced(name, self._at[name]), *wanted)
        if end is not None and now > end:
            return Batch(flat.Ended(name))
        self._closed.wait(timeout)
        self._at[name] = flat.FlatPosition(index, max(low, now))
        return Batch(flat.Advanced(name, self._at[name]))

    def uncounted(self) -> Traffic:
        received, self._received_bytes = self._received_bytes, 0
        return Traffic(received_bytes=received)

    def close(self) -> None:
        self._closed.set()


class ListMetrics(ReaderMetrics):
    namespace = "penstock.io.lists"


class ListStreamCoder(shared.ChangeStreamCoder):
    value_type = ListStream


class RecordCoder(shared.ChangeStreamCoder):  # a list of the fields in JSON
    value_type = Record


coders.registry.register_coder(Record, RecordCoder)
coders.registry.register_coder(ListStream, ListStreamCoder)


class ReadListsFn(ReadChangeStreamFn):
    frontier_type, frontier_coder = flat.FlatFrontier, flat_tracker.FlatFrontierCoder
    tracker_type, metrics_type = flat_tracker.FlatTracker, ListMetrics

    def connect(self, stream: ListStream) -> Lists:
        if stream.name not in LISTS:
            raise SetupError(f"there are no lists {stream.name!r}: make them before the pipeline starts")
        return LISTS[stream.name]

    def open_pool(self, stream: ListStream) -> WithoutPool:
        client = self._client(stream)
        return WithoutPool(lambda: Prefetcher(client, stream, self._settings.limits))

    def ask_service(self, client: Lists, stream: ListStream) -> list[str]:
        client.on_read()
        return list(client.lists)

    def first_frontier(self, stream: ListStream, said: list[str]) -> flat.FlatFrontier:
        return flat.FlatFrontier({name: flat.FlatPosition(0, stream.start) for name in said}, stream.end)


class ReadListsUnboundedFn(Unbounded, ReadListsFn):
    pass


@options
class ListOptions(StreamOptions):
    name: str
    """Name of the lists."""
    max_concurrent_partitions: int = 32
    """Number of lists that one worker process reads at once."""


class ReadFromLists(ListOptions, ReadFromChangeStream):
    bounded_fn, unbounded_fn, record_type = ReadListsFn, ReadListsUnboundedFn, Record

    def __post_init__(self) -> None:
        stream = ListStream(named("name", self.name), *period(self.start, self.end, ahead_seconds=1))
        limits = Limits.checked(self, max_concurrent_partitions=self.max_concurrent_partitions)
        settings = Settings(Connection(), 1000, limits, stream.identity, stream.end)
        ReadFromChangeStream.__init__(self, stream, settings)
