"""A table in the front: its column families, and its change stream while that is on."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock_emulators.bigtable.faults import Armed
from penstock_emulators.bigtable.layout import KeyRange, Layout
from penstock_emulators.bigtable.log import CommitClock, Log, Record
from penstock_emulators.bigtable.wire import Origin, RecordEncoder

CHUNK_BYTES = 1 << 20
DAY_US = 86_400_000_000


@dataclass(slots=True, eq=False)
class Reader:
    """One open call on a change stream: its partition, and the event that wakes it."""

    keys: KeyRange
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    records: int = 0


class ChangeStream:
    """The change stream of one table, from being switched on to being switched off.

    `uid` identifies it in tokens. `horizon_us` is the earliest time that can still be read.
    """

    def __init__(self, retention_us: int, layout: Layout, now_us: Callable[[], int]) -> None:
        """Start an empty stream now."""
        self.uid = uuid.uuid4().hex
        self.retention_us = retention_us
        self.layout = layout
        self.log = Log()
        self.clock = CommitClock(now_us)
        self.chunk_bytes = CHUNK_BYTES
        self.wide_tokens = False
        self.faults: list[Armed] = []
        self.readers: set[Reader] = set()
        self.opened = 0
        self.on = True
        self.deleted = False
        self._now_us = now_us
        self._expired_us = now_us()
        self._lag_us = 0
        self._uneven_us = 0
        self._rng = random.Random()
        self._frozen_us: int | None = None

    # Records

    def append(self, changes: Sequence[tuple[bytes, Sequence[Any]]], origin: Origin, begun_us: int) -> None:
        """Log changes (row key, mutations in the form of the stream) that were just applied. A change without
        mutations has no record.

        `begun_us` is a time before the changes were forwarded.

        The caller holds the rows' locks.
        """
        changes = [change for change in changes if change[1]]
        # A stream that is off has no reader who could miss the record.
        if not changes or not self.on:
            return
        first_us = self.clock.take(len(changes), begun_us)
        encode = RecordEncoder(origin, self.chunk_bytes).messages
        self.log.extend(
            [
                Record(key, commit_us, encode(key, commit_us, mutations))
                for commit_us, (key, mutations) in enumerate(changes, first_us)
            ]
        )
        self.wake()

    def inject(self, key: bytes, mutations: Sequence[Any], origin: Origin, commit_us: int) -> int:
        """Log one record without checks; returns its commit timestamp, which is now if 0 was given."""
        commit_us = commit_us or self.clock.take(1, self._now_us())
        messages = RecordEncoder(origin, self.chunk_bytes).messages(key, commit_us, mutations)
        self.log.inject(Record(key, commit_us, messages))
        self.wake()
        return commit_us

    def expire(self, before_us: int) -> int:
        """Delete records committed before `before_us`, and refuse older positions. Returns how many were deleted."""
        self._expired_us = max(self._expired_us, before_us)
        gone = self.log.forget(before_us)
        self.wake()
        return gone

    def horizon_us(self) -> int:
        """Delete records older than the retention period; return the earliest time that can be read."""
        # Called by readers and not by a timer: without a reader nothing has to expire.
        oldest_us = self._now_us() - self.retention_us
        if oldest_us > self._expired_us:
            self.expire(oldest_us)
        return self._expired_us

    # Partitions and readers

    def relay(self, layout: Layout) -> None:
        """Make `layout` the current one. Streams of partitions that it does not have close."""
        self.layout = layout
        self.wake()

    def close_unevenly(self, longest_us: int, seed: int) -> None:
        """Let each stream notice the end of its partition with a delay of up to `longest_us` from now on."""
        self._uneven_us = longest_us
        self._rng = random.Random(seed)

    def close_delay_us(self) -> int:
        """Return the delay of the next stream."""
        return self._rng.randint(0, self._uneven_us)

    def switch_off(self, deleted: bool) -> None:
        """End every stream. With `deleted`, the table was deleted too."""
        self.on, self.deleted = False, deleted
        self.wake()

    def wake(self) -> None:
        """Wake every reader, so that it looks for new records."""
        for reader in self.readers:
            reader.wake.set()

    def sampled_keys(self, rng: random.Random, count: int = 8) -> list[bytes]:
        """Return some keys of recent records, for random layout changes."""
        recent = self.log.read(max(self.log.first, self.log.end - 1000), 1000)
        # With repeats, so that few keys are enough for many changes.
        return [record.key for record in rng.choices(recent, k=count)] if recent else []

    # Watermarks

    def low_watermark_us(self, unlagged_us: int) -> int:
        """Return the watermark to send, where `unlagged_us` would be correct."""
        lagging_us = unlagged_us - self._lag_us
        return lagging_us if self._frozen_us is None else min(lagging_us, self._frozen_us)

    def lag(self, lag_us: int) -> None:
        """Make watermarks older by `lag_us`."""
        self._lag_us = lag_us

    def freeze(self, frozen: bool) -> None:
        """Keep watermarks at or below now, or let them advance again."""
        self._frozen_us = self.clock.watermark_us() - self._lag_us if frozen else None


class Table:
    """One table: its column families as the user wrote them, and its stream, if that is on."""

    def __init__(self, name: str, families: dict[str, Any]) -> None:
        """A table without a stream; `families` are google.bigtable.admin.v2.ColumnFamily by name."""
        self.name = name
        self.first_boundaries: tuple[bytes, ...] = ()
        self.stream: ChangeStream | None = None
        self.set_families(families)

    def set_families(self, families: dict[str, Any]) -> None:
        """Replace the column families."""
        self.families = families
        self.aggregates = {
            name: family.value_type.HasField("aggregate_type") for name, family in families.items()
        }

    def switch_on(self, retention_us: int, now_us: Callable[[], int]) -> None:
        """Start the change stream, or change the retention period of one that is on."""
        if self.stream is not None:
            # The retention of a running stream may change; its records stay.
            self.stream.retention_us = retention_us
        else:
            self.stream = ChangeStream(retention_us, Layout.between(self.first_boundaries), now_us)

    def switch_off(self, deleted: bool = False) -> None:
        """End the change stream, if there is one, and delete its records. With `deleted`, the table was deleted too."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.switch_off(deleted)
