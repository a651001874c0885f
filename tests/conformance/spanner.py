from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from penstock.errors import UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner import DataChangeRecord, ReadFromSpannerChangeStream
from penstock.io.spanner.clock import ServiceClock
from penstock.io.spanner.errors import classify_status
from penstock.io.spanner.query import DIALECT, STREAMS, Query
from penstock.io.spanner.read import ReadSpannerFn, ReadSpannerUnboundedFn
from penstock.timestamps import format_timestamp, parse_timestamp
from tests.conformance.adapters import Adapter
from tests.unit.spanner.calls import PartialResultSet, children, heartbeat

STATUSES = {
    "missing": ("INVALID_ARGUMENT", "Table-valued function not found: READ_S"),
    "position lost": ("OUT_OF_RANGE", "Specified start_timestamp is too far in the past."),
}


def data(timestamp: int, number: int, key: str | None) -> Any:
    """Return a message with one data change record; without a key it cannot be decoded."""
    message = PartialResultSet()
    kinds = message.values.add().list_value.values.add().list_value.values
    for _ in range(3):
        kinds.add().list_value.SetInParent()
    fields = kinds[0].list_value.values.add().list_value.values
    for text in (format_timestamp(timestamp), f"{number:08d}", f"t{number}"):
        fields.add().string_value = text
    fields.add().bool_value = True
    fields.add().string_value = "T"
    fields.add().list_value.SetInParent()
    mod = fields.add().list_value.values.add().list_value.values
    sides = ("{}",) if key is None else (f'{{"K":"{key}"}}', "{}", "{}")
    for side in sides:
        mod.add().string_value = side
    for text in ("INSERT", "NEW_VALUES", "1", "1", ""):
        fields.add().string_value = text
    fields.add().bool_value = False
    return message


class Service:
    """The partitions "low" and "high", which are children of the root."""

    def __init__(self, start: int) -> None:
        self.backoff = Backoff("Spanner", UnavailableError)
        self.clock = ServiceClock(time.time_ns)
        self.start = start
        self.changes: dict[str, list[tuple[int, int, str | None]]] = {"low": [], "high": []}
        self.failure = ""
        self.damaged = False

    def rows(self, query: Query) -> list[list[str]]:
        self._fail()
        return {DIALECT: [["GOOGLE_STANDARD_SQL"]], STREAMS: [["S"]]}.get(query.sql, [])

    def open(self, query: Query, position: str, seconds: float) -> Call:
        self._fail()
        values = {name: text or "" for name, _, text in query.params}
        ends = parse_timestamp(values["start_timestamp"]), parse_timestamp(values["end_timestamp"])
        return Call(self, values["partition_token"], *ends)

    def _fail(self) -> None:
        if self.failure == "unavailable":
            raise UnreachableError("UNAVAILABLE")
        if self.failure:
            error = classify_status(*STATUSES[self.failure], "change stream S", "now")
            assert isinstance(error, Exception)
            raise error


class Call:
    """One query: it ends when its end_timestamp has passed."""

    def __init__(self, service: Service, token: str, start: int, end: int) -> None:
        self._service, self._token, self._start, self._end = service, token, start, end
        self._cancelled = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        if self._service.damaged:
            yield b"\xff\xff damaged"
        if not self._token:
            root = [children(self._start, "", token) for token in self._service.changes]
            for message in root:  # children of the root name no parent
                entry = message.values[0].list_value.values[0].list_value.values[2].list_value.values[0]
                del entry.list_value.values[2].list_value.values[0].list_value.values[1].list_value.values[:]
                yield message.SerializeToString()
            return
        self._cancelled.wait(max(0, self._end - time.time_ns()) / 1e9)
        found = [c for c in self._service.changes[self._token] if self._start <= c[0] <= self._end]
        for change in found:
            yield data(*change).SerializeToString()
        if not found:
            yield heartbeat(self._end).SerializeToString()

    def cancel(self) -> None:
        self._cancelled.set()


class SpannerAdapter(Adapter):
    name = "spanner"
    namespace = "penstock.io.spanner"

    def __init__(self) -> None:
        super().__init__()
        self._service = service = Service(self.start)

        class Bounded(ReadSpannerFn):
            def connect(self, stream: Any) -> Any:
                return service

        class Unbounded(ReadSpannerUnboundedFn):
            def connect(self, stream: Any) -> Any:
                return service

        class Read(ReadFromSpannerChangeStream):
            bounded_fn, unbounded_fn = Bounded, Unbounded

        self._read = Read

    def commit(self, timestamp: int, key: str) -> None:
        partition = self._service.changes["low" if key < "n" else "high"]
        partition.append((timestamp, len(self.committed), key))

    def commit_damaged(self, timestamp: int) -> None:
        self._service.changes["low"].append((timestamp, 1_000, None))

    def transform(self, **options: Any) -> ReadFromSpannerChangeStream:
        names = {"project": "p", "instance": "i", "database": "d", "change_stream": "S"}
        return self._read(
            **{**names, "start": self.start, "idle_stream_seconds": 0.3, "poll_seconds": 0.02, **options}
        )  # type: ignore[arg-type]

    def identity(self, record: DataChangeRecord) -> tuple[int, str]:
        ((keys, _, _),) = (mod.parsed() for mod in record.mods)
        return record.commit_timestamp, keys["K"]

    def fail(self, kind: str) -> None:
        if kind == "damaged":
            self._service.damaged = True
        else:
            self._service.failure = kind
