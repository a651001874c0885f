"""The options of Bigtable's sources, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from penstock.io.bigtable.filter import Column
from penstock.io.change_streams.options import (
    GoogleOptions,
    SignalOptions,
    Snapshot,
    StreamOptions,
    WaitOptions,
)
from penstock.options import Accepts, options

_COLUMN = Accepts(pattern="[^:]+:.*", words="a column as family:qualifier")


@options
class BigtableOptions(GoogleOptions, WaitOptions):
    """A table, and how a worker reaches it."""

    table: Annotated[
        str,
        Accepts(
            pattern="[A-Za-z0-9_.-]{1,50}",
            words="a table id (1 to 50 letters, digits, underscores, dots and hyphens)",
            example="users",
        ),
    ]
    """Table to read."""
    app_profile: Annotated[str, Accepts(example="change-streams")] = "default"
    """App profile to read with. It must route to a single cluster."""
    row_range: tuple[bytes, bytes] | None = None
    """(First row key, inclusive; row key to end before, ``b""`` for none). None: all rows. Kept in the checkpoint;
    partitions that hold none of the rows are not read."""


@options
class BigtableStreamOptions(BigtableOptions, SignalOptions, StreamOptions):
    """The options of `ReadFromBigtableChangeStream`."""

    table: str
    """Table whose change stream is read; it must have a change stream."""
    snapshot: Annotated[Snapshot, Accepts(example="initial")] = "never"
    """With initial, the first start also reads all rows, while it reads changes; both together converge to the table.
    With when_needed, also when the service no longer has the changes after the checkpoint; cells that were deleted in
    that time cannot be known. With never, changes only."""
    chunk_rows: int = 10_240
    """Number of rows that a snapshot reads at once, unless a signal says it."""
    families: Annotated[Iterable[str], Accepts(example="profile")] = ()
    """Column family to read; repeat for more. Without families and columns, all are read."""
    columns: Annotated[Iterable[str | Column], _COLUMN, Accepts(example="profile:name")] = ()
    """Column to read, as family:qualifier; repeat for more."""
    ignored_families: Annotated[Iterable[str], Accepts(example="scratch")] = ()
    """Column family to exclude; repeat for more."""
    ignored_columns: Annotated[Iterable[str | Column], _COLUMN, Accepts(example="profile:seen")] = ()
    """Column to exclude, as family:qualifier; repeat for more."""
    garbage_collection: bool = True
    """Whether deletions by garbage collection are read, as changes whose is_gc is true."""
    source_clusters: Annotated[Iterable[str], Accepts(example="my-cluster-c1")] = ()
    """Cluster whose changes are read; repeat for more. Without any, changes of all clusters are read."""
    heartbeat_seconds: Annotated[float, Accepts(minimum=0.1, maximum=60)] = 1.0
    """Interval, in seconds, at which Bigtable sends a heartbeat for a partition without changes."""
    max_concurrent_partitions: int = 64
    """Number of partitions that one worker process reads at once; the others take turns."""
    merge_wait_seconds: float = 0.05
    """Time, in seconds, for which a partition waits for a merge before it asks the service whether the merge still
    comes."""
