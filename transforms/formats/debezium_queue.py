"""PostgreSQL's log records as staged records of a queue in Debezium's format. Pure; part of the hot path.

`EventConverter` and then `FormatBeforeCommit` make the same records of a queue, in twice the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.event.model import Image, Source, event_id
from penstock.event.replica import encode_version
from penstock.event.sharding import ShardOfKey, shard_of
from penstock.io.change_streams.lazy_records import parts_of
from penstock.io.postgres.events import OPS, EventConverter
from penstock.io.postgres.logged_rows import KINDS, LoggedRows
from penstock.io.postgres.record import LogRecord, Row, Table
from penstock.io.postgres.staged_record import LOADER, MESSAGE_LOADER, message_of, origin_of, shared_of
from penstock.io.staging.blocks import BucketRun
from penstock.io.staging.formatted_event import queue_records
from penstock.io.staging.formatted_run import FormatBeforeCommit, encode_run, encoded_source
from penstock.io.staging.roll_batches import bucket_of
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_log import LogRecordFormat

_OPS = {first: str(OPS[kind]) for first, kind in KINDS.items()}


class _Table(NamedTuple):
    """The values that all changes of a table have in common."""

    table: Table
    source: Source
    encoded_source: msgspec.Raw
    shared: tuple[Any, ...]
    has_key: bool
    key_of: Callable[[Row], Image | None]
    shard_of: ShardOfKey


class _Shard:
    """The staged records of a shard in order. Neighbours of one table become one run."""

    def __init__(self) -> None:
        self.times_us: list[int] = []
        self._records: list[bytes] = []
        self._table: _Table | None = None
        self._loader = ""
        self._entries: list[tuple[Any, ...]] = []

    def add_entry(self, table: _Table, loader: str, entry: tuple[Any, ...], time_us: int) -> None:
        """Add a change that is formatted. `loader`: makes the event of its origin."""
        if table is not self._table or loader is not self._loader:
            self._end_run()
            self._table, self._loader = table, loader
        self._entries.append(entry)
        self.times_us.append(time_us)

    def add_record(self, record: bytes, time_us: int) -> None:
        """Add a staged record."""
        self._end_run()
        self._records.append(record)
        self.times_us.append(time_us)

    def records(self) -> list[bytes]:
        """Return the staged records."""
        self._end_run()
        return self._records

    def _end_run(self) -> None:
        if self._table is not None and self._entries:
            table = self._table
            self._records.append(encode_run(table.encoded_source, self._loader, table.shared, self._entries))
            self._records += [b""] * (len(self._entries) - 1)
        self._table, self._entries = None, []


class LogQueueRecords:
    """Formats batches of the records of one database for the shards of a queue. Picklable.

    `database`, `stream`: the parts of the source that records do not name; see `ToChangeEvents`. `target` and
    `refuses`: see `FormatBeforeCommit`.
    """

    def __init__(
        self,
        format: DebeziumFormat,
        *,
        shards: int,
        target: str,
        refuses: bool,
        database: str = "",
        stream: str = "",
    ) -> None:
        self._database, self._stream = database, stream
        self._shards = shards
        self._format = LogRecordFormat(format, database=database, stream=stream)
        self._encode_event = FormatBeforeCommit(format, target, refuses=refuses)
        self._convert = EventConverter("", database, stream)
        self._last: _Table | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What is known of the tables is made again in the worker.
        convert = EventConverter("", self._database, self._stream)
        return {**self.__dict__, "_convert": convert, "_last": None}

    def __call__(
        self, records: Sequence[LogRecord], times_us: Sequence[int]
    ) -> tuple[list[BucketRun], list[int]]:
        """Return the staged records of a batch by shard, and the earliest event time of each shard.

        Raises:
            ValueError: a value does not have the form of its type.
            RowRefusedError: the format cannot express a change.
        """
        shards: dict[int, _Shard] = defaultdict(_Shard)
        start = 0
        for part in parts_of(records):
            end = start + len(part)
            if isinstance(part, LoggedRows):
                self._add_rows(shards, part, times_us[start:end])
            else:
                for record, time_us in zip(part, times_us[start:end], strict=True):
                    self._add(shards, record, time_us)
            start = end
        runs = [
            BucketRun(bucket_of(shard, self._shards), staged.times_us, staged.records())
            for shard, staged in shards.items()
        ]
        return runs, [min(run.times_us) for run in runs]

    def _add(self, shards: dict[int, _Shard], record: LogRecord, time_us: int) -> None:
        made = self._format.short(record)
        # A change without records is of a kind that the format leaves out.
        if made and record.table is not None:
            table = self._find(record.table)
            # Without a transaction the id needs the key.
            needs_key = self._shards > 1 or record.transaction is None
            key = table.key_of(record.new or record.old or ()) if needs_key else None
            version = made[0].version
            entry = (
                OPS[record.kind],
                event_id(version, key),
                encode_version(version),
                table.has_key,
                queue_records(made),
                "",
                origin_of(record),
            )
            shards[table.shard_of(key)].add_entry(table, LOADER, entry, time_us)
            return
        for event in self._convert(record):
            encoded = self._encode_event(event)
            shards[shard_of(event, self._shards)].add_record(encoded, time_us)

    def _add_rows(self, shards: dict[int, _Shard], part: LoggedRows, times_us: Sequence[int]) -> None:
        """Do the same for rows that are not decoded."""
        start = 0
        for table, rows in part.by_table():
            own = times_us[start : start + len(rows)]
            done = 0
            # Invariant: `rows[:done]` is staged.
            while done < len(rows):
                staged = self._add_values(shards, table, rows, done, own)
                if not staged:
                    self._add(shards, rows[done], own[done])
                done += max(1, staged)
            start += len(rows)

    def _add_values(
        self, shards: dict[int, _Shard], table: Table, rows: LoggedRows, start: int, times_us: Sequence[int]
    ) -> int:
        """Stage rows of one table from `start` on that have one record each; return how many."""
        topic, values, keys, decoded = self._format.values(table, rows, start)
        of = self._find(table)
        transaction = before_id = before_version = None
        timestamp_ms = 0
        for number, (key, value, row) in enumerate(zip(keys, values, decoded, strict=True), start):
            lsn, payload = rows.messages[number]
            sequence = rows.sequences[number]
            if rows.transactions[number] is not transaction:
                transaction = rows.transactions[number]
                # As `event_id` and `encode_version` write them: to call both for each row costs as much as the rest
                # here.
                before_id = f"{transaction.commit_lsn}-{transaction.id}-"
                before_version = f"{transaction.commit_lsn:024d} {transaction.id} "
                timestamp_ms = max(0, rows.timestamps[number] // 1_000_000)
            entry = (
                _OPS[payload[0]],
                f"{before_id}{lsn:020d}-{sequence}",
                f"{before_version}{lsn:020d} {sequence:010d}",
                of.has_key,
                ((topic, key, value, timestamp_ms, ()),),
                "",
                message_of(rows, number),
            )
            shard = of.shard_of(of.key_of(row)) if self._shards > 1 else 0
            shards[shard].add_entry(of, MESSAGE_LOADER, entry, times_us[number])
        return len(values)

    def _find(self, table: Table) -> _Table:
        # Neighbours share their table, and its hash walks all columns.
        if self._last is None or self._last.table is not table:
            source, schema = self._convert.source_and_schema(table)
            self._last = _Table(
                table,
                source,
                encoded_source(source),
                shared_of(self._database, self._stream, table),
                bool(schema.key_columns),
                self._convert.key_of(table),
                ShardOfKey(source, self._shards),
            )
        return self._last
