"""The data files of an Iceberg table: where the table wants them, with the ids and statistics of its columns.

They are written and read with pyiceberg's own file system of the table, so with the same options and credentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.io.columnar.log_parts import Folder
from penstock.io.columnar.log_target import TableFiles
from penstock.io.columnar.parquet import parquet_file
from penstock.io.columnar.partitions import Partition
from penstock.io.iceberg.field_ids import with_field_ids
from penstock.io.iceberg.partitions import by_partition
from penstock.io.iceberg.statistics import statistics_of

_PLAIN = (bool, int, str, bytes, type(None))
"""Values of a partition that the manifest of a batch can hold."""

_CODEC = "write.parquet.compression-codec"


@dataclass(frozen=True, slots=True)
class IcebergFiles(TableFiles):
    """See `TableFiles`. A path is the whole location of a file."""

    table: Any

    @classmethod
    def of(cls, table: Any) -> IcebergFiles:
        """Return the files of an open table, without its list of snapshots, which may be long."""
        from pyiceberg.table import Table

        emptied: dict[str, Any] = {
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
        }
        metadata = table.metadata.model_copy(update=emptied)
        return cls(Table(table.name(), metadata, table.metadata_location, table.io, table.catalog))

    @property
    def folder(self) -> Folder:
        return FilesOfIo(self.table.io)

    def path(self, name: str) -> str:
        location: str = self.table.location_provider().new_data_location(name)
        return location

    @property
    def is_partitioned(self) -> bool:
        return not self.table.spec().is_unpartitioned()

    def divided(self, rows: pa.Table) -> list[tuple[Partition, pa.Table]] | None:
        parts = by_partition(rows, self.table.schema(), self.table.spec())
        values = (value for partition, _ in parts for value in partition.values.values())
        return parts if all(isinstance(value, _PLAIN) for value in values) else None

    def content(self, rows: pa.Table) -> tuple[bytes, str]:
        schema, properties = self.table.schema(), self.table.properties
        shape = with_field_ids(rows.schema, schema)
        if shape is None and (schema := self._schema_with(rows.schema)) is not None:
            shape = with_field_ids(rows.schema, schema)
        codec = codec_of(properties)
        # Iceberg's form of decimals of up to 18 digits.
        content = parquet_file([rows], shape or rows.schema, codec, store_decimal_as_integer=True)
        uuid = str(self.table.metadata.table_uuid)
        return content, statistics_of(content, shape, uuid, schema, properties)

    def _schema_with(self, rows: pa.Schema) -> Any:
        """Return the columns of the table with the columns of `rows` added; None if they cannot be added."""
        from pyiceberg.exceptions import ValidationError

        # Never committed: the driver alters the table, and compares the ids.
        transaction = self.table.transaction()
        try:
            with transaction.update_schema() as update:
                update.union_by_name(rows)
        except (ValidationError, ValueError):
            return None
        return transaction.table_metadata.schema()


@dataclass(frozen=True, slots=True)
class FilesOfIo:
    """Files by their locations, through the `FileIO` of a table.

    On a local disk nothing is synced, as pyiceberg syncs no other file of a table there.
    """

    io: Any

    def create(self, name: str, content: Iterable[bytes]) -> None:
        with self.io.new_output(name).create(overwrite=True) as stream:
            for part in content:
                stream.write(part)

    def sync(self, names: Iterable[str]) -> None:
        """Nothing to do: an object is durable when its stream is closed."""

    def read(self, name: str) -> bytes:
        with self.io.new_input(name).open(seekable=False) as stream:
            found: bytes = stream.read()
        return found

    def length(self, name: str) -> int | None:
        try:
            return len(self.io.new_input(name))
        except FileNotFoundError:
            return None

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            # Deleted already, by an earlier try.
            with suppress(FileNotFoundError):
                self.io.delete(name)


def codec_of(properties: Mapping[str, str]) -> str:
    """Return the compression of the Parquet files of a table with some properties, as pyarrow names it."""
    return properties.get(_CODEC, "zstd").replace("uncompressed", "none")
