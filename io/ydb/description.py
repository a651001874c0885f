"""The description of a table, its changefeed and its topic, as YDB gives it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.io.ydb.record import Table


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition. `first`, `end`: offsets of the first message that is kept, and after the last one.

    `end` None: the server did not say, and `first` means nothing. `last_write`: nanoseconds; 0: never.
    """

    number: int
    active: bool
    parents: tuple[int, ...]
    children: tuple[int, ...]
    first: int
    end: int | None
    last_write: int


@dataclass(frozen=True, slots=True)
class Description:
    """A changefeed.

    - `table`: its columns and key, with the mode and the format of the changefeed.
    - `barrier_seconds`: interval of barriers; 0: none. `initial_scan`: one was launched.
    - `disabled`: it takes no more changes.
    - `retention_seconds`: how long records are kept.
    - `created_at`: virtual timestamp of the creation of the topic.
    """

    table: Table
    virtual_timestamps: bool
    barrier_seconds: float
    initial_scan: bool
    schema_changes: bool
    disabled: bool
    retention_seconds: float
    created_at: tuple[int, int]
    partitions: tuple[PartitionDescription, ...]
    consumers: tuple[str, ...]

    @property
    def has_commit_times(self) -> bool:
        """Whether each record says when its transaction was committed."""
        return self.virtual_timestamps or self.table.format == "DEBEZIUM_JSON"

    @property
    def limitations(self) -> tuple[str, ...]:
        """The things that a pipeline cannot do with this changefeed, one sentence for each."""
        table, found = self.table, []
        images = {
            "KEYS_ONLY": "events have the key and no other column: no sink can build rows from them",
            "UPDATES": "an update has the written columns only, and a delete has no row: formats that show whole rows "
            "need materialize_rows",
            "NEW_IMAGE": "events have no row before the change",
            "OLD_IMAGE": "events have no row after the change: no sink can build current rows from them",
        }
        if table.mode in images:
            found.append(f"mode {table.mode}: {images[table.mode]}")
        if table.mode != "NEW_AND_OLD_IMAGES":
            found.append(
                f"mode {table.mode}: a created row cannot be told from an updated one; it is an UPDATE"
            )
        if not self.has_commit_times:
            found.append(
                "no virtual timestamps: event times are the times at which the shards made the records, transactions "
                "cannot be told apart, and rows of an initial scan look like updates"
            )
        if not self.barrier_seconds:
            found.append(
                "no barriers: the watermark follows the times of writing and trails them by delivery_seconds. A change "
                "that YDB writes later than that gets a later event time"
            )
        if not self.schema_changes:
            found.append("no schema changes: a new column is known by its type up to a minute later")
        if self.disabled:
            found.append("the changefeed is disabled: it takes no more changes")
        return tuple(found)
