"""Finds rows in the data files of a table, and their places, without reading what cannot match. Needs pyarrow.

A condition reads few columns. Files and row groups whose statistics say that no row fulfils
it are left out, and further columns are read only of row groups in which a row does. Rows that are deleted already are
never returned. Rows with some keys are looked for in the index of their file, if it has one: see `key_index`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.io.columnar.key_index import KeyPlaces, TableKeyIndex, sorted_hashes
from penstock.io.columnar.open_file import Bounds, OpenFile
from penstock.io.columnar.positions import NO_ROWS, Positions, are_in
from penstock.io.columnar.table_rows import DELETED, KEY, TIMESTAMP, VALID_TO, VERSION
from penstock.object_stores.store import in_parallel

FILES_AT_ONCE = 4
"""Files of a table that are read at the same time. Each of them takes the memory of one row group."""

Wanted = Callable[[Bounds], tuple[str, ...] | None]
"""Columns to read of the rows in a row group with these bounds; None: all columns of the table."""


class SearchedFiles(Protocol):
    """The data files of one snapshot of a table, in the words of its format."""

    @property
    def stored(self) -> Sequence[Any]:
        """The data files."""

    @property
    def gone(self) -> Mapping[str, Positions]:
        """The rows that are deleted, by the path of their data file."""

    @property
    def index(self) -> TableKeyIndex:
        """The index of the keys of the table."""

    def path(self, file: Any) -> str:
        """Return the path of a file, which is the one of its `OpenFile`."""

    def bounds(self, file: Any) -> Bounds:
        """Return the bounds of a whole file, from the metadata of the table."""

    def opened(self, file: Any) -> AbstractContextManager[OpenFile]:
        """Open a data file. For any number of threads."""


class Keys(NamedTuple):
    """Keys that are looked for, and their `sorted_hashes`."""

    texts: pa.Array
    hashes: Any


@dataclass(frozen=True, slots=True)
class Condition:
    """Which rows are searched: `mask` says it for each row of a table with `columns`.

    `may_hold` says whether a row with values in these bounds can fulfil it. `keys` are the keys of the rows, if it is
    about keys.
    """

    columns: tuple[str, ...]
    mask: Callable[[pa.Table], Any]
    may_hold: Callable[[Bounds], bool] = lambda bounds: True
    keys: Keys | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """Rows of one data file: their positions, and the columns that were wanted of them."""

    path: str
    positions: Positions
    rows: pa.Table


def has_one_of(column: str, texts: Collection[str]) -> Condition:
    """Rows whose `column` is one of some texts."""
    ordered = sorted(texts)
    values = pa.array(ordered, pa.string())

    def may_hold(bounds: Bounds) -> bool:
        known = bounds(column)
        if known is None:
            return True
        # The first text from the lower bound on decides: if it is above the upper bound, all that follow are too.
        first = bisect_left(ordered, known[0])
        return first < len(ordered) and ordered[first] <= known[1]

    return Condition(
        (column,),
        lambda rows: pc.is_in(rows.column(column), value_set=values),
        may_hold,
        Keys(values, sorted_hashes(ordered)) if column == KEY else None,
    )


def older_than(version: str) -> Condition:
    """Rows whose version is below (not at) a version."""

    def may_hold(bounds: Bounds) -> bool:
        known = bounds(VERSION)
        return known is None or known[0] < version

    return Condition((VERSION,), lambda rows: pc.less(rows.column(VERSION), version), may_hold)


def tombstones_before(time_us: int) -> Condition:
    """Tombstones from before (not at) a time, in microseconds since the epoch."""
    limit = pa.scalar(time_us, pa.timestamp("us", tz="UTC"))

    def mask(rows: pa.Table) -> Any:
        return pc.and_kleene(rows.column(DELETED), pc.less(rows.column(TIMESTAMP), limit))

    def may_hold(bounds: Bounds) -> bool:
        known = bounds(DELETED)
        return known is None or bool(known[1])

    return Condition((DELETED, TIMESTAMP), mask, may_hold)


VALID = Condition((VALID_TO,), lambda rows: pc.is_null(rows.column(VALID_TO)))
"""Versions of a history that are valid."""

MAY_CHANGE = Condition(
    (VALID_TO, DELETED),
    lambda rows: pc.or_kleene(pc.is_null(rows.column(VALID_TO)), rows.column(DELETED)),
)
"""Versions of a history that are valid, and deletions."""


def find(files: SearchedFiles, conditions: Sequence[Condition], wanted: Wanted) -> list[Match]:
    """Return the rows that fulfil all of one or more conditions, by data file.

    A condition about keys is the first one. In general the first condition should read the fewest bytes: the next ones
    read only row groups in which it finds rows.

    Raises:
        UsageError: a file that may have such rows is not Parquet.
    """
    search = _Search(files, conditions, wanted)
    if conditions[0].keys is not None:
        files.index.begin([files.path(each) for each in files.stored])
    return [
        match for some in in_parallel(search.matches, search.candidates(), FILES_AT_ONCE) for match in some
    ]


@dataclass(frozen=True, slots=True)
class _Search:
    files: SearchedFiles
    conditions: Sequence[Condition]
    wanted: Wanted

    def candidates(self) -> list[Any]:
        """Return the data files whose statistics do not say that they have no such row."""
        found = [each for each in self.files.stored if self._may_hold(self.files.bounds(each))]
        # Read before the threads, which would all read it.
        if found:
            _ = self.files.gone
        return found

    def _may_hold(self, bounds: Bounds) -> bool:
        return all(condition.may_hold(bounds) for condition in self.conditions)

    def matches(self, file: Any) -> list[Match]:
        """Return the rows of one data file, in parts: one for each row group."""
        path, keys = self.files.path(file), self.conditions[0].keys
        if keys is None:
            with self.files.opened(file) as data:
                return list(self._in_groups(data))
        # A data file never changes, so its entry is right for every snapshot. `_indexed` leaves deleted rows out.
        entry = self.files.index.entry(path)
        if entry is not None:
            return self._indexed(file, entry, keys)
        with self.files.opened(file) as data:
            entry = self.files.index.made(path, data)
            if entry is None:
                return list(self._in_groups(data))
        return self._indexed(file, entry, keys)

    def _indexed(self, file: Any, entry: KeyPlaces, keys: Keys) -> list[Match]:
        """Return the rows of a file whose keys are in the index. The file is opened for other columns only."""
        path = self.files.path(file)
        positions, texts = entry.find(*keys)
        left = ~are_in(positions, self.files.gone.get(path, NO_ROWS))
        positions, texts = positions[left], texts.filter(pa.array(left))
        if not len(positions):
            return []
        columns = self.wanted(entry.bounds)
        if len(self.conditions) == 1 and columns in ((), (KEY,)):
            return [Match(path, positions, pa.table({KEY: texts}))]
        with self.files.opened(file) as data:
            return list(self._in_groups(data, positions))

    def _in_groups(self, data: OpenFile, known: Positions | None = None) -> Iterator[Match]:
        """Yield the rows by row group. `known`: positions of the rows that fulfil the first condition."""
        gone = self.files.gone.get(data.path, NO_ROWS)
        for number, first in enumerate(data.firsts):
            bounds = data.bounds(number)
            if not self._may_hold(bounds):
                continue
            # Places count in the row group, positions in the file.
            places = self._places(
                data, number, None if known is None else _within(known, first, data.size(number))
            )
            places = places[~are_in(places + first, gone)]
            if len(places):
                columns = self.wanted(bounds)
                rows = pa.table({}) if columns == () else data.rows(number, columns, places)
                yield Match(data.path, places + first, rows)

    def _places(self, data: OpenFile, number: int, known: Positions | None) -> Positions:
        """Return the places of matching rows in a row group; `known`: of those that fulfil the first condition."""
        places = known
        for condition in self.conditions[known is not None :]:
            if places is not None and not len(places):
                break
            rows = data.rows(number, condition.columns, places)
            chosen = pc.indices_nonzero(condition.mask(rows)).to_numpy().astype(np.int64)
            places = chosen if places is None else places[chosen]
        return NO_ROWS if places is None else places


def _within(positions: Positions, first: int, size: int) -> Positions:
    """Return the places of rows in a row group, from their positions in the file."""
    start, end = np.searchsorted(positions, (first, first + size))
    return positions[start:end] - first
