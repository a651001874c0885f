"""The user's options for snapshots and for their signals. They are not in a checkpoint. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.io.change_streams.arguments import whole_in_range
from penstock.io.change_streams.incremental.signals import MAX_ROWS_IN_CHUNK, ExecuteSnapshot
from penstock.io.change_streams.options import SignalOptions, SignalTableOptions

NEVER, INITIAL, WHEN_NEEDED = "never", "initial", "when_needed"
"""The values of the argument `snapshot`. True and False mean initial and never."""
STREAM, SNAPSHOT = "stream", "snapshot"
"""The values of the arguments `new_tables` and `new_columns`."""
INITIAL_REQUEST = "initial"
"""The id of the snapshot that a pipeline begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """The choices of a user.

    Args:
        snapshot: never, initial or when_needed.
        signal_table: a table with the columns id, type, data.
        signal_file: JSON lines.
        signal_folder: JSON files, one for each signal.
        signal_kafka: options of a Kafka consumer, as pairs, with the topic as ``topic``.
        chunk_rows: rows.
        parallel_tables: tables that are read at once.
        new_tables: stream or snapshot: whether the rows of a table that joins later are read, or only its changes.
        new_columns: the same for a table that gets a column whose values the log does not have in older rows.
    """

    snapshot: str = "never"
    signal_table: str = ""
    signal_file: str = ""
    signal_folder: str = ""
    signal_kafka: tuple[tuple[str, str], ...] = ()
    chunk_rows: int = 10_240
    parallel_tables: int = 2
    new_tables: str = STREAM
    new_columns: str = STREAM
    poll_seconds: float = 1.0

    def for_preview(self) -> SnapshotOptions:
        """Return the options of a read that answers no signal and replaces no lost position."""
        snapshot = INITIAL if self.snapshot == WHEN_NEEDED else self.snapshot
        return SnapshotOptions(
            snapshot=snapshot, chunk_rows=self.chunk_rows, parallel_tables=self.parallel_tables
        )

    @property
    def takes_signals(self) -> bool:
        """Whether a signal can come."""
        return bool(self.signal_table or self.signal_file or self.signal_folder or self.signal_kafka)

    @property
    def reads_new_tables(self) -> bool:
        """Whether the rows of a table that joins later are read."""
        return self.new_tables == SNAPSHOT

    @property
    def reads_new_columns(self) -> bool:
        """Whether the rows of a table are read that gets a column later."""
        return self.new_columns == SNAPSHOT

    @property
    def may_begin(self) -> bool:
        """Whether a snapshot can begin while changes are read."""
        return (
            self.takes_signals
            or self.reads_new_tables
            or self.reads_new_columns
            or self.snapshot == WHEN_NEEDED
        )

    @classmethod
    def checked(
        cls, options: SignalOptions, snapshot: str | bool, new_columns: str = STREAM
    ) -> SnapshotOptions:
        """Return the options of a source, some of which have no `SignalTableOptions`.

        Raises:
            UsageError: one of them is malformed or out of range.
        """
        kafka = options.signal_kafka
        if kafka and not {"topic", "bootstrap.servers"} <= kafka.keys():
            raise UsageError("signal_kafka needs at least topic and bootstrap.servers")
        of_tables = options if isinstance(options, SignalTableOptions) else None
        return cls(
            snapshot=checked_snapshot(snapshot),
            signal_table=(of_tables and of_tables.signal_table) or "",
            signal_file=options.signal_file or "",
            signal_folder=options.signal_folder or "",
            signal_kafka=tuple(sorted((kafka or {}).items())),
            chunk_rows=whole_in_range("chunk_rows", options.chunk_rows, 1, MAX_ROWS_IN_CHUNK),
            parallel_tables=1
            if of_tables is None
            else whole_in_range("parallel_tables", of_tables.parallel_tables, 1, 16),
            new_tables=STREAM if of_tables is None else _checked_policy("new_tables", of_tables.new_tables),
            new_columns=_checked_policy("new_columns", new_columns),
        )


def checked_snapshot(snapshot: str | bool) -> str:
    """Return the argument `snapshot` as a text.

    Raises:
        UsageError: it is not never, initial, when_needed, True or False.
    """
    if isinstance(snapshot, bool):
        return INITIAL if snapshot else NEVER
    if snapshot not in (NEVER, INITIAL, WHEN_NEEDED):
        raise UsageError(f"snapshot must be never, initial or when_needed, not {snapshot!r}")
    return snapshot


def _checked_policy(name: str, policy: str) -> str:
    if policy not in (STREAM, SNAPSHOT):
        raise UsageError(f"{name} must be {STREAM} or {SNAPSHOT}, not {policy!r}")
    return policy


def initial_request() -> ExecuteSnapshot:
    """Return the request for all tables."""
    return ExecuteSnapshot(INITIAL_REQUEST, (".*",))
