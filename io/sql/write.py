"""`WriteToSql`: change events into tables of PostgreSQL."""

from __future__ import annotations

import os
from typing import Any, get_args

from penstock.event.schema_changes import Policy
from penstock.extras import require_extra
from penstock.io.sql.target import Mode, SqlTarget
from penstock.io.staging.arguments import SOURCE_NAMES, check_choice, check_placeholders
from penstock.io.staging.connector import Connector
from penstock.io.staging.retry import UNAVAILABLE_SECONDS
from penstock.io.staging.send_after_commit import SHARDS, SendAfterCommit


def connector_of(target: SqlTarget) -> Connector:
    """Return what opens and checks the target."""
    return Connector(
        target,
        sender_name="penstock.io.sql.sender:SqlSender",
        preview_name="penstock.io.sql.preview:rows_of_event",
        extra="postgres",
    )


class WriteToSql(SendAfterCommit):
    """Write change events into PostgreSQL: a replica of the source's tables, or a change log. Exactly once.

        events | WriteToSql("host=db.example.com dbname=shop user=penstock", mode="current")

    A batch and its entry in the table ``penstock_ledger`` are one transaction, so a batch that is sent again is
    skipped, also if a paused driver sends it much later.

    In the mode *current* a table has one row per primary key. ``_penstock_version`` is the place of the row's newest
    change in the order of the source: only a newer change replaces the row. A deleted row stays as a tombstone
    (``_penstock_deleted``) without values. A column that the source did not send keeps its value. TRUNCATE and
    changes of the key are applied. Events without a primary key and events of Bigtable are refused.

    In the mode *log* every event is a row: operation, version, commit time, and the images as JSON.

    Emits a `DeliveredBatch` for each batch. `with_exception_handling` adds an output of the events that the
    database refuses.

    Order: the changes of one primary key are applied in their order. There is no order between shards.
    What repeats: nothing on `PySparkRunner`. On other runners a replica is correct too, by its versions; a log may have
    events twice.
    Watermark: each event holds the output watermark until the transaction with it is committed.
    State: for each shard the events since the last commit, or of the last `roll_seconds`.

    Args:
        dsn: connection string of libpq. A password belongs in PGPASSWORD, in ~/.pgpass, or in a reference to a secret.
        mode: ``current`` maintains a replica, ``log`` appends every event.
        schema: the schema of the target's tables, of the ledger and of the table of truncations.
        table: the name of a target table; ``{table}``, ``{schema}`` and ``{database}`` are the source's.
        schema_changes: what happens when the source has new columns or wider types: ``evolve`` alters the table,
            ``ignore`` leaves it and drops new columns, ``stop`` fails.
        create_tables: create tables that are missing.
        tombstone_seconds: how long a tombstone stays, in seconds, measured in commit times. At least the retention of
            the change stream and the age at which dead letters are replayed.
        shards: how many transactions run at the same time.
        roll_seconds: how long events are collected before they are sent, in seconds of processing time; 0 sends with
            every epoch.
        staging: a folder or URL for staged batches; None: in the checkpoint.
        unavailable_seconds: how long a database that does not answer is asked again before the epoch fails, in
            seconds.

    Raises:
        UsageError: an argument is wrong, or psycopg is missing (at construction).
    """

    def __init__(
        self,
        dsn: str,
        *,
        mode: Mode = "current",
        schema: str = "public",
        table: str = "{table}",
        schema_changes: Policy = "evolve",
        create_tables: bool = True,
        tombstone_seconds: float = 7 * 86_400,
        shards: int = SHARDS,
        roll_seconds: float = 0,
        staging: str | os.PathLike[str] | None = None,
        unavailable_seconds: float = UNAVAILABLE_SECONDS,
    ) -> None:
        require_extra("postgres", "psycopg")
        check_choice("mode", mode, get_args(Mode))
        check_choice("schema_changes", schema_changes, get_args(Policy))
        check_placeholders("table", table, SOURCE_NAMES)
        target = SqlTarget(dsn, mode, schema, table, schema_changes, create_tables, tombstone_seconds)
        super().__init__(
            connector_of(target),
            shards=shards,
            roll_seconds=roll_seconds,
            staging=staging,
            unavailable_seconds=unavailable_seconds,
        )
        self._sql = target

    def display_data(self) -> dict[str, Any]:
        return {**super().display_data(), "mode": self._sql.mode, "schema_changes": self._sql.schema_changes}
