"""The configuration of the BigQuery sink, as a value that travels to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.datasets import Dataset
from penstock.event.model import Source
from penstock.event.schema_policies import Entries
from penstock.io.bigquery.options import BigQuerySinkOptions, Mode, Nanoseconds
from penstock.io.change_streams.credentials import GoogleLogin

MESSAGES = "penstock_messages"
"""The table of events that belong to no table."""


@dataclass(frozen=True, slots=True)
class BigQueryTarget:
    """See `BigQuerySinkOptions`."""

    project: str
    dataset: str
    mode: Mode = BigQuerySinkOptions.mode
    table: str = BigQuerySinkOptions.table
    schema_changes: Entries = BigQuerySinkOptions.schema_changes
    create_tables: bool = BigQuerySinkOptions.create_tables
    max_staleness_seconds: int = BigQuerySinkOptions.max_staleness_seconds
    nanoseconds: Nanoseconds = BigQuerySinkOptions.nanoseconds
    mark_complete: bool = BigQuerySinkOptions.mark_complete
    endpoint: str | None = BigQuerySinkOptions.endpoint
    write_endpoint: str | None = BigQuerySinkOptions.write_endpoint
    login: GoogleLogin = field(default_factory=GoogleLogin)

    @property
    def name(self) -> str:
        """``BigQuery dataset project.dataset``."""
        return f"BigQuery dataset {self.project}.{self.dataset}"

    def datasets_written(self, sources: Sequence[Source]) -> list[Dataset]:
        """See `penstock.datasets.WritesDatasets`."""
        names = dict.fromkeys(self.table_of(each) for each in sources)
        return [Dataset("bigquery", f"{self.project}.{self.dataset}.{name}") for name in names]

    def table_of(self, source: Source) -> str:
        """Return the table that the events of a source table go to."""
        if not source.table:
            return MESSAGES
        return self.table.format(table=source.table, schema=source.schema, database=source.database)
