"""The data files of a Delta table: below its folder, with the statistics of Delta's log."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet

from penstock.io.columnar.log_target import Folder, TableFiles
from penstock.io.columnar.parquet import parquet_file
from penstock.io.delta.statistics import statistics_of


@dataclass(frozen=True, slots=True)
class DeltaFiles(TableFiles):
    """See `TableFiles`."""

    files: Folder

    @property
    def folder(self) -> Folder:
        return self.files

    def content(self, rows: pa.Table) -> tuple[bytes, str]:
        content = parquet_file([rows], rows.schema)
        return content, statistics_of(pyarrow.parquet.read_metadata(pa.BufferReader(content)), rows.schema)
