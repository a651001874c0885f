"""A replica in a Delta or Iceberg table. Needs pyarrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.event.model import ChangeEvent, Column, Image, TableSchema, Version
from penstock.event.plain_types import plain_images
from penstock.event.replica import decode_version
from penstock.io.columnar.arrow_rows import rows_of_arrow, rows_to_arrow
from penstock.io.columnar.check import unfit
from penstock.io.columnar.table_rows import DELETED, KEY, PREFIX, VERSION, key_text
from penstock.io.columnar.table_target import EpochTableTarget
from penstock.verify.keys import NO_KEY, row_digest
from penstock.verify.rounds import REFUSED, ColumnDifference, Look, StoredRow


@dataclass(slots=True)
class ColumnarTable:
    """One table. `sink`, `job`: the names of the pipeline's sink and job in its ledger."""

    target: EpochTableTarget
    name: str
    sink: str
    job: str
    columns: list[Column] = field(default_factory=list, init=False)
    """The data columns of the table that the source has too."""
    left_out: list[str] = field(default_factory=list, init=False)
    """Columns of the source that the table does not have."""
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

    @property
    def shape(self) -> str:
        """The columns that are compared, with their types in the table."""
        return repr(self.columns)

    def fingerprints(self) -> Iterator[list[tuple[str, bytes]]]:
        """Yield the keys and digests of all rows, in parts. Tombstones are left out."""
        commit = self.target.newest(self.name, self.sink, self.job)
        if commit is None:
            return
        with self.target.errors(self.name):
            for part in commit.read_rows():
                yield [(row[KEY] or NO_KEY, self._digest(row)) for row in part if not row[DELETED]]

    def expected(self, events: Mapping[str, ChangeEvent]) -> list[tuple[str, bytes]]:
        """Return the keys and digests of the rows that the sink would store."""
        stored = self._stored(events.values())
        return [(key, self._digest(row) if (row := stored.get(key)) else b"") for key in events]

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
                    _version(row[VERSION]),
                    bool(row[DELETED]),
                    _differences(wanted.get(row[KEY]), row) if rows[row[KEY]] is not None else (),
                    copies[row[KEY]],
                )
                # A tombstone beside a row of the same key is not what readers see.
                for row in sorted(found, key=lambda row: not row[DELETED])
            },
            truncated,
        )

    def _stored(self, events: Iterable[ChangeEvent]) -> dict[str, Image]:
        """Return by key what a read of the table would give after the sink has written the events.

        A row that the sink refuses is absent.
        """
        events = list(events)
        if unfit(events, "current"):
            events = [event for event in events if not unfit([event], "current")]
        if not events:
            return {}
        rows = [
            {KEY: key_text(event.key or {}), **(plain_images(event.schema)(event.after) or {})}
            for event in events
        ]
        # The sink writes the canonical form of a key, and the image has the source's.
        for row, event in zip(rows, events, strict=True):
            row |= plain_images(event.schema)(event.key) or {}
        written = rows_to_arrow(rows, TableSchema(tuple(self.columns)), events[0].source)
        return {
            row[KEY]: {name: value for name, value in read.items() if name in row}
            for row, read in zip(rows, rows_of_arrow(written), strict=True)
        }

    def _digest(self, row: Image) -> bytes:
        return row_digest(row.get(column.name) for column in self.columns)


def _differences(wanted: Image | None, found: Image) -> Sequence[ColumnDifference]:
    """Return the columns of `wanted` whose values differ. A column that the source has dropped is not in it."""
    if wanted is None:
        return [REFUSED]
    return [
        ColumnDifference(name, _text(value), _text(found[name]))
        for name, value in wanted.items()
        if row_digest([value]) != row_digest([found[name]])
    ]


def _version(text: str | None) -> Version | None:
    try:
        return decode_version(text or "")
    except ValueError:
        return None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
