"""Windows made by hand instead of queries, and prefetcher over them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from google.cloud.spanner_v1.types import result_set

from penstock.errors import UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.spanner.prefetch import Limits, Prefetcher
from penstock.io.spanner.reader import Opener
from penstock.io.spanner.state import Batch
from penstock.timestamps import format_timestamp

PartialResultSet = result_set.PartialResultSet.pb()
MILLI = 1_000_000


def heartbeat(timestamp: int) -> Any:
    """Return a message with one heartbeat row."""
    message = PartialResultSet()
    _entry(message, 1).add().string_value = format_timestamp(timestamp)
    return message


def children(timestamp: int, parent: str, *tokens: str) -> Any:
    """Return a message with one child partitions row: `tokens` begin at `timestamp`."""
    message = PartialResultSet()
    fields = _entry(message, 2)
    fields.add().string_value = format_timestamp(timestamp)
    fields.add().string_value = "00000001"
    partitions = fields.add().list_value.values
    for token in tokens:
        child = partitions.add().list_value.values
        child.add().string_value = token
        child.add().list_value.values.add().string_value = parent
    return message


def _entry(message: Any, kind: int) -> Any:
    """Add a row with one record of a kind (0 data, 1 heartbeat, 2 child partitions); return its fields."""
    kinds = message.values.add().list_value.values.add().list_value.values
    for _ in range(3):
        kinds.add().list_value.SetInParent()
    return kinds[kind].list_value.values.add().list_value.values


class FakeCall:
    """Sends messages until its end has passed, as a bounded query does."""

    def __init__(self, messages: Iterator[Any], end: int) -> None:
        self._messages = messages
        self._end = end
        self.cancelled_at = 0

    def __iter__(self) -> Iterator[Any]:
        yield from (message.SerializeToString() for message in self._messages)
        while time.time_ns() < self._end and not self.cancelled_at:
            time.sleep(0.002)

    def cancel(self) -> None:
        self.cancelled_at = time.time_ns()

    def end(self) -> None:
        """End it now, as if its time were over."""
        self._end = 0


Answer = Callable[[str, int, int], Iterator[Any]]


def calls_of(answer: Answer) -> tuple[Opener, list[tuple[str, int, int]], list[FakeCall]]:
    """Return a function that starts windows of `answer(token, start, end)`, the list of its calls, and the windows."""
    asked: list[tuple[str, int, int]] = []
    windows: list[FakeCall] = []

    def ask(token: str, start: int, end: int) -> FakeCall:
        asked.append((token, start, end))
        windows.append(FakeCall(answer(token, start, end), end))
        return windows[-1]

    return ask, asked, windows


def opened(answer: Answer, **changed: Any) -> tuple[Prefetcher, list[tuple[str, int, int]], list[FakeCall]]:
    """Return prefetcher over windows of `answer`, what they asked, and the windows."""
    ask, asked, windows = calls_of(answer)
    end = changed.pop("end", None)
    return Prefetcher(ask, new_backoff(), limits(**changed), end), asked, windows


def limits(**changed: Any) -> Limits:
    """Return small limits, some of them changed."""
    given: dict[str, Any] = {
        "poll_seconds": 0.04, "unavailable_seconds": 1.0, "max_concurrent_partitions": 4, "buffer_bytes": 1 << 20,
        "idle_stream_seconds": 5.0,
    }  # fmt: skip
    return Limits(**{**given, **changed})


def new_backoff() -> Backoff:
    return Backoff("Spanner", UnavailableError)


def beats(token: str, start: int, end: int) -> Iterator[Any]:
    yield heartbeat(end)


def reader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-spanner-reader")]


def taken(prefetcher: Prefetcher, seconds: float) -> list[Batch]:
    until = time.monotonic() + seconds
    batches = []
    while time.monotonic() < until:
        batch = prefetcher.take(0.02)
        if batch is not None:
            batch.claimed = len(batch.steps)
            batches.append(batch)
    return batches
