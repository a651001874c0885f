"""The options that several sinks have, each declared once; see `penstock.options`. Pure.

A sink inherits the classes that fit, and declares a field again only where its target differs: another default or text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

from penstock.options import Accepts, Options, options

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
