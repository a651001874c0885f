"""A replica in a Delta or Iceberg table. Needs pyarrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from penstock.event.model import ChangeEvent, TableSchema
from penstock.io.columnar.arrow_rows import arrow_schema
from penstock.io.columnar.table_rows import DELETED, KEY, PREFIX, VERSION
from penstock.io.columnar.table_target import EpochTableTarget
from penstock.verify.columnar_rows import ColumnarRows
from penstock.verify.digests import digests_of_columns, no_rows
from penstock.verify.keys import NO_KEY
from penstock.verify.rounds import Look, StoredRow, column_differences, stored_version
from penstock.verify.source import SourceRows


@dataclass(slots=True)
class ColumnarTable(ColumnarRows):
    """One table. `sink`, `job`: the names of the pipeline's sink and job in its ledger."""

    target: EpochTableTarget
    name: str
    sink: str
    job: str
    is_open: bool = field(default=False, init=False)

    def open(self, schema: TableSchema) -> bool:
        """Look for the table, and choose the columns that are compared; return whether it exists."""
        found = self.target.newest(self.name, self.sink, self.job)
        if found is None:
            return False
        known = {column.name: column for column in found.columns() if not column.name.startswith(PREFIX)}
        self.columns = [known[name] for name in schema.names if name in known]
        self.left_out = [name for name in schema.names if name not in known]
        self.is_open = True
        return True

    def expected(self, rows: SourceRows) -> pa.RecordBatch:
        """Return the digests of the rows that the sink would store."""
        whole = self._as_stored(rows.whole)
        if whole is not None:
            return _digests(whole)
        written = self._written(list(rows.events.values()))
        refused = sorted(rows.events.keys() - set(written.column(KEY).to_pylist()))
        return pa.concat_batches([_digests(written), no_rows(refused)])

    def _as_stored(self, whole: pa.Table | None) -> pa.Table | None:
        """Return whole rows as the table has them; None: the sink converts values."""
        shape = arrow_schema(self._stored_schema)
        if whole is None or not set(shape.names) <= set(whole.column_names):
            return None
        chosen = whole.select(shape.names)
        return chosen if chosen.schema.types == shape.types else None

    def fingerprints(self) -> Iterator[pa.RecordBatch]:
        """Yield the digests of all rows, in parts. Tombstones are left out."""
        commit = self.target.newest(self.name, self.sink, self.job)
        if commit is None:
            return
        shape = arrow_schema(self._stored_schema).append(pa.field(DELETED, pa.bool_()))
        with self.target.errors(self.name):
            for part in commit.read_columns(shape.names):
                rows = pa.Table.from_batches([part]).cast(shape)
                rows = rows.filter(pc.invert(rows.column(DELETED)).fill_null(True))
                keys = rows.column(KEY).fill_null(NO_KEY)
                yield _digests(rows.set_column(0, KEY, keys).drop_columns([DELETED]))

    def look(self, rows: Mapping[str, ChangeEvent | None]) -> Look:
        """See `penstock.verify.rounds.Target`."""
        commit = self.target.newest(self.name, self.sink, self.job)
        if commit is None:
            return Look({})
        with self.target.errors(self.name):
            found = commit.rows_with([key for key in rows if key != NO_KEY])
            truncated = commit.stored("truncated")
        # They cannot be told apart, so they are not read again: all of them are extra.
        without_key = {NO_KEY: StoredRow(None, False)} if NO_KEY in rows else {}
        copies = Counter(row[KEY] for row in found if not row[DELETED])
        wanted = self._stored(event for event in rows.values() if event is not None)
        return Look(
            without_key
            | {
                row[KEY]: StoredRow(
                    stored_version(row[VERSION]),
                    bool(row[DELETED]),
                    column_differences(wanted.get(row[KEY]), row) if rows[row[KEY]] is not None else (),
                    copies[row[KEY]],
                )
                # A tombstone beside a row of the same key is not what readers see.
                for row in sorted(found, key=lambda row: not row[DELETED])
            },
            truncated,
        )


def _digests(rows: pa.Table) -> pa.RecordBatch:
    """Return the digests of rows: the first column has the keys."""
    keys, *columns = (column.combine_chunks() for column in rows.columns)
    return digests_of_columns(keys, columns)
