"""A complete source, as an example: lists in memory as a change stream. It passes the conformance tests.

    LISTS["orders"] = Lists(a=[Record(...), ...], b=[...])
    records = pipeline | ReadFromLists(name="orders", start=0)

Each list is a partition, in the order of commit timestamps. A source for a real system also has a client of its
service, a decoder and, if its partitions split or merge, its own frontier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
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
from penstock.io.change_streams.partition_pool import PartitionPool
from penstock.io.change_streams.partition_stream import PartitionStream, PendingStep, Reading
from penstock.io.change_streams.read_fn import ReadChangeStreamFn, Unbounded
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.settings import Limits, Settings
from penstock.io.change_streams.source import WithIdentity
from penstock.io.change_streams.transform import ReadFromChangeStream
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
REFUSALS = Refusals("Lists")


@dataclass(frozen=True, slots=True)
class ListStream(WithIdentity):
    name: str
    start: int
    end: int | None

    def __str__(self) -> str:
        return f"lists {self.name}"


class ListReading(PartitionStream):
    """One list: its records, and now and then that it is complete up to now. A mark is a `FlatPosition`, or the end."""

    lineage = frozenset({flat.Ended})

    def __init__(self, lists: Lists, name: str, at: flat.FlatPosition, stream: ListStream) -> None:
        self.name, self._lists, self._at, self._stream = name, lists, at, stream

    def read(self, reading: Reading) -> Iterator[list[PendingStep]]:
        end = self._stream.end
        while not reading.stopped:
            self._lists.on_read()
            (index, low), now = self._at, time.time_ns()
            record = next(iter(self._lists.lists[self.name][index:]), None)
            if record is not None and (end is None or record.commit_timestamp <= end):
                self._at = flat.FlatPosition(index + 1, max(low, record.commit_timestamp))
                size = len(repr(record))
                self.received_bytes += size
                yield [(size, record if record.commit_timestamp >= self._stream.start else None, self._at)]
            elif end is not None and now > end:
                yield [(0, None, flat.Ended(self.name))]
            else:
                self._at = flat.FlatPosition(index, max(low, now))
                yield [(0, None, self._at)]
                time.sleep(0.02)

    def step(self, mark: flat.FlatPosition | flat.Ended) -> flat.Advanced | flat.Ended:
        return mark if isinstance(mark, flat.Ended) else flat.Advanced(self.name, mark)

    def position(self, mark: flat.FlatPosition) -> flat.FlatPosition:
        return mark


class ListPool(PartitionPool):
    def __init__(self, lists: Lists, stream: ListStream, limits: Limits) -> None:
        super().__init__(REFUSALS, lists.backoff, limits)
        self._lists, self._stream = lists, stream

    def positions(self, frontier: flat.FlatFrontier) -> Mapping[str, flat.FlatPosition]:
        return frontier.positions

    def make_stream(self, partition: str, position: flat.FlatPosition, share_bytes: int) -> ListReading:
        return ListReading(self._lists, partition, position, self._stream)


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

    def open_pool(self, stream: ListStream) -> ListPool:
        return ListPool(self._client(stream), stream, self._settings.limits)

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
