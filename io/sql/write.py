"""`WriteToSql`: change events into tables of PostgreSQL."""

from __future__ import annotations

from typing import Any, get_args

import apache_beam as beam

from penstock.event.model import ChangeEvent
from penstock.event.schema_policies import check_error_output, check_plain, check_policies, shown
from penstock.extras import require_extra
from penstock.io.sql.options import ABILITIES, Mode, SqlSinkOptions
from penstock.io.sql.target import SqlTarget
from penstock.io.staging.arguments import SOURCE_NAMES, check_choice, check_placeholders
from penstock.io.staging.connector import Connector
from penstock.io.staging.send_after_commit import SendAfterCommit


def connector_of(target: SqlTarget) -> Connector:
    """Return what opens and checks the target."""
    return Connector(
        target,
        sender_name="penstock.io.sql.sender:SqlSender",
        preview_name="penstock.io.sql.preview:rows_of_event",
        extra="postgres",
        marks_complete=target.mark_complete,
        tables_name="penstock.io.sql.table_sender:SqlTables",
    )


class WriteToSql(SqlSinkOptions, SendAfterCommit):
    """Write change events into PostgreSQL: a replica of the source's tables, or a change log. Exactly once.

        events | WriteToSql("host=db.example.com dbname=shop user=penstock", mode="current")

    A batch and its entry in the table ``penstock_ledger`` are one transaction, so a batch that is sent again is
    skipped, also if a paused driver sends it much later.

    In the mode *current* a table has one row per primary key. ``_penstock_version`` is the place of the row's newest
    change in the order of the source: only a newer change replaces the row. A deleted row stays as a tombstone
    (``_penstock_deleted``) without values. A column that the source did not send keeps its value. TRUNCATE and
    changes of the key are applied. Events without a primary key and events of Bigtable are refused.

    In the mode *log* every event is a row: operation, version, commit time, and the images as JSON.

    With ``on_refused_table="park"`` the driver writes each table in a transaction of its own, and a table that the
    database refuses is parked (`penstock.io.staging.table_parking`).

    Emits a `DeliveredBatch` for each batch. `with_exception_handling` adds an output of the events that the
    database refuses.

    Order: the changes of one primary key are applied in their order. There is no order between shards.
    What repeats: nothing on `PySparkRunner`. On other runners a replica is correct too, by its versions; a log may have
    events twice.
    Watermark: each event holds the output watermark until the transaction with it is committed.
    State: for each shard the events since the last commit, or of the last `roll_seconds`.

    Raises:
        UsageError: an argument is wrong, or psycopg is missing (at construction).
    """

    def __post_init__(self) -> None:
        require_extra("postgres", "psycopg")
        check_choice("mode", self.mode, get_args(Mode))
        if self.mode == "current":
            check_policies(self.schema_changes, ABILITIES, "a table of WriteToSql")
        else:
            check_plain(self.schema_changes, "a change log of WriteToSql")
        check_placeholders("table", self.table, SOURCE_NAMES)
        target = SqlTarget(
            self.dsn,
            self.mode,
            self.schema,
            self.table,
            self.schema_changes,
            self.create_tables,
            self.tombstone_seconds,
            self.mark_complete,
            self.shards,
        )
        SendAfterCommit.__init__(self, connector_of(target), options=self, max_parked_bytes=self.parked_bytes)

    def expand(self, events: beam.PCollection[ChangeEvent]) -> Any:
        check_error_output(self.schema_changes, has_one=self._skip_refused)
        return super().expand(events)

    def display_data(self) -> dict[str, Any]:
        return {**super().display_data(), "mode": self.mode, "schema_changes": shown(self.schema_changes)}
