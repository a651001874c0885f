"""The options that sinks of files with columns and of tables share; see `penstock.options`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args

from penstock.errors import UsageError
from penstock.event.feed_rows import Layout
from penstock.event.schema_policies import Abilities
from penstock.io.columnar.table_rows import Mode
from penstock.io.staging.arguments import check_choice
from penstock.io.staging.options import ParkingOptions, SchemaChangeOptions, StagingOptions, TombstoneOptions
from penstock.options import Accepts, options

ParquetCompression = Literal["zstd", "snappy", "gzip", "none"]
AvroCompression = Literal["deflate", "none"]
"""What fastavro writes without a further package."""

_COLUMNS: Abilities = {
    "add": ("evolve", "lenient", "ignore", "stop"),
    "widen": ("evolve", "lenient", "ignore", "stop"),
    "type": ("ignore", "stop"),
    "narrow": ("lenient", "ignore", "stop"),
    "drop": ("lenient", "ignore"),
    "rename": ("lenient",),
    "nullability": ("lenient", "ignore"),
}
_ROWS: Abilities = {**_COLUMNS, "type": ("lenient", "ignore", "stop")}

ABILITIES: Mapping[Mode, Abilities] = {"log": _COLUMNS, "current": _ROWS, "history": _ROWS}
"""The policies for changes of columns that tables of Delta and Iceberg keep; see `penstock.event.schema_policies`."""


@options
class TableSinkOptions(SchemaChangeOptions, TombstoneOptions, ParkingOptions, StagingOptions):
    """How the changes of an epoch become one commit of a table."""

    mode: Mode = "current"
    """Rows of a table: one for each change (log), one for each primary key (current), or one for each version of a row
    (history)."""
    roll_seconds: float = 10
    """Time, in seconds of processing time, for which events are collected before a commit; 0: one commit for each
    epoch."""
    layout: Layout = "events"
    """Columns of a table in the mode log. With events, `op`, `timestamp`, `key`, `before`, `after`, `metadata`. With
    table, the columns of the table and `_change_type`, `_commit_version`, `_commit_timestamp`, `_not_sent`; an update
    has a row for the old values, if the source sends them, and one for the new ones."""
    partition_by: Annotated[Sequence[str], Accepts(example="orders=day(created_at)")] = ()
    """Columns by which tables are partitioned that the sink creates: region, or day(created_at) for the day of a time
    in UTC (year, month, day, hour). Repeat it for several columns, and for some tables, as in orders=region; all
    entries that fit count. In the mode log: op, and a unit of timestamp; with layout=table, _change_type and a unit of
    _commit_timestamp. A table that exists keeps its own."""
    version_seconds: float = 0
    """Time, in seconds, for which older versions of a table can be read. The upkeep forgets those that were replaced
    earlier, and deletes the files that no other version needs; 0: all stay."""
    max_index_bytes: int = 1 << 29
    """Size of the driver's index of the keys of its tables, in bytes, some 25 for each integer key: with it an epoch in
    the modes current and history reads no file to find rows (Delta: with deletion vectors). It is in the folder for
    temporary files. Tables that have no place in it are read; 0: all."""
    mark_complete: bool = False
    """Whether each table says until which commit time it is complete, also while nothing changes. `complete_until`
    reads it."""
    mark_complete_seconds: float = 60
    """Time, in seconds, between two such marks, at least. Each mark is a commit of each table, without rows."""

    def check_layout(self) -> None:
        """Raise UsageError if there is no such layout, or the mode has none."""
        check_choice("layout", self.layout, get_args(Layout))
        if self.layout == "table" and self.mode != "log":
            raise UsageError(
                f"layout='table' is for mode='log', and the mode is {self.mode}, whose tables have the columns of the "
                "source anyway: leave layout out, or set mode='log'"
            )

    def check_upkeep(self) -> None:
        """Raise UsageError if `version_seconds` or `max_index_bytes` is negative."""
        for name in ("version_seconds", "max_index_bytes"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be 0 or more, got {getattr(self, name)!r}.")

    @property
    def mark_seconds(self) -> float | None:
        """The time between two marks; None: there are none.

        Raises:
            UsageError: it is negative.
        """
        if self.mark_complete_seconds < 0:
            raise UsageError(f"mark_complete_seconds must be 0 or more, got {self.mark_complete_seconds!r}.")
        return self.mark_complete_seconds if self.mark_complete else None
