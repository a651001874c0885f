"""The configuration of the BigQuery sink, as a value that travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from penstock.event.model import ChangeEvent, Source
from penstock.event.schema_changes import Policy
from penstock.extras import extra_packages
from penstock.io.bigquery.columns import Nanoseconds
from penstock.io.change_streams.credentials import GoogleLogin
from penstock.io.staging.preview import Written

if TYPE_CHECKING:
    from penstock.io.staging.delivery import Sender

Mode = Literal["log", "current"]

MESSAGES = "penstock_messages"
"""The table of events that belong to no table."""


@dataclass(frozen=True, slots=True)
class BigQueryTarget:
    """See `WriteToBigQuery`, whose arguments these are."""

    project: str
    dataset: str
    mode: Mode = "log"
    table: str = "{table}"
    schema_changes: Policy = "evolve"
    create_tables: bool = True
    max_staleness_seconds: int = 900
    nanoseconds: Nanoseconds = "refuse"
    endpoint: str | None = None
    write_endpoint: str | None = None
    login: GoogleLogin = field(default_factory=GoogleLogin)

    @property
    def name(self) -> str:
        """``BigQuery dataset project.dataset``."""
        return f"BigQuery dataset {self.project}.{self.dataset}"

    def check(self) -> None:
        """Look for the dataset; in the mode *log* create the ledger and write nothing to it, to check the rights."""
        with extra_packages("bigquery"):
            from penstock.io.bigquery.warehouse import check_target

        check_target(self)

    def open(self, *, skip_refused: bool) -> Sender:
        """Return a sender; see `penstock.io.staging.delivery.Target`."""
        with extra_packages("bigquery"):
            from penstock.io.bigquery.log_sender import LogSender
            from penstock.io.bigquery.replica_sender import ReplicaSender
            from penstock.io.bigquery.warehouse import BigQueryWarehouse
            from penstock.io.bigquery.write_api import BigQueryWriteApi

        sender = LogSender if self.mode == "log" else ReplicaSender
        return sender(self, skip_refused, BigQueryWriteApi(self), BigQueryWarehouse(self))

    def preview(self, event: ChangeEvent) -> list[Written]:
        """Return the rows of an event; see `penstock.io.staging.preview`."""
        with extra_packages("bigquery"):
            from penstock.io.bigquery.preview import rows_of_event

        return rows_of_event(event, self)

    def table_of(self, source: Source) -> str:
        """Return the table that the events of a source table go to."""
        if not source.table:
            return MESSAGES
        return self.table.format(table=source.table, schema=source.schema, database=source.database)
