"""The data files of a Delta table: below its folder, with the statistics of Delta's log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet

from penstock.io.columnar.log_parts import Folder
from penstock.io.columnar.log_target import TableFiles
from penstock.io.columnar.parquet import parquet_file
from penstock.io.columnar.partitions import Partition, PartitionField
from penstock.io.delta.partitions import by_partition, column_of, with_units
from penstock.io.delta.statistics import statistics_of


@dataclass(frozen=True, slots=True)
class DeltaFiles(TableFiles):
    """See `TableFiles`. `fields`: by what the table is partitioned, or will be when it is created."""

    files: Folder
    fields: Sequence[PartitionField] = ()

    @property
    def folder(self) -> Folder:
        return self.files

    @property
    def is_partitioned(self) -> bool:
        return bool(self.fields)

    def divided(self, rows: pa.Table) -> list[tuple[Partition, pa.Table]] | None:
        whole, names = with_units(rows, self.fields), [column_of(field) for field in self.fields]
        # Of other types only the table knows how to read them again from the values of a partition.
        held = [name for name in names if name in whole.column_names]
        if not all(pa.types.is_string(whole.schema.field(name).type) for name in held):
            return None
        return [(Partition(values), part) for values, part in by_partition(whole, names)]

    def content(self, rows: pa.Table) -> tuple[bytes, str]:
        content = parquet_file([rows], rows.schema)
        return content, statistics_of(pyarrow.parquet.read_metadata(pa.BufferReader(content)), rows.schema)
