"""`RowCommit`: a commit that adds new rows and removes rows of data files by their places. Needs pyarrow.

Rows are looked for by their keys (`row_search`), so an epoch costs what it changes, and not what the table has. A
format of tables adds the files of a snapshot and how a commit is written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.event.model import Source, TableSchema, Version
from penstock.event.replica import TableChanges, encode_version
from penstock.event.schema_changes import SchemaChange
from penstock.io.columnar.arrow_rows import arrow_schema, rows_of_arrow, rows_to_arrow
from penstock.io.columnar.open_file import Bounds
from penstock.io.columnar.positions import Positions, joined
from penstock.io.columnar.row_search import (
    MAY_CHANGE,
    VALID,
    Condition,
    Match,
    SearchedFiles,
    find,
    has_one_of,
    older_than,
    tombstones_before,
)
from penstock.io.columnar.table_commit import TableCommit
from penstock.io.columnar.table_rows import KEY, TIMESTAMP, VERSION, StoredRow, table_schema


class RowCommit(TableCommit):
    """See `TableCommit`. A subclass has `searched` besides."""

    # A dataclass with slots has one base with fields: `TableCommit`.
    __slots__ = ()

    @property
    @abstractmethod
    def searched(self) -> SearchedFiles:
        """The files of the snapshot that the commit begins at. They are read when a row is looked for."""

    @abstractmethod
    def entries(self, truncated: Any = None, forgotten: int | None = None) -> Any:
        """Return the ledger as the format has it, with the numbers that the writer stores: see `stored`."""

    @abstractmethod
    def write(self, rows: pa.Table, *, alters: bool, removed: Mapping[str, Positions], entries: Any) -> None:
        """Commit rows in place of those at `removed`, which has positions by file, with `entries`.

        If `alters`, the table gets the columns of `rows`.
        """

    def rows_with(self, keys: list[str]) -> list[StoredRow]:
        return self._rows_where(has_one_of(KEY, keys)) if keys else []

    def rows_that_may_change(self, keys: list[str]) -> list[StoredRow]:
        return self._rows_where(has_one_of(KEY, keys), MAY_CHANGE) if keys else []

    def valid_rows(self) -> list[StoredRow]:
        return self._rows_where(VALID)

    def _rows_where(self, *conditions: Condition) -> list[StoredRow]:
        if self.are_new:
            return []
        return [
            row
            for match in find(self.searched, conditions, lambda _: None)
            for row in rows_of_arrow(match.rows)
        ]

    def write_rows(
        self,
        rows: list[StoredRow],
        changes: TableChanges,
        after: TableSchema,
        change: SchemaChange,
        source: Source,
    ) -> None:
        self._replace(
            rows_to_arrow(rows, after, source), changes.newest, changes.truncated, alters=change.alters
        )

    def takes_whole(self, schema: TableSchema) -> bool:
        # Compared without their order: a column that was added later is at the end of the table.
        wanted, held = (
            {field.name: field.type for field in arrow_schema(columns)}
            for columns in (table_schema(schema, "current"), self.columns())
        )
        return wanted == held

    def write_whole(self, rows: pa.Table) -> None:
        newest = pc.max(rows.column(TIMESTAMP)).cast(pa.int64()).as_py() * 1000
        if self.truncated is not None:
            rows = rows.filter(pc.greater(rows.column(VERSION), encode_version(self.truncated)))
        self._replace(rows.select(self.columns().names), newest, None, alters=False)

    def _replace(self, rows: pa.Table, newest: int, truncated: Version | None, *, alters: bool) -> None:
        """Commit rows, one for each key, in place of the older rows with their keys.

        `newest` is the timestamp of the newest change, in nanoseconds since the epoch. See `TableChanges`.
        """
        # A row that is not older than its change stays, and the change is dropped: it is a repeat, or it came late.
        # The removed places and the new rows are one commit, so no reader sees a key twice or not at all.
        replaced, newer = self._replaced(rows)
        removed = [replaced]
        if truncated is not None:
            removed.append(self._places(older_than(encode_version(truncated))))
        forgotten = self.forget_before(newest)
        if forgotten is not None:
            removed.append(self._places(tombstones_before(forgotten // 1000)))
        self.write(
            rows.filter(pc.invert(pc.is_in(rows.column(KEY), value_set=newer))) if len(newer) else rows,
            alters=alters,
            removed=joined(removed),
            entries=self.entries(truncated, forgotten),
        )

    def _replaced(self, rows: pa.Table) -> tuple[dict[str, Positions], pa.Array]:
        """Return the places of the rows that changes replace, and the keys of rows that are not older than the change.

        `rows` has keys and versions of the changes.
        """
        none = pa.array([], pa.string())
        if self.are_new or not rows.num_rows:
            return {}, none
        keys, versions = (rows.column(name).to_pylist() for name in (KEY, VERSION))
        oldest = min(versions)

        def wanted(bounds: Bounds) -> tuple[str, ...]:
            known = bounds(VERSION)
            # Nearly always: all rows that were there are older than the epoch, so their versions are not read.
            return (KEY,) if known is not None and known[1] < oldest else (KEY, VERSION)

        matches = find(self.searched, [has_one_of(KEY, keys)], wanted)
        compared = [match.rows for match in matches if VERSION in match.rows.column_names]
        if not compared:
            return _places((match, None) for match in matches), none
        changed = dict(zip(keys, versions, strict=True))
        newer = pa.array(
            {
                row[KEY]
                for some in compared
                for row in some.to_pylist()
                if row[VERSION] is not None and row[VERSION] >= changed[row[KEY]]
            },
            pa.string(),
        )
        return _places(
            (match, pc.invert(pc.is_in(match.rows.column(KEY), value_set=newer))) for match in matches
        ), newer

    def _places(self, condition: Condition) -> dict[str, Positions]:
        """Return the places of the rows that fulfil a condition."""
        if self.are_new:
            return {}
        return _places((match, None) for match in find(self.searched, [condition], lambda _: ()))

    def write_versions(
        self, rows: list[StoredRow], after: TableSchema, change: SchemaChange, source: Source
    ) -> None:
        removed: dict[str, Positions] = {}
        if rows and not self.are_new:
            written = {(row[KEY], row[VERSION]) for row in rows}
            conditions = [has_one_of(column, {row[column] for row in rows}) for column in (KEY, VERSION)]
            matches = find(self.searched, conditions, lambda _: (KEY, VERSION))
            # A version of another key may be among those that match, but no version is used twice with one key.
            removed = _places(
                (match, pa.array([(row[KEY], row[VERSION]) in written for row in match.rows.to_pylist()]))
                for match in matches
            )
        self.write(
            rows_to_arrow(rows, after, source),
            alters=change.alters,
            removed=removed,
            entries=self.entries(),
        )


def _places(matches: Iterable[tuple[Match, Any]]) -> dict[str, Positions]:
    """Return the positions by file: of each match the rows of its mask, or all if it has none."""
    return joined(
        {match.path: match.positions if mask is None else match.positions[np.asarray(mask)]}
        for match, mask in matches
    )
