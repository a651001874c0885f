"""An index of the keys in data files, so that an epoch reads no file to look for rows. Needs pyarrow.

A data file never changes, so its entry stays right while other programs write the table too: the snapshot says which
files count and which of their rows are deleted. A large file gets its entry when it is searched for the second time, so
that a driver of one epoch makes none. The index is of one process. Large entries are in files without a name in the
folder for temporary files, which end with the process.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.io.columnar.known_keys import hashes_of
from penstock.io.columnar.open_file import OpenFile
from penstock.io.columnar.positions import Positions
from penstock.io.columnar.table_rows import KEY, VERSION

logger = logging.getLogger(__name__)

MOST_ROWS = 1 << 21
"""Rows that one search adds to the index at most: some 0.4 s of CPU for a million. A longer file is searched always."""

SMALL_ROWS = 10_000
"""A file with so many rows at most gets its entry at once. Most epochs add such a file."""

IN_MEMORY_BYTES = 1 << 20
"""Entries of this size and more are in files."""

_SLICE = 1 << 16

_LEAST = 17
"""Bytes of a row in an entry at least: hash, position, and a key of one character with its offset."""

_Numbers = npt.NDArray[np.uint32]

_counting = threading.Lock()


@dataclass(frozen=True, slots=True)
class KeyPlaces:
    """The rows of one data file in the order of the hashes of their keys: hash, position in the file, and key.

    `versions` are the bounds of their versions; None: not known. `size` is in bytes.
    """

    hashes: _Numbers
    positions: _Numbers
    keys: Any
    versions: tuple[str, str] | None
    size: int

    @classmethod
    def of(cls, data: OpenFile) -> KeyPlaces:
        """Read the keys of an open file."""
        parts = [data.rows(number, (KEY,)).column(KEY) for number in range(len(data.firsts))]
        chunks = [chunk for part in parts for chunk in part.chunks]
        # In slices, because the texts of Python are many times larger.
        slices = [chunk.slice(at, _SLICE) for chunk in chunks for at in range(0, len(chunk), _SLICE)]
        hashes = np.concatenate([_short_hashes(each.to_pylist()) for each in slices])
        order = np.argsort(hashes, kind="stable").astype(np.uint32)
        keys = pa.concat_arrays(chunks).cast(pa.large_string()).take(pa.array(order))
        return cls(hashes[order], order, keys, _versions(data), 2 * order.nbytes + keys.nbytes)

    def find(self, keys: pa.Array, hashes: _Numbers) -> tuple[Positions, pa.Array]:
        """Return the positions of the rows with one of some keys, in ascending order, and the key of each.

        `hashes`: see `sorted_hashes`.
        """
        first = np.searchsorted(self.hashes, hashes, "left")
        counts = np.searchsorted(self.hashes, hashes, "right") - first
        # The places of all rows with one of the hashes: runs of `counts` from `first`.
        ends = np.cumsum(counts)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - ends + counts, counts)
        # Another key may have the hash of one that is looked for.
        found = self.keys.take(pa.array(places)).cast(pa.string())
        same = pc.is_in(found, value_set=keys).to_numpy(zero_copy_only=False)
        positions = self.positions[places[same]].astype(np.int64)
        order = np.argsort(positions)
        return positions[order], found.filter(pa.array(same)).take(pa.array(order))

    def bounds(self, name: str) -> tuple[Any, Any] | None:
        """See `penstock.io.columnar.open_file.Bounds`."""
        return self.versions if name == VERSION else None

    def in_file(self) -> KeyPlaces:
        """Return the same entry in a file without a name, of which the system keeps in memory what is used."""
        table = pa.table({"hash": self.hashes, "position": self.positions, "key": self.keys})
        descriptor, path = tempfile.mkstemp(prefix="penstock-keys-")
        try:
            with os.fdopen(descriptor, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            # The columns keep the pages, and no file is open any more.
            with pa.memory_map(path) as source:
                mapped = pa.ipc.open_file(source).read_all()
        finally:
            os.unlink(path)
        hashes, positions, keys = (column.chunk(0) for column in mapped.columns)
        return KeyPlaces(hashes.to_numpy(), positions.to_numpy(), keys, self.versions, self.size)


def sorted_hashes(keys: Iterable[str]) -> _Numbers:
    """Return the hashes of keys, each once, in ascending order."""
    return np.unique(_short_hashes(keys))


def _short_hashes(keys: Iterable[str]) -> _Numbers:
    # Keys are compared themselves too, so the hashes need not differ.
    return hashes_of(keys).astype(np.uint32)


def _versions(data: OpenFile) -> tuple[str, str] | None:
    groups = [data.bounds(number)(VERSION) for number in range(len(data.firsts))]
    known = [each for each in groups if each is not None]
    if len(known) < len(groups):
        return None
    return min(lower for lower, _ in known), max(upper for _, upper in known)


@dataclass(slots=True)
class KeyIndex:
    """The indexes of all tables of a sink, with `most_bytes` at most together. State of one driver."""

    most_bytes: int
    _used: int = 0
    _tables: dict[str, TableKeyIndex] = field(default_factory=dict)

    def of_table(self, name: str) -> TableKeyIndex:
        return self._tables.setdefault(name, TableKeyIndex(self))

    def has(self, size: int) -> bool:
        """Return whether `size` bytes are free."""
        return self._used + size <= self.most_bytes

    def takes(self, size: int) -> bool:
        """Reserve `size` bytes if they are free, and return whether they were. A negative size gives bytes back."""
        with _counting:
            found = self.has(size)
            self._used += size * found
        return found


@dataclass(slots=True)
class TableKeyIndex:
    """The index of one table, whose entries are by the path of the data file. One search at a time, in some threads."""

    _all: KeyIndex
    _entries: dict[str, KeyPlaces] = field(default_factory=dict)
    _searched: set[str] = field(default_factory=set)
    # Without an entry: it has no place. They are not read again.
    _left_out: set[str] = field(default_factory=set)
    _rows_left: int = 0

    def begin(self, paths: Collection[str]) -> None:
        """Begin a search in the files of a snapshot, and forget the entries of other files."""
        for path in self._entries.keys() - set(paths):
            self._all.takes(-self._entries.pop(path).size)
        self._searched.intersection_update(paths)
        self._left_out.intersection_update(paths)
        self._rows_left = MOST_ROWS

    def entry(self, path: str) -> KeyPlaces | None:
        """Return the entry of a file; None: it has none yet."""
        return self._entries.get(path)

    def made(self, path: str, data: OpenFile) -> KeyPlaces | None:
        """Return a new entry of a file that is searched; None: it gets none now."""
        if not self._is_due(path, data.num_rows):
            return None
        places = self._kept(KeyPlaces.of(data))
        if places is None:
            self._left_out.add(path)
        else:
            self._entries[path] = places
        return places

    def _is_due(self, path: str, rows: int) -> bool:
        with _counting:
            if path not in self._searched and rows > SMALL_ROWS:
                self._searched.add(path)
                return False
            if not 0 < rows <= self._rows_left or path in self._left_out or not self._all.has(rows * _LEAST):
                return False
            self._rows_left -= rows
        return True

    def _kept(self, places: KeyPlaces) -> KeyPlaces | None:
        """Return an entry at its place; None: there is no place."""
        if not self._all.takes(places.size):
            return None
        try:
            return places if places.size < IN_MEMORY_BYTES else places.in_file()
        except OSError as error:
            self._all.takes(-places.size)
            _warn(str(error))
            return None


def no_index() -> TableKeyIndex:
    """Return an index that has no place for any file."""
    return KeyIndex(0).of_table("")


@lru_cache(maxsize=1)
def _warn(text: str) -> None:
    logger.warning(
        "the index of keys cannot be written to %s, so each commit reads the keys of its tables: %s. Set TMPDIR to a "
        "folder with space, or max_index_bytes=0",
        tempfile.gettempdir(),
        text,
    )
