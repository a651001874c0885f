"""Tables with changefeeds, and the order in which their changes reach the topics. Pure; the clock is injected.

- Each transaction has one virtual timestamp (step, transaction id), later than every earlier transaction's.
- A table has shards. A shard delivers its changes in order, and shards are not in step: `hold` stops one of them. So
  the records of one key are in order, and records of two keys of one partition need not be.
- A barrier (step, 0) is written to every active partition when no shard has an undelivered record before it.
- The initial scan delivers the rows of the snapshot bit by bit. A change of a row that was not scanned yet delivers
  the row first. No barrier is written while a scan runs.

Source: YDB documentation, "Change Data Capture" (Guarantees, Virtual timestamps, Barriers, Initial table scan).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock_emulators.ydb.records import (
    FORMATS,
    MODES,
    Change,
    Changefeed,
    Table,
    barrier,
    partition_key,
    record,
    schema_change,
)
from penstock_emulators.ydb.topic import Message, Topic, TopicError, hash_of

Operation = tuple[str, str, Sequence[Any], Mapping[str, Any]]
"""(upsert, replace, update or erase; table; key; columns to write)."""


class DatabaseError(ValueError):
    """The database cannot do what was asked."""


@dataclass(slots=True)
class _Pending:
    """A record on its way from a shard to the topic; `hashed` None: it goes to every active partition."""

    step: int
    tx_id: int
    hashed: int | None
    key: bytes
    data: bytes
    created_at: int


@dataclass(slots=True)
class Feed:
    """A changefeed and its way to the topic. `to_scan`: the rows of the snapshot that were not delivered yet."""

    options: Changefeed
    topic: Topic
    queues: list[deque[_Pending]]
    enabled: bool = True
    scanned: bool = False
    snapshot: tuple[int, int] = (0, 0)
    to_scan: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    rows_to_scan: int = 0
    next_barrier: int = 0
    seq_nos: list[int] = field(default_factory=list)


@dataclass(slots=True)
class StoredTable:
    table: Table
    shards: int
    rows: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    feeds: dict[str, Feed] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)


class Database:
    """The tables and topics below one path, such as ``/local``. `clock` returns nanoseconds since 1970."""

    def __init__(self, path: str, clock: Callable[[], int]) -> None:
        self.path, self.clock = path, clock
        self.tables: dict[str, StoredTable] = {}
        self.topics: dict[str, Topic] = {}
        self._step, self._tx_id = 0, 562_949_953_421_312
        self.changed: Callable[[], None] = lambda: None
        """Called when a topic may have new messages."""

    # Tables and changefeeds.

    def create_table(
        self, name: str, columns: Mapping[str, str], key: Sequence[str], *, shards: int = 1
    ) -> None:
        """Create a table.

        Raises:
            DatabaseError: it exists, or the key names no column.
        """
        if name in self.tables or not set(key) <= columns.keys() or not key:
            raise DatabaseError(
                f"table {name} exists already, or its key {list(key)} is not among its columns"
            )
        self.tables[name] = StoredTable(Table(f"{self.path}/{name}", dict(columns), tuple(key)), shards)

    def drop_table(self, name: str) -> None:
        """Drop a table, its changefeeds and their topics."""
        for feed in list(self.stored(name).feeds):
            self.drop_changefeed(name, feed)
        del self.tables[name]

    def alter_table(self, name: str, columns: Mapping[str, str | None]) -> None:
        """Add columns, or drop those with the type None. Changefeeds with schema changes say so, in every partition."""
        stored, at = self.stored(name), self.next_timestamp()
        merged = {**stored.table.columns, **columns}
        kept = {column: type_ for column, type_ in merged.items() if type_ is not None}
        version = stored.table.schema_version + 1
        stored.table = replace(stored.table, columns=kept, schema_version=version)
        for row in stored.rows.values():
            for column, type_ in columns.items():
                if type_ is None:
                    row.pop(column, None)
                else:
                    row.setdefault(column, None)
        for feed in stored.feeds.values():
            if feed.options.schema_changes and feed.enabled:
                pending = _Pending(*at, None, b"", schema_change(stored.table, *at), self.clock())
                feed.queues[0].append(pending)
        self.deliver()

    def add_changefeed(
        self,
        table: str,
        name: str,
        *,
        partitions: int = 1,
        retention_seconds: float = 86_400,
        initial_scan: bool = False,
        **options: Any,
    ) -> None:
        """Add a changefeed; `options` are fields of `Changefeed`.

        Raises:
            DatabaseError: it exists, or YDB has no such options.
        """
        stored, made = self.stored(table), Changefeed(name, **options)
        debezium = made.format == "DEBEZIUM_JSON"
        if name in stored.feeds or made.mode not in MODES or made.format not in FORMATS:
            raise DatabaseError(f"changefeed {name} exists already, or mode or format is unknown")
        if made.mode == "UPDATES" and made.format != "JSON":
            raise DatabaseError(f"format {made.format} has no mode UPDATES")
        if made.barrier_seconds and debezium:
            raise DatabaseError("format DEBEZIUM_JSON has no barriers")
        at = self.next_timestamp()
        topic = Topic(
            f"{stored.table.path}/{name}",
            partitions=partitions,
            retention_seconds=retention_seconds,
            created_at=at,
        )
        feed = Feed(made, topic, [deque() for _ in range(stored.shards)], seq_nos=[0] * stored.shards)
        if initial_scan:
            feed.snapshot, feed.scanned = at, True
            feed.to_scan = {key: dict(row) for key, row in stored.rows.items()}
            feed.rows_to_scan = len(feed.to_scan)
        if made.barrier_seconds:
            feed.next_barrier = at[0]
        stored.feeds[name] = feed
        self.topics[topic.path] = topic

    def drop_changefeed(self, table: str, name: str) -> None:
        """Drop a changefeed and its topic."""
        del self.topics[self.feed(table, name).topic.path]
        del self.stored(table).feeds[name]
        self.changed()

    def disable_changefeed(self, table: str, name: str) -> None:
        """Let a changefeed take no more changes."""
        self.feed(table, name).enabled = False

    def stored(self, name: str) -> StoredTable:
        """Return a table by its name relative to the database.

        Raises:
            DatabaseError: there is none.
        """
        if name not in self.tables:
            raise DatabaseError(f"there is no table {name}")
        return self.tables[name]

    def feed(self, table: str, name: str) -> Feed:
        """Return a changefeed.

        Raises:
            DatabaseError: there is none.
        """
        feeds = self.stored(table).feeds
        if name not in feeds:
            raise DatabaseError(f"table {table} has no changefeed {name}")
        return feeds[name]

    # Changes.

    def next_timestamp(self) -> tuple[int, int]:
        """Return the virtual timestamp of the next transaction."""
        self._step = max(self._step, self.clock() // 1_000_000)
        self._tx_id += 1
        return self._step, self._tx_id

    def commit(self, operations: Sequence[Operation], user: str = "") -> tuple[int, int]:
        """Apply the operations of one transaction; return its virtual timestamp.

        Raises:
            DatabaseError: an operation is malformed. Nothing was changed.
        """
        for operation, table, key, values in operations:
            stored = self.stored(table).table
            if operation not in ("upsert", "replace", "update", "erase") or len(key) != len(stored.key):
                raise DatabaseError(f"{operation} with {len(key)} key values does not fit table {table}")
            if not values.keys() <= stored.columns.keys() - set(stored.key):
                raise DatabaseError(f"table {table} has no such columns: {sorted(values)}")
        at = self.next_timestamp()
        for operation, table, key, values in operations:
            self._apply(self.stored(table), operation, tuple(key), values, at, user)
        self.deliver()
        return at

    def _apply(
        self,
        stored: StoredTable,
        operation: str,
        key: tuple[Any, ...],
        values: Mapping[str, Any],
        at: tuple[int, int],
        user: str,
    ) -> None:
        table, before = stored.table, stored.rows.get(key)
        if before is None and operation in ("update", "erase"):
            # An UPDATE of no row changes nothing. YDB records the erase of a row that does not exist.
            if operation == "update":
                return
            after = None
        elif operation == "erase":
            after = None
        else:
            base = None if operation == "replace" else before
            empty = {name: None for name in table.columns if name not in table.key}
            after = {**(base or empty), **values}
        named = {"erase": "erase", "replace": "reset"}.get(operation, "update")
        now = self.clock()
        change = Change(named, key, dict(values), before, after, *at, now // 1_000_000, user)
        for feed in stored.feeds.values():
            if feed.enabled:
                self._scan_row(stored, feed, key)
                self._enqueue(stored, feed, change)
        if after is None:
            stored.rows.pop(key, None)
        else:
            stored.rows[key] = after

    def _scan_row(self, stored: StoredTable, feed: Feed, key: tuple[Any, ...]) -> None:
        """Deliver a row of the snapshot, if it was not scanned yet."""
        row = feed.to_scan.pop(key, None)
        if row is not None:
            change = Change("scan", key, row, None, row, *feed.snapshot, self.clock() // 1_000_000)
            self._enqueue(stored, feed, change)

    def _enqueue(self, stored: StoredTable, feed: Feed, change: Change) -> None:
        placed = partition_key(stored.table, change.key)
        shard = hash_of(b"shard" + placed) % stored.shards
        feed.seq_nos[shard] += 1
        key, data = record(stored.table, feed.options, change, shard, feed.seq_nos[shard])
        pending = _Pending(change.step, change.tx_id, hash_of(placed), key, data, self.clock())
        feed.queues[shard].append(pending)

    # The way to the topics.

    def hold(self, table: str, shard: int, held: bool = True) -> None:
        """Let a shard deliver nothing until it is released (`held` False)."""
        stored = self.stored(table)
        (stored.held.add if held else stored.held.discard)(shard)
        self.deliver()

    def scan(self, rows: int) -> None:
        """Deliver up to `rows` more rows of each initial scan."""
        for stored in self.tables.values():
            for feed in stored.feeds.values():
                for key in list(feed.to_scan)[:rows]:
                    self._scan_row(stored, feed, key)
        self.deliver()

    def deliver(self) -> None:
        """Write what the shards that are not held have queued."""
        for stored in self.tables.values():
            for feed in stored.feeds.values():
                for shard, queue in enumerate(feed.queues):
                    while queue and shard not in stored.held:
                        self._write(feed, queue.popleft(), shard)
        self.changed()

    def _write(self, feed: Feed, pending: _Pending, shard: int) -> None:
        metadata = (("__key", pending.key),) if pending.key else ()
        message = Message(
            pending.data, pending.created_at, self.clock(), metadata, f"shard-{shard}", pending.tx_id
        )
        if pending.hashed is not None:
            feed.topic.write(pending.hashed, message)
            return
        for partition in feed.topic.active:
            feed.topic.append(partition.number, message)

    def emit_barriers(self) -> int:
        """Write the barriers that are due and possible; return how many (each goes to every active partition)."""
        count, now_ms = 0, self.clock() // 1_000_000
        for stored in self.tables.values():
            for feed in stored.feeds.values():
                if not feed.options.barrier_seconds or feed.to_scan or not feed.enabled:
                    continue
                interval = max(1, round(feed.options.barrier_seconds * 1000))
                # Look at all entries of each queue, not only at the first: a row of the scan may wait behind a later
                # change.
                undelivered = min((each.step for queue in feed.queues for each in queue), default=now_ms)
                # Later transactions have at least the step of the last one, so its own step is not complete yet.
                step = min(undelivered, now_ms) // interval * interval
                if step > feed.next_barrier:
                    feed.next_barrier, count = step, count + 1
                    message = Message(barrier(step), self.clock(), self.clock())
                    for partition in feed.topic.active:
                        feed.topic.append(partition.number, message)
        if count:
            self.changed()
        return count

    def expire(self) -> None:
        """Delete the messages that are older than the retention of their topics."""
        for topic in self.topics.values():
            topic.expire(self.clock())

    def create_topic(self, name: str, **options: Any) -> Topic:
        """Create a topic that belongs to no table; `options` are fields of `Topic`."""
        path = f"{self.path}/{name}"
        if path in self.topics:
            raise TopicError(f"topic {path} exists already")
        self.topics[path] = Topic(path, created_at=self.next_timestamp(), **options)
        return self.topics[path]
