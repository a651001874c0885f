"""One snapshot of an Iceberg table that adds and removes data files and files with position deletes.

Needs the extra `iceberg`. pyiceberg 0.12 writes no position deletes, so this uses its own writers of metadata below the
public interface: a snapshot producer, and the writer of manifests (docs/decisions/0055-…). The other parts of a commit
(list of manifests, summary, requirements) are made by pyiceberg.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _SnapshotProducer

from penstock.io.columnar.parquet import parquet_file
from penstock.io.columnar.positions import NO_ROWS, Positions, joined
from penstock.io.iceberg.files import FilesOfIo
from penstock.io.iceberg.snapshot_files import Manifest, SnapshotFiles

MANIFESTS, SMALL_MANIFEST = 8, 1_000
"""More than so many manifests with fewer live files than `SMALL_MANIFEST` become one: each is read in each epoch."""

DELETE_FILES = 8
"""So many files with position deletes become one, with the next deletes: each is read in each epoch."""

# The columns of a file with position deletes; ids and names are of Iceberg's specification, "Position Delete Files".
_PATH_ID, _POSITION_ID = 2147483546, 2147483545
_SHAPE = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(_PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(_POSITION_ID)}),
    ]
)
FORMAT_WITH_DELETES = 2
"""The first version of Iceberg's format that has position deletes."""


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class RowDelta(_SnapshotProducer["RowDelta"]):
    """A snapshot after `files`, which are the files of the newest snapshot of the transaction's table.

    Files are added and removed with `append_data_file` and `delete_data_file`, those with position deletes too.
    """

    _operation: Operation

    def __init__(
        self,
        transaction: Transaction,
        files: SnapshotFiles,
        properties: Mapping[str, str],
        operation: Operation = Operation.OVERWRITE,
    ) -> None:
        super().__init__(operation, transaction, files.table.io, snapshot_properties=dict(properties))
        self._held = files.manifests

    def _commit(self) -> Any:
        # What readers of snapshots see of the operation. Rows that are replaced are an "overwrite".
        if self._operation is Operation.OVERWRITE:
            if not self._added_data_files:
                self._operation = Operation.DELETE
            elif not self._deleted_data_files and not any(map(_is_delete, self._added_data_files)):
                self._operation = Operation.APPEND
        return super()._commit()

    def _summary(self, snapshot_properties: Mapping[str, str] = {}) -> Summary:
        if self._operation is not Operation.REPLACE:
            return super()._summary(dict(snapshot_properties))
        # pyiceberg 0.12 sums up no replacement. It has the totals of an overwrite.
        self._operation = Operation.OVERWRITE
        found = super()._summary(dict(snapshot_properties))
        self._operation = Operation.REPLACE
        return Summary(Operation.REPLACE, **found.additional_properties)

    def _manifests(self) -> list[ManifestFile]:
        kinds = (ManifestContent.DATA, ManifestContent.DELETES)
        return [manifest for kind in kinds for manifest in self._manifests_of(kind)]

    def _manifests_of(self, kind: ManifestContent) -> Iterator[ManifestFile]:
        """Write the manifests that change, and yield all of one kind."""
        held = [each for each in self._held if each.file.content == kind and each.entries]
        removed = {each.file_path for each in self._deleted_data_files}
        merged = _to_merge(held)
        # By partition spec, because a manifest has files of one spec only.
        entries: dict[int, list[ManifestEntry]] = defaultdict(list)
        for file in self._added_data_files:
            if _is_delete(file) == (kind is ManifestContent.DELETES):
                entries[file.spec_id].append(self._entry(ManifestEntryStatus.ADDED, file))
        for manifest in held:
            if manifest in merged or any(each.data_file.file_path in removed for each in manifest.entries):
                entries[manifest.file.partition_spec_id] += self._kept(manifest, removed)
            else:
                yield manifest.file
        for spec_id, some in entries.items():
            with self._writer(kind, self.spec(spec_id)) as writer:
                for entry in some:
                    writer.add_entry(entry)
            yield writer.to_manifest_file()

    def _kept(self, manifest: Manifest, removed: set[str]) -> Iterator[ManifestEntry]:
        for entry in manifest.entries:
            gone = entry.data_file.file_path in removed
            status = ManifestEntryStatus.DELETED if gone else ManifestEntryStatus.EXISTING
            yield self._entry(status, entry.data_file, entry)

    def _entry(
        self, status: ManifestEntryStatus, file: DataFile, held: ManifestEntry | None = None
    ) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=status,
            # By the specification: the snapshot that added the file, or the one that deletes it.
            snapshot_id=held.snapshot_id
            if held is not None and status is ManifestEntryStatus.EXISTING
            else self._snapshot_id,
            # New files have the number of the commit.
            sequence_number=None if held is None else held.sequence_number,
            file_sequence_number=None if held is None else held.file_sequence_number,
            data_file=file,
        )

    def _writer(self, kind: ManifestContent, spec: PartitionSpec) -> ManifestWriter:
        if kind is ManifestContent.DATA:
            return self.new_manifest_writer(spec)
        return _DeleteManifestWriter(
            spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression
        )

    def _refresh_for_retry(self) -> None:
        # The rows were looked for in a snapshot that is not the newest any more.
        raise CommitFailedException("another writer has committed since the files of the table were read")

    # The base class asks for these in its `_manifests` only.
    def _existing_manifests(self) -> list[ManifestFile]:
        return []

    def _deleted_entries(self) -> list[ManifestEntry]:
        return []


def _is_delete(file: DataFile) -> bool:
    return file.content != DataFileContent.DATA


def _to_merge(manifests: Sequence[Manifest]) -> list[Manifest]:
    small = [each for each in manifests if len(each.entries) < SMALL_MANIFEST]
    return small if len(small) > MANIFESTS else []


def remove_rows(delta: RowDelta, files: SnapshotFiles, removed: Mapping[str, Positions]) -> None:
    """Add the removal of rows to a snapshot: `removed` has their positions, by the path of their data file.

    A file whose rows are all deleted is removed. `files` are the files of the snapshot before, which has the rows.
    Position deletes of files that the delta removes are removed too.
    """
    data = {each.data_file.file_path: each.data_file for each in files.data}
    for path, positions in removed.items():
        if len(positions) + len(files.gone.get(path, NO_ROWS)) == data[path].record_count:
            delta.delete_data_file(data[path])
    # A file with deletes may concern several data files. If one of them is removed, all deletes are written again.
    joins = len(files.deletes) >= DELETE_FILES or bool(delta._deleted_data_files)
    rows = joined([files.gone, removed]) if joins else removed
    if joins:
        for entry in files.deletes:
            delta.delete_data_file(entry.data_file)
    partitions: dict[tuple[int, Any], dict[str, Positions]] = defaultdict(dict)
    # In the order of paths, as the format wants.
    for path in sorted(rows):
        if data[path] not in delta._deleted_data_files:
            partitions[data[path].spec_id, data[path].partition][path] = rows[path]
    for (spec_id, partition), some in partitions.items():
        delta.append_data_file(_delete_file(files.table, spec_id, partition, some))


def _delete_file(table: Any, spec_id: int, partition: Any, rows: Mapping[str, Positions]) -> DataFile:
    """Write a file with position deletes; `rows` are by path, in ascending order."""
    paths, counts = list(rows), [len(each) for each in rows.values()]
    # Each path once, with a number for each row: a list of texts would repeat the path for every position.
    codes = np.repeat(np.arange(len(paths), dtype=np.int32), counts)
    column = pa.DictionaryArray.from_arrays(codes, pa.array(paths)).cast(pa.string())
    positions = np.concatenate(list(rows.values()))
    content = parquet_file([pa.Table.from_arrays([column, pa.array(positions)], schema=_SHAPE)], _SHAPE)
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}-deletes.parquet")
    FilesOfIo(table.io).create(path, [content])
    return _entry_of_deletes(path, len(content), len(positions), spec_id, partition, (paths[0], paths[-1]))


def _entry_of_deletes(
    path: str, length: int, records: int, spec_id: int, partition: Any, bounds: tuple[str, str]
) -> DataFile:
    found = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=records,
        file_size_in_bytes=length,
        value_counts={_PATH_ID: records, _POSITION_ID: records},
        null_value_counts={_PATH_ID: 0, _POSITION_ID: 0},
        # Whole paths: readers open only delete files whose bounds contain the path of their data file.
        lower_bounds={_PATH_ID: bounds[0].encode()},
        upper_bounds={_PATH_ID: bounds[1].encode()},
    )
    found.spec_id = spec_id
    return found
