"""The files of a snapshot of an Iceberg table: its manifests, and the rows that position deletes remove.

Needs the extra `iceberg`. Everything is read when it is first asked for, once for each snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.parquet

from penstock.errors import UsageError
from penstock.io.columnar.key_index import TableKeyIndex, no_index
from penstock.io.columnar.open_file import Bounds, OpenFile
from penstock.io.columnar.positions import Positions, in_order
from penstock.io.iceberg.open_file import opened
from penstock.object_stores.store import in_parallel

_PATH, _POSITION = "file_path", "pos"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest of a snapshot, with the entries of the files that the snapshot has."""

    file: Any
    entries: list[Any]


class SnapshotFiles:
    """The files of the newest snapshot that an open table knows. Entries are pyiceberg's, with sequence numbers."""

    def __init__(self, table: Any, index: TableKeyIndex | None = None) -> None:
        self.table, self.index = table, index or no_index()

    @cached_property
    def manifests(self) -> list[Manifest]:
        snapshot, io = self.table.current_snapshot(), self.table.io
        if snapshot is None:
            return []
        files = snapshot.manifests(io)
        entries = in_parallel(lambda each: each.fetch_manifest_entry(io, discard_deleted=True), files)
        return [Manifest(file, some) for file, some in zip(files, entries, strict=True)]

    @cached_property
    def data(self) -> list[Any]:
        """The entries of data files."""
        from pyiceberg.manifest import DataFileContent

        return [each for each in self._entries() if each.data_file.content == DataFileContent.DATA]

    @cached_property
    def deletes(self) -> list[Any]:
        """The entries of files with position deletes.

        Raises:
            UsageError: another writer has deleted rows by the values of columns.
        """
        from pyiceberg.manifest import DataFileContent

        found = [each for each in self._entries() if each.data_file.content != DataFileContent.DATA]
        if any(each.data_file.content == DataFileContent.EQUALITY_DELETES for each in found):
            raise UsageError(
                f"the Iceberg table {'.'.join(self.table.name())} has equality deletes, which pyiceberg does not read. "
                "Write its files again with the program that made them (Spark: call rewrite_data_files), then start "
                "the pipeline"
            )
        return found

    @cached_property
    def gone(self) -> dict[str, Positions]:
        """The rows that are deleted, by the path of their data file."""
        numbers = {each.data_file.file_path: each.sequence_number for each in self.data}
        found: dict[str, list[Positions]] = {}
        for entry, deleted in zip(self.deletes, in_parallel(self._deleted, self.deletes), strict=True):
            for path, positions in deleted:
                # A delete file concerns only files that are not newer. A path that is unknown is of a removed file.
                if path in numbers and numbers[path] <= entry.sequence_number:
                    found.setdefault(path, []).append(positions)
        return {path: in_order(parts) for path, parts in found.items()}

    @property
    def stored(self) -> list[Any]:
        """The data files; see `penstock.io.columnar.row_search.SearchedFiles`."""
        return [each.data_file for each in self.data]

    def path(self, file: Any) -> str:
        return str(file.file_path)

    def bounds(self, file: Any) -> Bounds:
        from pyiceberg.conversions import from_bytes

        schema, lower, upper = self.table.schema(), file.lower_bounds or {}, file.upper_bounds or {}

        def bounds(name: str) -> tuple[Any, Any] | None:
            field = schema.find_field(name)
            if field.field_id not in lower or field.field_id not in upper:
                return None
            type_, id_ = field.field_type, field.field_id
            return from_bytes(type_, lower[id_]), from_bytes(type_, upper[id_])

        return bounds

    def opened(self, file: Any) -> AbstractContextManager[OpenFile]:
        return opened(self.table, file)

    def _entries(self) -> Iterator[Any]:
        return (entry for manifest in self.manifests for entry in manifest.entries)

    def _deleted(self, entry: Any) -> list[tuple[str, Positions]]:
        with self.table.io.new_input(entry.data_file.file_path).open() as stream:
            rows = pyarrow.parquet.ParquetFile(stream, read_dictionary=[_PATH]).read([_PATH, _POSITION])
        paths = rows.column(_PATH).unify_dictionaries().combine_chunks()
        # An empty column has no chunk to combine.
        if not len(paths):
            return []
        codes = np.asarray(paths.indices)
        # One sort for all paths. It is stable, so the positions of a path keep their order.
        order = np.argsort(codes, kind="stable")
        positions = rows.column(_POSITION).to_numpy()[order]
        ends = np.searchsorted(codes[order], np.arange(len(paths.dictionary)), side="right")
        return list(zip(paths.dictionary.to_pylist(), np.split(positions, ends[:-1]), strict=True))
