"""`WriteToBigQuery`: change events into tables of BigQuery."""

from __future__ import annotations

from typing import Any, get_args

import apache_beam as beam

from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.event.schema_policies import check_error_output, check_plain, check_policies
from penstock.extras import require_extra
from penstock.io.bigquery.options import (
    ABILITIES,
    CANNOT_MOVE,
    BigQuerySinkOptions,
    Mode,
    Nanoseconds,
)
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.change_streams.credentials import GoogleLogin
from penstock.io.staging.arguments import SOURCE_NAMES, check_choice, check_placeholders
from penstock.io.staging.connector import Connector
from penstock.io.staging.send_after_commit import SendAfterCommit

_MARK_SECONDS = 60.0
"""Each mark is a statement, which costs at least ten megabytes of a query."""


def connector_of(target: BigQueryTarget) -> Connector:
    """Return what opens and checks the target."""
    return Connector(
        target,
        sender_name="penstock.io.bigquery.sender:open_sender",
        preview_name="penstock.io.bigquery.preview:rows_of_event",
        extra="bigquery",
        marks_complete=target.mark_complete,
        mark_seconds=_MARK_SECONDS,
    )


class WriteToBigQuery(BigQuerySinkOptions, SendAfterCommit):
    """Write change events into BigQuery: a change log, or a replica of the source's tables.

        events | WriteToBigQuery(project="my-project", dataset="shop", mode="current")

    *log*: every event is a row, exactly once. The Storage Write API appends rows at explicit offsets of write streams,
    and the ledger in the table ``penstock_ledger`` says which offset is the next one. The images of a row are JSON.

    *current*: a table has one row for each primary key, which BigQuery maintains from the changes (change data
    capture). Each change has a sequence number, its version, so a change that comes again or late changes nothing. An
    UPSERT replaces the whole row, so each event must have the whole row.

    Emits a `DeliveredBatch` for each batch. `with_exception_handling` adds an output of the events that BigQuery or the
    sink refuses.

    Order: log: the events of one primary key are in their order in `version`. current: by version.
    What repeats: nothing on `PySparkRunner`. On other runners a log may have events twice.
    Watermark: each event holds the output watermark until BigQuery has acknowledged it.
    State: for each shard the events since the last commit, or of the last `roll_seconds`.

    Raises:
        UsageError: an argument is wrong, or a package is missing (at construction).
    """

    def __post_init__(self) -> None:
        require_extra("bigquery", "google.cloud.bigquery")
        require_extra("bigquery", "google.cloud.bigquery_storage_v1")
        check_choice("mode", self.mode, get_args(Mode))
        if self.mode == "current":
            check_policies(self.schema_changes, ABILITIES, "a table of BigQuery", cannot_move=CANNOT_MOVE)
        else:
            check_plain(self.schema_changes, "a change log in BigQuery")
        check_choice("nanoseconds", self.nanoseconds, get_args(Nanoseconds))
        # The documented limit is 24 hours.
        if not isinstance(self.max_staleness_seconds, int) or not 0 <= self.max_staleness_seconds <= 86_400:
            raise UsageError(f"max_staleness_seconds must be 0 to 86400, got {self.max_staleness_seconds!r}.")
        # With one of the two, rows would go to the emulator and the ledger to Google, or the other way round.
        if (self.endpoint is None) is not (self.write_endpoint is None):
            raise UsageError("endpoint and write_endpoint belong together: an emulator has both.")
        check_placeholders("table", self.table, SOURCE_NAMES)
        target = BigQueryTarget(
            self.project,
            self.dataset,
            self.mode,
            self.table,
            self.schema_changes,
            self.create_tables,
            self.max_staleness_seconds,
            self.nanoseconds,
            self.mark_complete,
            self.endpoint,
            self.write_endpoint,
            GoogleLogin(self.credentials_file, self.impersonate),
        )
        SendAfterCommit.__init__(self, connector_of(target), options=self)

    def expand(self, events: beam.PCollection[ChangeEvent]) -> Any:
        if self.mode == "current":
            check_error_output(self.schema_changes, has_one=self._skip_refused)
        return super().expand(events)

    def display_data(self) -> dict[str, Any]:
        return {**super().display_data(), "mode": self.mode, "dataset": self.dataset}
