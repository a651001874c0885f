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
    def name(self) -> str:
        """``Spanner database projects/p/instances/i/databases/d``."""
        return f"Spanner database projects/{self.project}/instances/{self.instance}/databases/{self.database}"

    def datasets_written(self, sources: Sequence[Source]) -> list[Dataset]:
        """See `penstock.datasets.WritesDatasets`."""
        tables = dict.fromkeys(each.qualified_table for each in sources)
        return [spanner_dataset(self.project, self.instance, self.database, table) for table in tables]
