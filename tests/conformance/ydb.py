from __future__ import annotations

import json
import threading
import time
from typing import Any

from penstock.io.change_streams.status import UnreachableError
from penstock.io.ydb import ChangefeedRecord, ReadFromYdbChangefeed
from penstock.io.ydb.read import ReadYdbFn, ReadYdbUnboundedFn
from penstock_emulators.ydb.topic import Message, Topic
from tests.conformance.adapters import Adapter
from tests.unit.ydb.memory import MemoryService

MILLISECOND = 1_000_000


class YdbAdapter(Adapter):
    name = "ydb"
    namespace = "penstock.io.ydb"

    def __init__(self) -> None:
        super().__init__()
        self._topic = Topic("/local/orders/feed", partitions=2, created_at=(1, 1))
        self._service = service = MemoryService(self._topic)
        self._lock = threading.Lock()
        service.idle = self._write_barriers

        class Connected:
            def connect(self, stream: Any) -> Any:
                return service

        class Bounded(Connected, ReadYdbFn):
            pass

        class Unbounded(Connected, ReadYdbUnboundedFn):
            pass

        class Read(ReadFromYdbChangefeed):
            bounded_fn, unbounded_fn = Bounded, Unbounded

        self._read = Read

    def commit(self, timestamp: int, key: str) -> None:
        value = {"key": [key], "update": {}, "ts": [timestamp // MILLISECOND, 1]}
        self._append(int(key >= "n"), timestamp, json.dumps(value).encode())

    def commit_damaged(self, timestamp: int) -> None:
        self._append(0, timestamp, b"{")

    def _append(self, partition: int, timestamp: int, data: bytes) -> None:
        self._topic.append(partition, Message(data, timestamp, timestamp))

    def _write_barriers(self) -> None:
        """Write a barrier for the present time to each partition, at most every 20 milliseconds."""
        now = time.time_ns()
        with self._lock:
            for partition in self._topic.active:
                if not partition.messages or partition.messages[-1].written_at < now - 20 * MILLISECOND:
                    barrier = {"resolved": [now // MILLISECOND, 0]}
                    self._append(partition.number, now, json.dumps(barrier).encode())

    def transform(self, **options: Any) -> ReadFromYdbChangefeed:
        names = {
            "endpoint": "grpc://localhost:1",
            "database": "/local",
            "table": "orders",
            "changefeed": "feed",
        }
        return self._read(**{**names, "start": self.start, "idle_stream_seconds": 0.1, **options})  # type: ignore[arg-type]

    def identity(self, record: ChangefeedRecord) -> tuple[int, str]:
        return record.step * MILLISECOND, json.loads(record.data)["key"][0]

    def fail(self, kind: str) -> None:
        service = self._service
        if kind == "unavailable":

            def failing() -> None:
                raise UnreachableError("UNAVAILABLE")

            service.failing = failing
        elif kind == "missing":
            service.describe = lambda: (None, ())  # type: ignore[method-assign]
        elif kind == "position lost":  # dropped and created again
            self._topic.created_at = (2, 2)
        else:
            for partition in self._topic.partitions.values():
                partition.messages = [
                    Message(b"{", message.created_at, message.written_at) for message in partition.messages
                ]
