"""Upkeep of a table of current rows or versions: which data files are written again, and the rows of their replacement.

Each epoch adds a small data file, and marks rows of older files as deleted. So small files of one size become one, as
in a log-structured merge tree, and a file with many deleted rows is written without them. The choice is pure. Needs
pyarrow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.io.columnar.positions import NO_ROWS, are_in
from penstock.io.columnar.row_search import SearchedFiles

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
        # Two larger files together would be longer than a full one.
        if each.left < FULL_BYTES // 2:
            sizes[int(math.log(max(each.left, 1), TOGETHER))].append(each)
    crowded = [size for size, some in sizes.items() if len(some) >= TOGETHER]
    # The smallest files first: to open a file costs the same, however few rows it has.
    return _up_to_full(sizes[min(crowded)]) if crowded else []


def _up_to_full(files: Iterable[FileSize]) -> list[FileSize]:
    chosen: list[FileSize] = []
    for each in files:
        if chosen and sum(other.left for other in chosen) + each.left > FULL_BYTES:
            break
        chosen.append(each)
    return chosen


def rows_of_new_files(
    files: SearchedFiles, chosen: Sequence[Any], sizes: Sequence[FileSize]
) -> Iterator[Iterator[pa.Table]]:
    """Yield the rows of each new file that replaces `chosen`, in row groups. Read them before the next file.

    `sizes` are the sizes of the chosen files. Memory: a row group; a new file has about `FULL_BYTES` at most.
    """
    rows = sum(each.rows - each.gone for each in sizes)
    length = sum(each.length for each in sizes)
    per_file = max(1, round(FULL_BYTES * rows / max(length, 1) / GROUP_ROWS))
    groups = _groups(part for each in chosen for part in _rows_left(files, each))
    while (group := next(groups, None)) is not None:
        yield chain([group], islice(groups, per_file - 1))


def _rows_left(files: SearchedFiles, file: Any) -> Iterator[pa.Table]:
    """Yield the rows of a file that are not deleted, by row group, with the columns of the table."""
    with files.opened(file) as data:
        gone = files.gone.get(data.path, NO_ROWS)
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
