"""YDB in memory, below the reader's interface: the test service's topic without gRPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

from penstock.errors import UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.status import UnreachableError
from penstock.io.ydb.description import Description, PartitionDescription
from penstock.io.ydb.record import Table, TableColumn
from penstock.io.ydb.steps import Message
from penstock.io.ydb.stream import DAY, Data, EndOfPartition, Event, Started, Status
from penstock_emulators.ydb.topic import Topic

TABLE = Table(
    "orders",
    "feed",
    "UPDATES",
    "JSON",
    (TableColumn("id", "Utf8", False), TableColumn("note", "Utf8", True)),
    ("id",),
)


def described(topic: Topic, **changed: Any) -> Description:
    """Return what YDB says about a changefeed with this topic."""
    partitions = tuple(
        PartitionDescription(
            each.number,
            each.active,
            each.parents,
            each.children,
            each.first,
            each.end,
            each.messages[-1].written_at if each.messages else 0,
        )
        for each in topic.partitions.values()
    )
    options: dict[str, Any] = {
        "table": TABLE,
        "virtual_timestamps": True,
        "barrier_seconds": 1.0,
        "initial_scan": False,
        "schema_changes": False,
        "disabled": False,
        "retention_seconds": topic.retention_seconds,
        "created_at": topic.created_at,
        "consumers": tuple(topic.consumers),
    }
    return Description(partitions=partitions, **{**options, **changed})


class MemoryService:
    """A topic that is read without gRPC. `failing` may raise before each request; `idle` runs while a call waits."""

    def __init__(self, topic: Topic, clock: Callable[[], int] = time.time_ns) -> None:
        self.topic, self.clock = topic, clock
        self.backoff = Backoff("YDB", UnavailableError)
        self.failing: Callable[[], None] = lambda: None
        self.idle: Callable[[], None] = lambda: None
        self.messages_until_failure: int | None = None
        self.options: dict[str, Any] = {}
        self.commits: list[tuple[str, int, int]] = []
        self.opened: list[tuple[int, int]] = []
        self.tokens = 0

    def describe(self) -> tuple[Description | None, tuple[str, ...]]:
        self.failing()
        return described(self.topic, **self.options), ("feed",)

    def describe_columns(self) -> tuple[tuple[TableColumn, ...], tuple[str, ...]]:
        return TABLE.columns, TABLE.key

    def commit(self, consumer: str, partition: int, offset: int) -> None:
        self.commits.append((consumer, partition, offset))
        self.topic.commit(consumer, partition, offset)

    def open(self, partition: int, read_from: int, seconds: float = DAY) -> MemoryCall:
        self.failing()
        self.opened.append((partition, read_from))
        return MemoryCall(self, partition, read_from, seconds)


class MemoryCall:
    """One StreamRead call; it follows the rules of `penstock_emulators.ydb.read_session`."""

    def __init__(self, service: MemoryService, partition: int, read_from: int, seconds: float) -> None:
        self._service, self._partition, self._read_from = service, partition, read_from
        self._until = time.monotonic() + seconds
        self._asked: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self._cancelled = threading.Event()

    def __iter__(self) -> Iterator[Event]:
        service = self._service
        partition = service.topic.partitions[self._partition]
        yield Started(partition.end)
        offset, credit, sent = -1, 0, 0
        while not self._cancelled.is_set() and time.monotonic() < self._until:
            service.failing()
            for what, number in self._requests():
                if what == "start":
                    offset = number
                elif what == "grant":
                    credit += number
                elif what == "status":
                    yield Status(partition.end, service.clock())
            if offset < 0:
                continue
            while offset < partition.end and credit > 0:
                offset = max(offset, partition.first)
                if offset == partition.end:
                    break
                found = partition.message(offset)
                offset += 1
                if found.written_at < self._read_from:
                    continue
                if service.messages_until_failure is not None:
                    service.messages_until_failure -= 1
                    if service.messages_until_failure < 0:
                        service.messages_until_failure = None
                        raise UnreachableError("UNAVAILABLE")
                sent += 1
                credit -= len(found.data)
                key = dict(found.metadata).get("__key", b"")
                message = Message(offset - 1, found.data, key, found.created_at, found.written_at)
                yield Data([message], len(found.data))
            if not partition.active and offset >= partition.end:
                yield EndOfPartition(partition.children, service.topic.adjacent(self._partition))
                return
            service.idle()
        raise UnreachableError("cancelled")

    def _requests(self) -> Iterator[tuple[str, int]]:
        # Waits a moment for the first one, as a stream does that has nothing to send.
        try:
            yield self._asked.get(timeout=0.005)
            while True:
                yield self._asked.get_nowait()
        except Empty:
            return

    def start(self, offset: int) -> None:
        self._asked.put(("start", offset))

    def grant(self, size: int) -> None:
        self._asked.put(("grant", size))

    def ask_status(self) -> None:
        self._asked.put(("status", 0))

    def refresh_token(self) -> None:
        self._service.tokens += 1

    def cancel(self) -> None:
        self._cancelled.set()
