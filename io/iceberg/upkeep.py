"""Upkeep of an Iceberg table of current rows or versions: which data files are written again, and their replacement.

Each epoch adds a small data file, and marks rows of older files as deleted. So small files of one size become one, as
in a log-structured merge tree, and a file with many deleted rows is written without them. Needs the extra `iceberg`;
the choice is pure.
"""

from __future__ import annotations

import math
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from penstock.io.columnar.parquet import parquet_file
from penstock.io.iceberg.files import FilesOfIo, codec_of
from penstock.io.iceberg.open_file import opened
from penstock.io.iceberg.snapshot_files import NO_ROWS, SnapshotFiles, are_in

FULL_BYTES = 32 << 20
"""Length of a file that is not merged any more. An upkeep reads about so much, or one longer file."""

TOGETHER = 8
"""So many files of one size become one. A row is copied once for each size, which grows by this factor."""

WORN, WORN_ROWS = 0.25, 10_000
"""A file is written again if this share of its rows is deleted, and at least so many rows."""

GROUP_ROWS = 1 << 16
"""Rows of a row group, of which a search holds one in memory for each file that it reads."""


@dataclass(frozen=True, slots=True)
class FileSize:
    """A data file: its length in bytes, its rows, and how many of them are deleted."""

    path: str
    length: int
    rows: int
    gone: int

    @property
    def left(self) -> int:
        """The bytes of rows that are not deleted."""
        return self.length * (self.rows - self.gone) // max(self.rows, 1)

    @property
    def is_worn(self) -> bool:
        return self.gone >= max(WORN * self.rows, WORN_ROWS)


def files_to_rewrite(files: Sequence[FileSize]) -> list[FileSize]:
    """Return the files of one partition to write again as one file, or as few; none if there is nothing to do.

    They have at most `FULL_BYTES` that are not deleted, unless it is a single file.
    """
    worn = sorted(
        (each for each in files if each.is_worn), key=lambda each: each.gone / each.rows, reverse=True
    )
    if worn:
        return _up_to_full(worn)
    sizes: dict[int, list[FileSize]] = defaultdict(list)
    for each in files:
        if each.left < FULL_BYTES // 2:
            sizes[int(math.log(max(each.left, 1), TOGETHER))].append(each)
    crowded = [size for size, some in sizes.items() if len(some) >= TOGETHER]
    return _up_to_full(sizes[min(crowded)]) if crowded else []


def _up_to_full(files: Iterable[FileSize]) -> list[FileSize]:
    chosen: list[FileSize] = []
    for each in files:
        if chosen and sum(other.left for other in chosen) + each.left > FULL_BYTES:
            break
        chosen.append(each)
    return chosen


def entries_to_rewrite(files: SnapshotFiles) -> list[Any]:
    """Return the data files of a snapshot to write again, which have one partition; none if there is nothing to do."""
    partitions: dict[tuple[int, Any], list[FileSize]] = defaultdict(list)
    data = {each.data_file.file_path: each.data_file for each in files.data}
    for path, file in data.items():
        size = FileSize(path, file.file_size_in_bytes, file.record_count, len(files.gone.get(path, NO_ROWS)))
        partitions[file.spec_id, file.partition].append(size)
    chosen = next(filter(None, map(files_to_rewrite, partitions.values())), [])
    return [data[each.path] for each in chosen]


def rewritten(files: SnapshotFiles, chosen: Sequence[Any]) -> Iterator[Any]:
    """Write the rows of data files that are not deleted to new files, and yield their entries.

    Memory: one new file, at most about `FULL_BYTES`, and a row group.
    """
    table, first = files.table, chosen[0]
    rows = sum(each.record_count - len(files.gone.get(each.file_path, NO_ROWS)) for each in chosen)
    length = sum(each.file_size_in_bytes for each in chosen)
    per_file = max(1, round(FULL_BYTES * rows / max(length, 1) / GROUP_ROWS))
    groups = _groups(part for each in chosen for part in _rows_left(files, each))
    while (group := next(groups, None)) is not None:
        yield _new_file(table, chain([group], islice(groups, per_file - 1)), first.spec_id, first.partition)


def _rows_left(files: SnapshotFiles, file: Any) -> Iterator[pa.Table]:
    """Yield the rows of a file that are not deleted, by row group, with the columns of the table."""
    gone = files.gone.get(file.file_path, NO_ROWS)
    with opened(files.table, file) as data:
        for number, first in enumerate(data.firsts):
            places = np.arange(data.size(number))
            places = places[~are_in(places + first, gone)]
            if len(places):
                yield data.rows(number, None, places)


def _groups(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield rows in tables of `GROUP_ROWS` rows; the last one may have fewer."""
    kept: list[pa.Table] = []
    for part in parts:
        kept.append(part)
        while sum(each.num_rows for each in kept) >= GROUP_ROWS:
            whole = pa.concat_tables(kept)
            yield whole.slice(0, GROUP_ROWS)
            kept = [whole.slice(GROUP_ROWS)] if whole.num_rows > GROUP_ROWS else []
    if kept:
        yield pa.concat_tables(kept)


def _new_file(table: Any, groups: Iterable[pa.Table], spec_id: int, partition: Any) -> Any:
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
        schema_to_pyarrow,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    schema, properties = table.schema(), table.properties
    shape = schema_to_pyarrow(schema)
    parts = (each.cast(shape) for each in groups)
    content = parquet_file(parts, shape, codec_of(properties), store_decimal_as_integer=True)
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}-merged.parquet")
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
