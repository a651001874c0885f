"""The configuration of the Spanner sink, as a value that travels to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.datasets import Dataset
from penstock.event.model import Source
from penstock.io.spanner.datasets import spanner_dataset
from penstock.io.spanner.sink.options import SpannerSinkOptions


@dataclass(frozen=True, slots=True)
class SpannerTarget:
    """See `SpannerSinkOptions`."""

    project: str
    instance: str
    database: str
    transaction_tag: str = SpannerSinkOptions.transaction_tag
    tombstone_days: int = SpannerSinkOptions.tombstone_days
    mark_complete: bool = SpannerSinkOptions.mark_complete
    emulator_host: str | None = SpannerSinkOptions.emulator_host

    @property
    def database_path(self) -> str:
        """The database's resource name."""
        return f"projects/{self.project}/instances/{self.instance}/databases/{self.database}"

    @property
    def name(self) -> str:
        """``Spanner database projects/p/instances/i/databases/d``."""
        return f"Spanner database {self.database_path}"

    def __str__(self) -> str:
        return self.name

    @property
    def tombstone_seconds(self) -> float:
        """How long the versions of deleted rows stay at least."""
        return self.tombstone_days * 86_400

    def datasets_written(self, sources: Sequence[Source]) -> list[Dataset]:
        """See `penstock.datasets.WritesDatasets`."""
        tables = dict.fromkeys(map(table_of, sources))
        return [spanner_dataset(self.project, self.instance, self.database, table) for table in tables]


def table_of(source: Source) -> str:
    """Return the name of the target's table."""
    # A database of the dialect GoogleSQL can have no schema with the name of PostgreSQL's default one.
    return source.table if source.schema in ("", "public") else f"{source.schema}.{source.table}"
