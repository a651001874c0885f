"""The data files of a snapshot of a Delta table, and the rows that deletion vectors remove.

Needs the extra `delta`. Everything is read when it is first asked for, once for each snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from penstock.errors import UsageError
from penstock.io.columnar.key_index import TableKeyIndex, no_index
from penstock.io.columnar.open_file import Bounds, OpenFile
from penstock.io.columnar.positions import NO_ROWS, Positions
from penstock.io.columnar.upkeep import FileSize
from penstock.io.delta.deletion_vectors import rows_in
from penstock.io.delta.folder import DeltaFolder
from penstock.io.delta.partitions import constants
from penstock.io.delta.table_log import AddedFile, files_at
from penstock.object_stores.store import in_parallel


class Statistics(msgspec.Struct, rename="camel"):
    """The part of the statistics of a file that the sink uses."""

    num_records: int | None = None
    min_values: dict[str, Any] = {}
    max_values: dict[str, Any] = {}


_statistics = msgspec.json.Decoder(Statistics).decode


class SnapshotFiles:
    """The files of the newest snapshot that an open table knows; see `penstock.io.columnar.row_search.SearchedFiles`.

    The path of a file is the one in the log, which has the escapes of a URL.
    """

    def __init__(self, uri: str, table: Any, folder: DeltaFolder, index: TableKeyIndex | None = None) -> None:
        self.uri, self.table, self.folder, self.index = uri, table, folder, index or no_index()

    def forget(self) -> None:
        """Forget what was read: the open table has another snapshot now."""
        for name in ("stored", "gone", "_shape"):
            # Where `cached_property` keeps its value: without one it computes it again.
            self.__dict__.pop(name, None)

    @cached_property
    def stored(self) -> list[AddedFile]:
        version = int(self.table.version())
        state = files_at(self.uri, self.folder, str(self.table.metadata().id), version)
        return list(state.files.values())

    @cached_property
    def gone(self) -> dict[str, Positions]:
        marked = [(each.path, each.deletion_vector) for each in self.stored if each.deletion_vector]
        # A commit writes the vectors of all its data files to one file, which is read once.
        paths = sorted({path for _, vector in marked if (path := vector.path)})
        contents = dict(zip(paths, in_parallel(self.folder.read, paths), strict=True))
        return {path: rows_in(vector, contents.get(vector.path or "", b"")) for path, vector in marked}

    def path(self, file: AddedFile) -> str:
        return file.path

    def bounds(self, file: AddedFile) -> Bounds:
        found = _statistics(file.stats) if file.stats else Statistics()

        def bounds(name: str) -> tuple[Any, Any] | None:
            lower, upper = found.min_values.get(name), found.max_values.get(name)
            # Times and decimals have another form there, and no condition is about them.
            return (lower, upper) if isinstance(lower, str | bool) and isinstance(upper, str | bool) else None

        return bounds

    def size(self, file: AddedFile) -> FileSize:
        """Return the size of a file and of what is deleted of it."""
        return FileSize(file.path, file.size, self.rows(file), len(self.gone.get(file.path, NO_ROWS)))

    def rows(self, file: AddedFile) -> int:
        """Return the rows of a file, with those that are deleted."""
        found = _statistics(file.stats).num_records if file.stats else None
        if found is not None:
            return found
        with self.opened(file) as data:
            return data.num_rows

    @contextmanager
    def opened(self, file: AddedFile) -> Iterator[OpenFile]:
        if "://" in file.path or file.path.startswith("/"):
            raise UsageError(
                f"the Delta table {self.uri} has files outside of its folder, as a shallow clone has, in which the "
                "sink cannot look for rows. Set the property delta.enableDeletionVectors of the table to false"
            )
        with self.folder.opened(unquote(file.path)) as stream:
            yield _DeltaFile(file, stream, self._shape)

    @cached_property
    def _shape(self) -> pa.Schema:
        return pa.schema(self.table.schema().to_arrow())


class _DeltaFile(OpenFile):
    def __init__(self, file: AddedFile, stream: Any, shape: pa.Schema) -> None:
        self._shape, self._partition = shape, file.partition_values
        super().__init__(file.path, stream)

    def _own_names(self, shape: pa.Schema) -> Mapping[str, str]:
        return {name: name for name in (*shape.names, *self._partition)}

    def _table_schema(self) -> pa.Schema:
        return self._shape

    def _read(self, number: int, own: Sequence[str] | None = None) -> pa.Table:
        stored = None if own is None else [name for name in own if name not in self._partition]
        rows = super()._read(number, stored)
        for name, column in constants(self._partition, self._shape, self.size(number)).items():
            if name not in rows.column_names and (own is None or name in own):
                rows = rows.append_column(name, column)
        types = {field.name: field.type for field in self._shape}
        # delta-rs writes files with views of texts, which pyarrow neither compares nor takes from.
        wanted = pa.schema([field.with_type(types.get(field.name, field.type)) for field in rows.schema])
        return rows if wanted == rows.schema else rows.cast(wanted)

    def _fitted(self, rows: pa.Table) -> pa.Table:
        held = set(rows.column_names)
        columns = [
            rows.column(field.name) if field.name in held else pa.nulls(rows.num_rows, field.type)
            for field in self._shape
        ]
        return pa.Table.from_arrays(columns, schema=self._shape)
