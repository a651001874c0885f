"""The settings of a reader: how it reads a change stream. `source.py` says which stream it reads. Pure.

Settings belong to the program that runs. They may change between a stop and a resume, so they are in no checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Self

from penstock.io.change_streams.arguments import in_range, whole_in_range
from penstock.io.change_streams.connection import Connection
from penstock.io.change_streams.incremental.options import SnapshotOptions
from penstock.io.change_streams.options import LimitOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that every source has.

    Args:
        unavailable_seconds: how long the service may fail to answer before the pipeline fails.
        max_concurrent_partitions: how many partitions one worker process reads at once; the others take turns.
        buffer_bytes: how much one worker process may read ahead of the pipeline, counted as the service sent it.
        idle_stream_seconds: how long an open stream waits for the next bundle that continues at its position.
    """

    unavailable_seconds: float
    max_concurrent_partitions: int
    buffer_bytes: int
    idle_stream_seconds: float

    @property
    def split_deferral_seconds(self) -> float:
        """How long a split waits for the first record of a stream."""
        return 5.0

    @classmethod
    def checked(
        cls, options: LimitOptions, *, max_concurrent_partitions: float = 32, **of_source: Any
    ) -> Self:
        """Return the limits; those `of_source` are the subclass's own and must have been checked.

        Raises:
            UsageError: a limit is out of range.
        """
        return cls(
            unavailable_seconds=in_range("unavailable_seconds", options.unavailable_seconds, 0, 86_400),
            max_concurrent_partitions=whole_in_range(
                "max_concurrent_partitions", max_concurrent_partitions, 1, 1000
            ),
            buffer_bytes=whole_in_range("buffer_bytes", options.buffer_bytes, 1 << 20, 1 << 34),
            idle_stream_seconds=in_range("idle_stream_seconds", options.idle_stream_seconds, 0, 3600),
            **of_source,
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of a reader. Hashable: a worker process keeps one pool for each value.

    Args:
        identity: names the change stream in the running program; a checkpoint of another stream is rejected.
        end: the program's end; a checkpoint may have an earlier one.
        error_output: records that cannot be decoded are emitted to an error output, instead of failing the read.
        lineage_output: lineage events are emitted too.
        notification_output: reports about the progress of snapshots are emitted too.
        batches: records are emitted as `ElementBatch`es.
        snapshots: which snapshots are read while changes are read.
    """

    connection: Connection
    heartbeat_ms: int
    limits: Limits
    identity: str
    end: int | None = None
    error_output: bool = False
    lineage_output: bool = False
    notification_output: bool = False
    batches: bool = False
    snapshots: SnapshotOptions = field(default_factory=SnapshotOptions)
