"""One adapter for each source: a service in memory, and the source's transform over it.

A new source adds an adapter here, and every test of this folder runs over it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from penstock.io.change_streams.transform import ReadFromChangeStream

SECOND = 1_000_000_000


class Adapter(ABC):
    """A service with a few partitions. All commits are in the past, so that a bounded read ends soon."""

    name: str
    namespace: str
    partitions = 2
    """How many partitions the service has; the keys below "n" are in one, the others in the other."""

    def __init__(self) -> None:
        self.start = time.time_ns() // SECOND * SECOND - 20 * SECOND
        self.committed: list[tuple[int, str]] = []

    def fill(self, count: int = 40) -> int:
        """Commit `count` changes at different times, to all partitions; return the last commit timestamp."""
        for number in range(count):
            timestamp = self.start + number * SECOND // 10
            key = "abcdefghijklmnopqrstuvwxyz"[number % 26] + str(number)
            self.committed.append((timestamp, key))
            self.commit(timestamp, key)
        return timestamp

    @abstractmethod
    def commit(self, timestamp: int, key: str) -> None:
        """Commit one change; timestamps rise."""

    def commit_damaged(self, timestamp: int) -> None:
        """Commit one change that the source can place but not decode. Sources with an error output implement it."""
        raise NotImplementedError

    @abstractmethod
    def transform(self, **options: Any) -> ReadFromChangeStream:
        """Return the source's transform, which reads from this service; `start` is this adapter's unless given."""

    @abstractmethod
    def identity(self, record: Any) -> tuple[int, str]:
        """Return the (timestamp, key) with which a record was committed."""

    @abstractmethod
    def fail(self, kind: str) -> None:
        """From now on the service answers with a failure.

        The kinds are: "missing" (no such stream), "unavailable", "position lost", "damaged" (a message that cannot be
        decoded).
        """


def adapters() -> list[type[Adapter]]:
    """Return what makes the adapter of each source."""
    from tests.conformance.bigtable import BigtableAdapter
    from tests.conformance.postgres import PostgresAdapter
    from tests.conformance.spanner import SpannerAdapter
    from tests.conformance.toy import ToyAdapter
    from tests.conformance.ydb import YdbAdapter

    return [ToyAdapter, SpannerAdapter, BigtableAdapter, YdbAdapter, PostgresAdapter]
