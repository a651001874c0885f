"""The options that several sources have, each declared once; see `penstock.options`. Pure.

A source inherits the classes that fit, and declares a field again only where its service differs: another default,
limit or text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from penstock.options import Accepts, Options, options
from penstock.timestamps import Timelike

Snapshot = Literal["never", "initial", "when_needed"] | bool
"""Values of the option `snapshot`. True and False mean initial and never."""


@options
class PeriodOptions(Options):
    """The part of a change stream that a pipeline reads."""

    start: Annotated[Timelike | None, Accepts(example="2026-01-31T00:00:00Z")] = None
    """First commit timestamp to read, inclusive; must be within the retention of the stream. Default: now, the time
    when the transform is made. Used only at the first start of the pipeline; afterwards it continues from the
    checkpoint."""
    end: Annotated[Timelike | None, Accepts(example="2026-02-01T00:00:00Z")] = None
    """Last commit timestamp to read, inclusive; then the pipeline ends. Without it, the pipeline runs until it is
    stopped. A pipeline that resumes may have a later end or none, but no earlier one."""


@options
class WaitOptions(Options):
    """How long a reader may wait for its service."""

    unavailable_seconds: Annotated[float, Accepts(minimum=1, maximum=86_400)] = 60.0
    """Time, in seconds, for which the service may be unavailable before the pipeline fails."""


@options
class LimitOptions(WaitOptions):
    """How much a reader may hold."""

    buffer_bytes: int = 32 << 20
    """How much one worker process may read ahead of the pipeline, in bytes as sent by the service."""
    idle_stream_seconds: float = 3.0
    """Time, in seconds, for which an open stream waits for the next bundle that continues at its position; 0: not at
    all."""


@options
class StreamOptions(LimitOptions, PeriodOptions):
    """The options of every change stream."""

    heartbeat_seconds: float = 1.0
    """Interval, in seconds, of the service's heartbeats."""


@options
class SignalOptions(Options):
    """How applications request incremental snapshots; docs/snapshots.md has the signals."""

    signal_file: Annotated[str | None, Accepts(example="/data/signals.jsonl")] = None
    """File of JSON lines with requests for incremental snapshots, in Debezium's layout. Every worker must be able to
    read it."""
    signal_folder: Annotated[str | None, Accepts(example="/data/signals")] = None
    """Folder in which `penstock snapshot` leaves its requests, a file for each. Every worker must be able to read
    it."""
    signal_kafka: Mapping[str, str] | None = None
    """Options of a Kafka consumer that reads requests, with the topic as ``topic`` and, optionally, the key of messages
    that are meant for this pipeline as ``key``."""
    chunk_rows: Annotated[int, Accepts(minimum=1, maximum=1_000_000)] = 10_240
    """Number of rows that an incremental snapshot reads from a table at once, unless a signal says it."""


@options
class SignalTableOptions(SignalOptions):
    """The same for sources whose database can hold the requests."""

    signal_table: str | None = None
    """Table with the text columns id, type and data, in which applications request incremental snapshots in Debezium's
    layout. It is polled."""
    parallel_tables: Annotated[int, Accepts(minimum=1, maximum=16)] = 2
    """Number of tables that an incremental snapshot reads at the same time."""
    new_tables: Annotated[str, Accepts(choices=("stream", "snapshot"), example="snapshot")] = "stream"
    """What is read of a table that joins what the pipeline reads, while it runs or is stopped. With stream, its changes
    from then on. With snapshot, also the rows that it had before, once, as an incremental snapshot."""


@options
class GoogleOptions(Options):
    """The address of an instance of Google Cloud, and how a worker reaches it."""

    project: Annotated[
        str,
        Accepts(
            pattern="[a-z][a-z0-9.:-]{4,}[a-z0-9]",
            words="a project id (6 or more lowercase letters, digits and hyphens, a letter first)",
            example="my-project",
        ),
    ]
    """Google Cloud project of the instance."""
    instance: Annotated[
        str,
        Accepts(
            pattern="[a-z][a-z0-9-]{0,62}[a-z0-9]",
            words="an instance id (lowercase letters, digits and hyphens, a letter first)",
            example="my-instance",
        ),
    ]
    """Instance of the service."""
    credentials: Any = None
    """A picklable google.auth credentials object; None: application default credentials, found by each worker."""
    emulator_host: str | None = None
    """``host:port`` of an emulator; None: SPANNER_EMULATOR_HOST or BIGTABLE_EMULATOR_HOST of this process, if set."""
    api_endpoint: Annotated[
        str | None, Accepts(pattern="[^/]+:[0-9]+", words="host:port without a scheme")
    ] = None
    """``host:port`` of a regional or private endpoint to connect to."""
