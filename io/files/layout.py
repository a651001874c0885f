"""Folders of files with columns, as Spark, DuckDB and BigQuery read them (Hive's layout). Pure.

    <table>/date=2026-11-21/hour=16/<shard>-of-<shards>-<columns>

`date` and `hour` come from the event time, in UTC. `<columns>` is a digest of the table's columns: a file has
events of one version of them, so a change of the columns begins a new file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from penstock.errors import UsageError
from penstock.event.model import ChangeEvent, Source, TableSchema
from penstock.event.sharding import shard_of
from penstock.io.files.names import NO_EVENT_TIME, event_hour, hour_folder, shard_name
from penstock.io.staging.names import folder_name

Partitions = Literal["hour", "day", "none"]

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""What Hive, Spark and DuckDB read as NULL."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Gives each event its bucket; a value that can be pickled. `table` is a name or a function of the event."""

    table: str | Callable[[ChangeEvent], str] | None
    partition_by: Partitions
    shards: int

    def __post_init__(self) -> None:
        if self.partition_by not in get_args(Partitions):
            allowed = ", ".join(get_args(Partitions))
            raise UsageError(f"partition_by is one of {allowed}, got {self.partition_by!r}.")
        if not isinstance(self.shards, int) or self.shards < 1:
            raise UsageError(f"shards must be 1 or more, got {self.shards!r}.")

    def __call__(self, event: ChangeEvent, event_us: int) -> str:
        shard = shard_of(event, self.shards)
        return self._bucket_of(self.table_of(event), event.schema, event_us, shard)

    @property
    def needs_events(self) -> bool:
        """Whether the bucket depends on more than the source, the columns and the event time."""
        return callable(self.table) or self.shards > 1

    def bucket_of(self, source: Source, schema: TableSchema, event_us: int) -> str:
        """Return the bucket of all events of a source with these columns and this time. Not with `needs_events`."""
        table = self.table if isinstance(self.table, str) else _table_folder(source)
        return self._bucket_of(table, schema, event_us, 0)

    def _bucket_of(self, table: str, schema: TableSchema, event_us: int, shard: int) -> str:
        # Days are counted from hours, so both use one function for the folder.
        hour = event_hour(event_us) if self.partition_by == "hour" else event_hour(event_us) // 24
        return _bucket(table, schema, hour, self.partition_by, shard, self.shards)

    def table_of(self, event: ChangeEvent) -> str:
        """Return the name of the folder of a table, before characters are escaped."""
        if self.table is None:
            return _table_folder(event.source)
        return self.table if isinstance(self.table, str) else self.table(event)

    def folders_of(self, sources: Iterable[Source]) -> list[str]:
        """Return the folders for events of tables, each once. Not for a `table` that is a function."""
        if isinstance(self.table, str):
            return [folder_name(self.table)]
        return list(dict.fromkeys(folder_name(_table_folder(source)) for source in sources))


def _table_folder(source: Source) -> str:
    # An event without a table, such as a message, goes into a folder with the name of its system.
    return source.qualified_table or source.system


# Few buckets have many events, and to make their name costs more than a look-up.
@lru_cache(maxsize=4096)
def _bucket(table: str, schema: TableSchema, number: int, by: Partitions, shard: int, shards: int) -> str:
    # The digest is part of the bucket: a file has one schema.
    last = f"{shard_name(shard, shards)}-{columns_digest(schema)}"
    return f"{folder_name(table)}/{partition_folder(number, by)}{last}"


@lru_cache(maxsize=1024)
def partition_folder(number: int, by: Partitions) -> str:
    """Return the folders of an hour or a day, counted from 1970; empty or with a slash at the end."""
    if by == "none":
        return ""
    folder = hour_folder(number if by == "hour" else number * 24)
    # An hour outside of the years that engines read becomes Hive's NULL.
    date, hour = (NULL_PARTITION, NULL_PARTITION) if folder == NO_EVENT_TIME else (folder[:10], folder[11:13])
    return f"date={date}/hour={hour}/" if by == "hour" else f"date={date}/"


@lru_cache(maxsize=1024)
def columns_digest(schema: TableSchema) -> str:
    """Return eight digits that differ for different columns."""
    # `repr` shows every part of a type, and is stable for equal columns.
    columns = [(each.name, repr(each.type), each.key_position) for each in schema]
    return hashlib.blake2b(repr(columns).encode(), digest_size=4).hexdigest()
