"""The configuration of the Bigtable sink, as a value that travels to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.datasets import Dataset
from penstock.event.model import Source
from penstock.io.bigtable.datasets import bigtable_dataset
from penstock.io.bigtable.sink.options import BigtableSinkOptions
from penstock.io.bigtable.source import Connection


@dataclass(frozen=True, slots=True)
class BigtableTarget:
    """See `BigtableSinkOptions`."""

    project: str
    instance: str
    table: str
    connection: Connection
    version_family: str = BigtableSinkOptions.version_family
    mark_complete: bool = BigtableSinkOptions.mark_complete

    @property
    def table_path(self) -> str:
        return f"projects/{self.project}/instances/{self.instance}/tables/{self.table}"

    @property
    def name(self) -> str:
        """``Bigtable table projects/p/instances/i/tables/t``."""
        return f"Bigtable table {self.table_path}"

    def datasets_written(self, sources: Sequence[Source]) -> list[Dataset]:
        """See `penstock.datasets.WritesDatasets`."""
        return [bigtable_dataset(self.project, self.instance, self.table)]
