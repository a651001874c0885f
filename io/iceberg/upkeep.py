"""Upkeep of an Iceberg table: see `penstock.io.columnar.upkeep`. Needs the extra `iceberg`."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from penstock.io.columnar.parquet import parquet_file
from penstock.io.columnar.positions import NO_ROWS
from penstock.io.columnar.upkeep import GROUP_ROWS, FileSize, files_to_rewrite, rows_of_new_files
from penstock.io.iceberg.files import FilesOfIo, codec_of
from penstock.io.iceberg.snapshot_files import SnapshotFiles


def entries_to_rewrite(files: SnapshotFiles) -> list[Any]:
    """Return the data files of a snapshot to write again, which have one partition; none if there is nothing to do."""
    # A data file belongs to one partition of one spec, so only files of the same one can be joined.
    partitions: dict[tuple[int, Any], list[FileSize]] = defaultdict(list)
    data = {each.data_file.file_path: each.data_file for each in files.data}
    for file in data.values():
        partitions[file.spec_id, file.partition].append(_size(files, file))
    chosen = next(filter(None, map(files_to_rewrite, partitions.values())), [])
    return [data[each.path] for each in chosen]


def _size(files: SnapshotFiles, file: Any) -> FileSize:
    gone = len(files.gone.get(file.file_path, NO_ROWS))
    return FileSize(file.file_path, file.file_size_in_bytes, file.record_count, gone)


def rewritten(files: SnapshotFiles, chosen: Sequence[Any]) -> Iterator[Any]:
    """Write the rows of data files that are not deleted to new files, and yield their entries.

    Memory: one new file, at most about `FULL_BYTES`, and a row group.
    """
    table, first = files.table, chosen[0]
    for groups in rows_of_new_files(files, chosen, [_size(files, each) for each in chosen]):
        yield new_file(table, table.schema(), groups, first.spec_id, first.partition)


def new_file(table: Any, schema: Any, groups: Iterable[pa.Table], spec_id: int, partition: Any) -> Any:
    """Write rows of one partition to a file with the columns `schema`, and return its entry."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
        schema_to_pyarrow,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    properties, shape = table.properties, schema_to_pyarrow(schema)
    parts = (_with_all(each, shape).cast(shape) for each in groups)
    content = parquet_file(
        parts, shape, codec_of(properties), row_group_size=GROUP_ROWS, store_decimal_as_integer=True
    )
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}.parquet")
    # Before its entry exists: after a crash no snapshot names the file, and nothing reads it.
    FilesOfIo(table.io).create(path, [content])
    statistics = data_file_statistics_from_parquet_metadata(
        pyarrow.parquet.read_metadata(pa.BufferReader(content)),
        compute_statistics_plan(schema, properties),
        parquet_path_to_id_mapping(schema),
    )
    found = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(content),
        **statistics.to_serialized_dict(),
    )
    found.spec_id = spec_id
    return found


def _with_all(rows: pa.Table, shape: pa.Schema) -> pa.Table:
    """Return rows with all columns of a table, null where they have none."""
    return pa.Table.from_arrays(
        [
            rows.column(field.name)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in shape
        ],
        names=shape.names,
    )
