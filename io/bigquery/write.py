"""`WriteToBigQuery`: change events into tables of BigQuery."""

from __future__ import annotations

import os
from typing import Any, get_args

from penstock.errors import UsageError
from penstock.event.schema_changes import Policy
from penstock.extras import require_extra
from penstock.io.bigquery.columns import Nanoseconds
from penstock.io.bigquery.target import BigQueryTarget, Mode
from penstock.io.change_streams.credentials import GoogleLogin
from penstock.io.staging.arguments import SOURCE_NAMES, check_choice, check_placeholders
from penstock.io.staging.connector import Connector
from penstock.io.staging.retry import UNAVAILABLE_SECONDS
from penstock.io.staging.send_after_commit import SHARDS, SendAfterCommit


def connector_of(target: BigQueryTarget) -> Connector:
    """Return what opens and checks the target."""
    return Connector(
        target,
        sender_name="penstock.io.bigquery.sender:open_sender",
        preview_name="penstock.io.bigquery.preview:rows_of_event",
        extra="bigquery",
    )


class WriteToBigQuery(SendAfterCommit):
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

    Args:
        project: the Google Cloud project of the dataset.
        dataset: the dataset. It must exist.
        mode: ``log`` appends every event, ``current`` maintains one row for each primary key.
        table: the name of a target table; ``{table}``, ``{schema}`` and ``{database}`` are the source's.
        schema_changes: what happens in the mode current when the source has new columns or wider types: ``evolve``
            alters the table, ``ignore`` leaves it and drops new columns, ``stop`` fails.
        create_tables: create tables that are missing.
        max_staleness_seconds: how old the answer of a query may be, in seconds, for tables that the mode current
            creates. 0 makes BigQuery apply all changes before each query, which costs time and money.
        nanoseconds: what happens in the mode current to times with nanoseconds, which BigQuery does not have:
            ``refuse`` or ``truncate`` to microseconds. In keys they are always refused.
        credentials_file: path of a JSON file with Google credentials, on the driver and on each worker; None: the
            application default credentials.
        impersonate: e-mail address of a service account that the credentials impersonate.
        endpoint: URL of the REST API of an emulator, such as ``http://localhost:9050``.
        write_endpoint: ``host:port`` of the Storage Write API of an emulator.
        shards: how many batches are sent at the same time.
        roll_seconds: how long events are collected before they are sent, in seconds of processing time; 0 sends with
            every epoch.
        staging: a folder or URL for staged batches; None: in the checkpoint.
        unavailable_seconds: how long a service that does not answer is asked again before the epoch fails, in seconds.

    Raises:
        UsageError: an argument is wrong, or a package is missing (at construction).
    """

    def __init__(
        self,
        *,
        project: str,
        dataset: str,
        mode: Mode = "log",
        table: str = "{table}",
        schema_changes: Policy = "evolve",
        create_tables: bool = True,
        max_staleness_seconds: int = 900,
        nanoseconds: Nanoseconds = "refuse",
        credentials_file: str | None = None,
        impersonate: str | None = None,
        endpoint: str | None = None,
        write_endpoint: str | None = None,
        shards: int = SHARDS,
        roll_seconds: float = 0,
        staging: str | os.PathLike[str] | None = None,
        unavailable_seconds: float = UNAVAILABLE_SECONDS,
    ) -> None:
        require_extra("bigquery", "google.cloud.bigquery")
        require_extra("bigquery", "google.cloud.bigquery_storage_v1")
        check_choice("mode", mode, get_args(Mode))
        check_choice("schema_changes", schema_changes, get_args(Policy))
        check_choice("nanoseconds", nanoseconds, get_args(Nanoseconds))
        # The documented limit is 24 hours.
        if not isinstance(max_staleness_seconds, int) or not 0 <= max_staleness_seconds <= 86_400:
            raise UsageError(f"max_staleness_seconds must be 0 to 86400, got {max_staleness_seconds!r}.")
        # With one of the two, rows would go to the emulator and the ledger to Google, or the other way round.
        if (endpoint is None) is not (write_endpoint is None):
            raise UsageError("endpoint and write_endpoint belong together: an emulator has both.")
        check_placeholders("table", table, SOURCE_NAMES)
        target = BigQueryTarget(
            project,
            dataset,
            mode,
            table,
            schema_changes,
            create_tables,
            max_staleness_seconds,
            nanoseconds,
            endpoint,
            write_endpoint,
            GoogleLogin(credentials_file, impersonate),
        )
        super().__init__(
            connector_of(target),
            shards=shards,
            roll_seconds=roll_seconds,
            staging=staging,
            unavailable_seconds=unavailable_seconds,
        )
        self._bigquery = target

    def display_data(self) -> dict[str, Any]:
        return {**super().display_data(), "mode": self._bigquery.mode, "dataset": self._bigquery.dataset}
