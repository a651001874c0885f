"""Reports about the progress of snapshots, in the layout of Debezium's notifications. Pure.

Source: Debezium documentation, "Debezium notifications about the progress of incremental snapshots". Keys of rows,
which Debezium reports too, are left out: they are data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.compat import StrEnum

NOTIFICATIONS = "notifications"
"""The tag of the output for reports."""


class NotificationType(StrEnum):
    STARTED = "STARTED"
    PAUSED = "PAUSED"
    RESUMED = "RESUMED"
    IN_PROGRESS = "IN_PROGRESS"
    TABLE_SCAN_COMPLETED = "TABLE_SCAN_COMPLETED"
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"


class ScanStatus(StrEnum):
    """The result of the scan of a table."""

    SUCCEEDED = "SUCCEEDED"
    EMPTY = "EMPTY"
    """No row was read."""
    NO_PRIMARY_KEY = "NO_PRIMARY_KEY"
    """The table has no key to divide it by. A signal can name a surrogate key."""
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"
    """No table that the stream has changes of matches the name."""
    SQL_EXCEPTION = "SQL_EXCEPTION"
    """The service refused to read the table, several times."""
    STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True)
class Notification:
    """One report.

    Args:
        tables: the tables of the snapshot that are not finished.
        table: the table that the report is about.
        rows: how many of its rows were emitted.
        problem: what to do about a scan that did not succeed.
    """

    type: NotificationType
    snapshot: str
    kind: str
    tables: tuple[str, ...] = ()
    table: str = ""
    rows: int | None = None
    status: ScanStatus | None = None
    problem: str = ""

    def document(self, stream: str, nanoseconds: int) -> dict[str, Any]:
        """Return the report as JSON values. `stream` names what is read, `nanoseconds` the time of the report."""
        # All values are texts, as in Debezium's additional data.
        more: dict[str, str] = {"stream": stream, "data_collections": ",".join(self.tables)}
        if self.table:
            in_progress = self.type is NotificationType.IN_PROGRESS
            more["current_collection_in_progress" if in_progress else "scanned_collection"] = self.table
        if self.rows is not None:
            more["total_rows_scanned"] = str(self.rows)
        if self.status is not None:
            more["status"] = self.status
        if self.problem:
            more["problem"] = self.problem
        return {
            "id": self.snapshot,
            "aggregate_type": f"{self.kind.capitalize()} Snapshot",
            "type": str(self.type),
            "additional_data": more,
            "timestamp": nanoseconds // 1_000_000,
        }


@dataclass(frozen=True, slots=True)
class NotificationRecord:
    """A report on its way out of the reader. `commit_timestamp`: nanoseconds; the event time of `document`."""

    commit_timestamp: int
    document: dict[str, Any]
