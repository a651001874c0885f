"""The options that several sinks have, each declared once; see `penstock.options`. Pure.

A sink inherits the classes that fit, and declares a field again only where its target differs: another default or text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from penstock.errors import UsageError
from penstock.io.staging.arguments import check_choice
from penstock.options import Accepts, Options, options

RefusedTables = Literal["stop", "park"]

UNAVAILABLE_SECONDS = 600.0
"""How long work is repeated for a target that does not answer."""


@options
class StagingOptions(Options):
    """Where events are between the commit of their epoch and the target, and how long they are collected."""

    roll_seconds: float = 0
    """Time, in seconds of processing time, for which events are collected before they are sent; 0 sends with every
    epoch."""
    staging: str | os.PathLike[str] | None = None
    """Folder or URL for staged batches. All workers must reach it, and only the user of the pipeline should be able to
    read it. Default: in the checkpoint."""


@options
class SendOptions(StagingOptions):
    """How batches are sent; see `SendAfterCommit`."""

    shards: int = 4
    """Number of batches that are sent at the same time, each in a transaction of its own if the target has
    transactions. More than the number of tasks has no effect."""
    unavailable_seconds: float = UNAVAILABLE_SECONDS
    """Time, in seconds, for which a target that does not answer is asked again before the epoch fails."""


@options
class ParkingOptions(Options):
    """What happens to a table that its target refuses; see `penstock.io.staging.table_parking`."""

    on_refused_table: RefusedTables = "stop"
    """What happens when the target refuses a table for good (its columns do not fit, access is denied, it is no table
    of the sink): stop fails the pipeline after all other tables of the epoch; park keeps the changes of the table in
    the checkpoint until `penstock tables` resumes, refills or skips it, and the other tables go on."""
    max_parked_bytes: int = 1 << 30
    """Size of the changes of all parked tables of the sink, in bytes, above which the pipeline fails."""

    @property
    def parked_bytes(self) -> int | None:
        """How large the changes of parked tables may be; None: no table is parked.

        Raises:
            UsageError: an option is wrong.
        """
        check_choice("on_refused_table", self.on_refused_table, get_args(RefusedTables))
        if not self.max_parked_bytes > 0:
            raise UsageError(f"max_parked_bytes must be more than 0, got {self.max_parked_bytes!r}.")
        return None if self.on_refused_table == "stop" else self.max_parked_bytes


@options
class SchemaChangeOptions(Options):
    """How a target with columns follows the columns of the source; see `penstock.event.schema_policies`."""

    schema_changes: Annotated[Sequence[str], Accepts(example="ignore")] = ()
    """What happens when columns of the source change: evolve alters the table, try_evolve also, and rows become dead
    letters where it cannot, lenient also, and a new column takes values of another type, ignore leaves the table and
    drops new columns, stop fails the pipeline. Repeat it for some tables or kinds of change, as in orders=stop,
    type=ignore or orders.add=ignore; the last one that fits counts. Default: evolve. Not every sink has each one."""


@options
class TargetTableOptions(SchemaChangeOptions):
    """The tables of a database that the sink writes to."""

    table: str = "{table}"
    """Name of a target table; ``{table}``, ``{schema}`` and ``{database}`` are the names of the source."""
    create_tables: bool = True
    """Whether to create tables that are missing."""


@options
class TombstoneOptions(Options):
    """How long a target knows that a row was deleted."""

    tombstone_seconds: float = 7 * 86_400
    """Time, in seconds of commit time, for which the tombstone of a deleted row stays in the mode current. At least the
    retention of the change stream and the age at which dead letters are replayed."""
