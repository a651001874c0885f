"""The files of a snapshot of an Iceberg table: its manifests, and the rows that position deletes remove.

Needs the extra `iceberg`. Everything is read when it is first asked for, once for each snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet

from penstock.errors import UsageError
from penstock.object_stores.store import in_parallel

Positions = npt.NDArray[np.int64]
"""Places of rows in a data file, from 0, in ascending order, each once."""

NO_ROWS: Positions = np.empty(0, np.int64)
NO_POSITIONS: Mapping[str, Positions] = {}

_PATH, _POSITION = "file_path", "pos"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest of a snapshot, with the entries of the files that the snapshot has."""

    file: Any
    entries: list[Any]


class SnapshotFiles:
    """The files of the newest snapshot that an open table knows. Entries are pyiceberg's, with sequence numbers."""

    def __init__(self, table: Any) -> None:
        self.table = table

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
        return {path: _in_order(parts) for path, parts in found.items()}

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
        order = np.argsort(codes, kind="stable")
        positions = rows.column(_POSITION).to_numpy()[order]
        ends = np.searchsorted(codes[order], np.arange(len(paths.dictionary)), side="right")
        return list(zip(paths.dictionary.to_pylist(), np.split(positions, ends[:-1]), strict=True))


def joined(parts: Iterable[Mapping[str, Positions]]) -> dict[str, Positions]:
    """Return the rows that are in one of several sets. A file without such rows is left out."""
    found: dict[str, list[Positions]] = {}
    for part in parts:
        for path, positions in part.items():
            if len(positions):
                found.setdefault(path, []).append(positions)
    return {path: _in_order(each) for path, each in found.items()}


def _in_order(parts: Sequence[Positions]) -> Positions:
    # The parts are in order nearly always. A stable sort takes them as runs, which is many times faster.
    found = np.sort(np.concatenate(parts), kind="stable")
    return found[np.diff(found, prepend=-1) > 0]


def are_in(positions: Positions, known: Positions) -> npt.NDArray[np.bool_]:
    """Return for each position whether it is one of the `known` ones."""
    if not len(known):
        return np.zeros(len(positions), np.bool_)
    # `np.isin` would sort all known ones again.
    places = np.minimum(np.searchsorted(known, positions), len(known) - 1)
    return known[places] == positions
