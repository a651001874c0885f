from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from penstock.errors import UnavailableError
from penstock.io.bigtable import ChangeStreamMutation, ReadFromBigtableChangeStream
from penstock.io.bigtable.errors import classify_status
from penstock.io.bigtable.frontier import Position
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.read import ReadBigtableFn, ReadBigtableUnboundedFn
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.status import UnreachableError
from tests.conformance.adapters import SECOND, Adapter
from tests.unit.bigtable.conftest import change, close, heartbeat

PARTITIONS = [KeyRange(b"", b"n"), KeyRange(b"n", b"")]
STATUSES = {
    "missing": ("NOT_FOUND", "Table not found"),
    "position lost": ("OUT_OF_RANGE", "past the retention period"),
}


class Service:
    """A table with two partitions. A token is the number of changes of the table that were seen."""

    def __init__(self) -> None:
        self.backoff = Backoff("Bigtable", UnavailableError)
        self.changes: list[tuple[int, bytes]] = []
        self.failure = ""
        self.damaged = False
        self.end: int | None = None

    def partitions(self) -> list[KeyRange]:
        self.check()
        return PARTITIONS

    def check(self) -> None:
        if self.failure == "unavailable":
            raise UnreachableError("UNAVAILABLE")
        if self.failure:
            raise classify_status(*STATUSES[self.failure], "change stream of t", "now")

    def open(self, position: Position) -> Call:
        self.check()
        return Call(self, position)

    def refused_close(self, position: Position, close: Any) -> Exception:
        raise AssertionError("this service closes no stream without a token")


class Call:
    def __init__(self, service: Service, position: Position) -> None:
        self._service, self._first_position, self._cancelled = service, position, threading.Event()

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        service, partition = self._service, self._first_position.partition
        seen = int(self._first_position.tokens[0][1]) if self._first_position.tokens else 0
        while not self._cancelled.is_set():
            service.check()
            for number, (timestamp, key) in list(enumerate(service.changes))[seen:]:
                seen = number + 1
                after_start = self._first_position.start is None or timestamp >= self._first_position.start
                before_end = service.end is None or timestamp <= service.end
                if partition.holds(key) and after_start and before_end:
                    yield sized(self._change(timestamp, key, str(seen)))
            if service.end is not None and time.time_ns() > service.end:
                yield sized(close(0))
                return
            low = heartbeat(partition, str(seen), time.time_ns() // SECOND)
            yield sized(low)
            self._cancelled.wait(0.02)
        raise UnreachableError("cancelled")

    def _change(self, timestamp: int, key: bytes, token: str) -> Any:
        message = change(token, seconds=timestamp // SECOND, row=key, low=timestamp // SECOND)
        message.data_change.commit_timestamp.nanos = timestamp % SECOND
        if self._service.damaged:
            message.data_change.row_key = b""
        return message

    def cancel(self) -> None:
        self._cancelled.set()


def sized(message: Any) -> tuple[int, Any]:
    return message.ByteSize(), message


class BigtableAdapter(Adapter):
    name = "bigtable"
    namespace = "penstock.io.bigtable"

    def __init__(self) -> None:
        super().__init__()
        self._service = service = Service()

        class Connected:
            """Reaches the service in memory, which has no admin API."""

            def connect(self, stream: Any) -> Any:
                service.end = stream.end
                return service

            def _ask_retention(self, stream: Any) -> None:
                service.check()

            def ask_service(self, client: Service, stream: Any) -> list[KeyRange]:
                return client.partitions()

        class Bounded(Connected, ReadBigtableFn):
            pass

        class Unbounded(Connected, ReadBigtableUnboundedFn):
            pass

        class Read(ReadFromBigtableChangeStream):
            bounded_fn, unbounded_fn = Bounded, Unbounded

        self._read = Read

    def commit(self, timestamp: int, key: str) -> None:
        self._service.changes.append((timestamp, key.encode()))

    def transform(self, **options: Any) -> ReadFromBigtableChangeStream:
        names = {"project": "p", "instance": "i", "table": "t"}
        return self._read(**{**names, "start": self.start, "idle_stream_seconds": 0.3, **options})  # type: ignore[arg-type]

    def identity(self, record: ChangeStreamMutation) -> tuple[int, str]:
        return record.commit_timestamp, record.row_key.decode()

    def fail(self, kind: str) -> None:
        if kind == "damaged":
            self._service.damaged = True
        else:
            self._service.failure = kind
