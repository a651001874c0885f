"""How snapshots are taken and where their signals come from. Not in a checkpoint. Pure."""

from __future__ import annotations

from dataclasses import dataclass

INITIAL_REQUEST = "initial"
"""The id of the snapshot that a pipeline begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """The choices of a user.

    `snapshot`: never, initial or when_needed. `signal_table`: ``schema.table`` with the columns id, type, data.
    `signal_file`: JSON lines. `signal_folder`: JSON files, one for each signal. `signal_kafka`: options of a Kafka
    consumer, as pairs, with the topic as ``topic``. `chunk_size`: rows; `parallel_tables`: tables that are read at once.
    """

    snapshot: str = "never"
    signal_table: str = ""
    signal_file: str = ""
    signal_folder: str = ""
    signal_kafka: tuple[tuple[str, str], ...] = ()
    chunk_size: int = 10_240
    parallel_tables: int = 2
    poll_seconds: float = 1.0

    @property
    def takes_signals(self) -> bool:
        """Whether a signal can come."""
        return bool(self.signal_table or self.signal_file or self.signal_folder or self.signal_kafka)
