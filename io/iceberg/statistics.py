"""The ids and statistics of the columns of a data file, which a commit needs besides its path and length.

Needs the extra `iceberg`. The statistics are pyiceberg's own, from the metadata of the Parquet file and the properties
of the table (`write.metadata.metrics.…`).
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet

from penstock.io.columnar.data_files import DataFile
from penstock.io.iceberg.field_ids import field_ids
from penstock.io.iceberg.partitions import record_of


class FileStatistics(msgspec.Struct, frozen=True):
    """`table` is the UUID of the table, `ids` are the ids of its fields (`field_ids`). All others are by such an id.

    The fields have the names that they have in a manifest of Iceberg.
    """

    table: str
    ids: tuple[int, ...]
    column_sizes: dict[int, int] = {}
    value_counts: dict[int, int] = {}
    null_value_counts: dict[int, int] = {}
    nan_value_counts: dict[int, int] = {}
    lower_bounds: dict[int, bytes] = {}
    upper_bounds: dict[int, bytes] = {}
    split_offsets: list[int] = []


def statistics_of(content: bytes, shape: pa.Schema | None, table: str, schema: Any, properties: Any) -> str:
    """Return the JSON text for a file.

    `shape` is the schema of its rows with ids, `schema` the one of the table. Without ids (None) there are no
    statistics, because the driver writes such a file again.
    """
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )

    if shape is None:
        return _encode(FileStatistics(table, ()))
    found = data_file_statistics_from_parquet_metadata(
        pyarrow.parquet.read_metadata(pa.BufferReader(content)),
        compute_statistics_plan(schema, properties),
        parquet_path_to_id_mapping(schema),
    ).to_serialized_dict()
    del found["record_count"]  # `DataFile` has it
    return _encode(FileStatistics(table, field_ids(shape), **found))


def statistics_in(file: DataFile) -> FileStatistics:
    """Return the statistics of a data file of the sink."""
    return _decode(file.stats)


def entry_of(file: DataFile, spec_id: int) -> Any:
    """Return a data file as an entry of a manifest. `spec_id` is the number of the partition spec of the table."""
    from pyiceberg.manifest import DataFile as Entry
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    found = statistics_in(file)
    held = {
        name: getattr(found, name)
        for name in FileStatistics.__struct_fields__
        if name not in ("table", "ids")
    }
    return Entry.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record() if file.partition is None else record_of(file.partition),
        record_count=file.records,
        file_size_in_bytes=file.length,
        sort_order_id=None,
        spec_id=spec_id,
        equality_ids=None,
        key_metadata=None,
        **held,
    )


def _encode(statistics: FileStatistics) -> str:
    return msgspec.json.encode(statistics).decode()


_decode = msgspec.json.Decoder(FileStatistics).decode
