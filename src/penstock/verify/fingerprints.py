"""Finds the keys of two tables that may not be equal, in little memory: a digest for each row, in files.

A sorted merge of two streams would need one order of keys in PostgreSQL, Spanner, Delta and Iceberg. There is none:
collations differ, and the rows of a data lake are in no order. So rows are compared by their digests, which cover the
keys too: a row is equal if each side has its digest once. The keys of all other rows are suspects. The digests are
sorted in parts, by their first bits.

Files in a folder:

    source, target    record batches of `DIGESTS`, as messages of Arrow
    suspects          record batches of keys
    progress          how far the comparison is, with the sizes of the files then

What is behind these sizes was not saved. So a comparison that was killed continues after the last chunk. Rows of the
target are read as a whole: they cost the source nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import Self

from penstock.compat import StrEnum
from penstock.verify.digests import DIGESTS, SIZE

_ROWS_AT_ONCE = 2_000_000
"""About as many digests of each side are sorted at once."""
_KEYS = pa.schema([("key", pa.string())])
_KEYS_AT_ONCE = 10_000
_SIDES = _SOURCE, _TARGET = "source", "target"
_SUSPECTS = "suspects"
_FILES = (*_SIDES, _SUSPECTS)


class Stage(StrEnum):
    """The next step of the comparison of a table."""

    SOURCE = "source"
    TARGET = "target"
    SUSPECTS = "suspects"


class Progress(NamedTuple):
    """How far the comparison of a table is.

    - `cursor`: of the last row of the source that was read. `rows`: how many were.
    - `until_ns`: the target must be complete until then before it is read.
    - `began_ns`: when the first row was read, in nanoseconds of the wall clock.
    - `shape`: the columns of the target whose values are in the digests; empty before its table is known.
    """

    stage: Stage = Stage.SOURCE
    cursor: str = ""
    rows: int = 0
    until_ns: int = 0
    began_ns: int = 0
    shape: str = ""


class _Saved(msgspec.Struct):
    """The file `progress`. `sizes`: of the other files, in bytes."""

    identity: str
    progress: Progress
    sizes: dict[str, int]


class Fingerprints:
    """The digests of one table of the source and of one table of the target."""

    def __init__(self, folder: Path, identity: str = "", *, keeps: bool = True) -> None:
        """Open the folder, or create it.

        Args:
            folder: for the files.
            identity: of the comparison. Digests of another one are deleted.
            keeps: whether what is saved survives a loss of power.
        """
        self._folder, self._identity, self._keeps = folder, identity, keeps
        self._open: dict[str, BinaryIO] = {}
        self.progress = Progress()
        folder.mkdir(exist_ok=True)
        saved = self._saved()
        if saved is None:
            self.clear()
            return
        self.progress = saved.progress
        for name in _FILES:
            if name in saved.sizes:
                os.truncate(folder / name, saved.sizes[name])
            else:
                (folder / name).unlink(missing_ok=True)

    def _saved(self) -> _Saved | None:
        try:
            saved = msgspec.json.decode((self._folder / "progress").read_bytes(), type=_Saved)
            is_whole = all((self._folder / name).stat().st_size >= size for name, size in saved.sizes.items())
        except (OSError, msgspec.MsgspecError):  # there is none, or it is of another version
            return None
        return saved if is_whole and saved.identity == self._identity else None

    @classmethod
    @contextmanager
    def in_temporary_folder(cls) -> Iterator[Self]:
        """Yield an empty one, in a folder that only this user can read, and delete the folder at the end."""
        with tempfile.TemporaryDirectory(prefix="penstock-verify-") as folder:
            digests = cls(Path(folder, "digests"), keeps=False)
            try:
                yield digests
            finally:
                digests.close()

    def close(self) -> None:
        """Close the files. Rows that were not saved are not in them."""
        for file in self._open.values():
            file.close()
        self._open = {}

    def clear(self) -> None:
        """Begin with nothing."""
        self.close()
        for name in (*_FILES, "progress"):
            (self._folder / name).unlink(missing_ok=True)
        self.progress = Progress()

    def save(self, progress: Progress) -> None:
        """Keep the rows that were added, and how far the comparison is with them."""
        for file in self._open.values():
            self._write_out(file)
        # Without the digests, whose files are deleted after the suspects are saved.
        names = [_SUSPECTS] if progress.stage is Stage.SUSPECTS else [_SOURCE, _TARGET]
        sizes = {name: path.stat().st_size for name in names if (path := self._folder / name).exists()}
        new = self._folder / "progress.new"
        with new.open("wb") as file:
            file.write(msgspec.json.encode(_Saved(self._identity, progress, sizes)))
            self._write_out(file)
        new.replace(self._folder / "progress")
        self.progress = progress

    def _write_out(self, file: BinaryIO) -> None:
        file.flush()
        if self._keeps:
            os.fdatasync(file.fileno())

    def add_source(self, rows: pa.RecordBatch) -> None:
        """Add rows of the source, as `DIGESTS`. `save` keeps them."""
        self._add(_SOURCE, rows)

    def add_target(self, rows: pa.RecordBatch) -> None:
        """Add rows of the target, as `DIGESTS`. `suspects` keeps them."""
        self._add(_TARGET, rows)

    def _add(self, name: str, rows: pa.RecordBatch) -> None:
        if name not in self._open:
            self._open[name] = (self._folder / name).open("ab")
        self._open[name].write(rows.serialize())

    def suspects(self) -> Iterator[str]:
        """Yield the keys that one side lacks, or that have two digests, or that the target has twice.

        Only they are kept from then on.
        """
        if self.progress.stage is not Stage.SUSPECTS:
            for file in self._open.values():
                file.flush()
            self._find_suspects()
            self.save(self.progress._replace(stage=Stage.SUSPECTS))
            self.close()
            for side in _SIDES:
                (self._folder / side).unlink(missing_ok=True)
        for part in self._read(_SUSPECTS, _KEYS):
            yield from part.column(0).to_pylist()

    def _find_suspects(self) -> None:
        numbers = self._unequal_rows()
        unequal = [self._keys(*each) for each in zip(_SIDES, numbers, strict=True)]
        keys = pc.unique(pa.chunked_array(unequal, pa.string()))
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            self._add(_SUSPECTS, pa.record_batch([keys.slice(start, _KEYS_AT_ONCE)], schema=_KEYS))

    def _unequal_rows(self) -> list[npt.NDArray[np.int64]]:
        """Return the numbers of the rows of each side whose digest is not once on each side."""
        most = max(sum(part.num_rows for part in self._read(side, DIGESTS)) for side in _SIDES)
        bits = max(0, (most // _ROWS_AT_ONCE).bit_length())
        found: list[list[npt.NDArray[np.int64]]] = [[], []]
        for first_bits in range(1 << bits):
            parts = [self._part(side, first_bits, bits) for side in _SIDES]
            for numbers, unequal in zip(found, _unequal(*parts), strict=True):
                numbers.append(unequal)
        return [np.sort(np.concatenate(numbers)) for numbers in found]

    def _part(self, side: str, first_bits: int, bits: int) -> _Part:
        """Return the digests of a side that begin with these bits, and the numbers of their rows."""
        start, numbers, halves = 0, [np.empty(0, np.int64)], [np.empty((0, 2), np.uint64)]
        for part in self._read(side, DIGESTS):
            digests = _as_numbers(part.column(1))
            chosen = np.arange(len(digests))
            if bits:
                chosen = np.flatnonzero(digests[:, 0] >> np.uint64(64 - bits) == first_bits)
            numbers.append(chosen + start)
            halves.append(digests[chosen])
            start += len(digests)
        return _Part(np.concatenate(numbers), np.concatenate(halves))

    def _keys(self, side: str, numbers: npt.NDArray[np.int64]) -> pa.Array:
        """Return the keys of rows, whose numbers are in order."""
        start, keys = 0, []
        for part in self._read(side, DIGESTS):
            first, last = np.searchsorted(numbers, [start, start + part.num_rows])
            if first < last:
                keys.append(part.column(0).take(pa.array(numbers[first:last] - start)))
            start += part.num_rows
        return pa.concat_arrays(keys) if keys else pa.array([], pa.string())

    def _read(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        file = self._folder / name
        if not file.exists() or not file.stat().st_size:
            return
        with pa.memory_map(str(file)) as mapped:
            while mapped.tell() < mapped.size():
                yield pa.ipc.read_record_batch(pa.ipc.read_message(mapped), schema)


class _Part(NamedTuple):
    """Rows of one side: their numbers, and their digests as two numbers each."""

    numbers: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint64]


def _as_numbers(digests: pa.Array) -> npt.NDArray[np.uint64]:
    whole = np.frombuffer(digests.buffers()[1], np.uint64).reshape(-1, SIZE // 8)
    return whole[digests.offset : digests.offset + len(digests)]


def _unequal(source: _Part, target: _Part) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the numbers of the rows of each side whose digest is not once on each side."""
    digests = np.concatenate([source.digests, target.digests])
    of_target = np.arange(len(digests)) >= len(source.digests)
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    ordered = digests[order]
    # Rows with the same digest have the same number of a group.
    begins = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])[: len(order)]
    group = np.cumsum(begins) - 1
    sizes, of_targets = np.bincount(group), np.bincount(group, of_target[order])
    unequal = np.empty(len(order), bool)
    unequal[order] = ~((sizes == 2) & (of_targets == 1))[group]
    return source.numbers[unequal[: len(source.numbers)]], target.numbers[unequal[len(source.numbers) :]]
