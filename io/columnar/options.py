"""The options that sinks of files with columns and of tables share; see `penstock.options`. Pure."""

from __future__ import annotations

from typing import Literal

from penstock.errors import UsageError
from penstock.io.columnar.table_rows import Mode
from penstock.io.staging.options import SchemaChangeOptions, StagingOptions, TombstoneOptions
from penstock.options import options

ParquetCompression = Literal["zstd", "snappy", "gzip", "none"]
AvroCompression = Literal["deflate", "none"]
"""What fastavro writes without a further package."""


@options
class TableSinkOptions(SchemaChangeOptions, TombstoneOptions, StagingOptions):
    """How the changes of an epoch become one commit of a table."""

    mode: Mode = "current"
    """Rows of a table: one for each change (log), one for each primary key (current), or one for each version of a row
    (history)."""
    roll_seconds: float = 10
    """Time, in seconds of processing time, for which events are collected before a commit; 0: one commit for each
    epoch."""
    mark_complete: bool = False
    """Whether each table says until which commit time it is complete, also while nothing changes. `complete_until`
    reads it."""
    mark_complete_seconds: float = 60
    """Time, in seconds, between two such marks, at least. Each mark is a commit of each table, without rows."""

    @property
    def mark_seconds(self) -> float | None:
        """The time between two marks; None: there are none.

        Raises:
            UsageError: it is negative.
        """
        if self.mark_complete_seconds < 0:
            raise UsageError(f"mark_complete_seconds must be 0 or more, got {self.mark_complete_seconds!r}.")
        return self.mark_complete_seconds if self.mark_complete else None
