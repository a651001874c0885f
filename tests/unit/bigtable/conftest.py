"""Records, frontiers and a service without a network, for tests in milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud.bigtable_v2.types import bigtable as service

from penstock.io.bigtable.frontier import Position
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.record import CloseStream
from penstock.io.change_streams.status import UnreachableError

Response = service.ReadChangeStreamResponse.pb()


class FakeBackoff:
    """Counts failures without pauses, and raises after `most` failures."""

    def __init__(self, most: int = 5) -> None:
        self.most = most
        self.failures = 0

    def answered(self) -> None:
        self.failures = 0

    def failed(self, reason: str, timeout: float) -> None:
        self.failures += 1
        if self.failures >= self.most:
            raise TimeoutError(reason)

    def remaining_pause(self) -> float:
        return 0.0


class FakeCall:
    """Yields what it is given; an exception among it is raised. Then it stays open until cancelled."""

    def __init__(self, said: list[Any], *, ends: bool) -> None:
        self._said = said
        self._ends = ends
        self.cancelled = threading.Event()

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for each in self._said:
            if isinstance(each, Exception):
                raise each
            yield each.ByteSize(), each
        if not self._ends:
            assert self.cancelled.wait(60), "the stream was not cancelled"
            raise UnreachableError("cancelled")

    def cancel(self) -> None:
        self.cancelled.set()


class FakeSource:
    """Answers positions with scripts, in turn; `opened` are the positions asked for."""

    def __init__(self) -> None:
        self.backoff = FakeBackoff()
        self.opened: list[Position] = []
        self.calls: list[FakeCall] = []
        self._scripts: dict[KeyRange, list[tuple[list[Any], bool]]] = {}

    def will_say(self, partition: KeyRange, *said: Any, ends: bool = False) -> None:
        self._scripts.setdefault(partition, []).append((list(said), ends))

    def open(self, position: Position) -> FakeCall:
        self.opened.append(position)
        scripts = self._scripts.get(position.partition, [])
        said, ends = scripts.pop(0) if scripts else ([], False)
        self.calls.append(FakeCall(said, ends=ends))
        return self.calls[-1]

    def refused_close(self, position: Position, close: CloseStream) -> Exception:
        return UnreachableError(f"closed with {close.code}")


def change(token: str, *, seconds: int = 1, row: bytes = b"row", low: int = 1) -> Any:
    """Return a message that is a whole record of one small cell."""
    message = Response()
    data = message.data_change
    data.type_, data.source_cluster_id, data.row_key, data.done, data.token = 1, "c", row, True, token
    data.commit_timestamp.seconds, data.estimated_low_watermark.seconds = seconds, low
    cell = data.chunks.add().mutation.set_cell
    cell.family_name, cell.value = "f", b"value"
    return message


def heartbeat(partition: KeyRange, token: str, low: int = 1) -> Any:
    message = Response()
    continuation = message.heartbeat.continuation_token
    continuation.token = token
    row_range = continuation.partition.row_range
    row_range.start_key_closed, row_range.end_key_open = partition
    message.heartbeat.estimated_low_watermark.seconds = low
    return message


def close(code: int, *continuations: tuple[KeyRange, str, KeyRange | None]) -> Any:
    """Return a close; a target of None leaves `new_partitions` out."""
    message = Response()
    message.close_stream.status.code = code
    for part, token, target in continuations:
        continuation = message.close_stream.continuation_tokens.add(token=token)
        row_range = continuation.partition.row_range
        row_range.start_key_closed, row_range.end_key_open = part
        if target is not None:
            row_range = message.close_stream.new_partitions.add().row_range
            row_range.start_key_closed, row_range.end_key_open = target
    return message


class Say:
    """The messages above, as a fixture."""

    change = staticmethod(change)
    heartbeat = staticmethod(heartbeat)
    close = staticmethod(close)


@pytest.fixture
def say() -> type[Say]:
    return Say


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()
