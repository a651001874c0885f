"""Rows in the form in which sinks of tables and of files with columns store them. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.event.model import ChangeEvent, Column, Image, TableSchema
from penstock.event.plain_types import plain_images
from penstock.io.columnar.arrow_rows import rows_of_arrow, rows_to_arrow
from penstock.io.columnar.check import unfit
from penstock.io.columnar.table_rows import KEY, key_text
from penstock.verify.keys import row_digest
from penstock.verify.rounds import REFUSED, ColumnDifference


@dataclass(slots=True)
class ColumnarRows:
    """The part of a target that does not depend on where its rows are."""

    columns: list[Column] = field(default_factory=list, init=False)
    """The data columns of the target that the source has too."""
    left_out: list[str] = field(default_factory=list, init=False)
    """Columns of the source that the target does not have."""

    @property
    def shape(self) -> str:
        """The columns that are compared, with their types in the table."""
        return repr(self.columns)

    def expected(self, events: Mapping[str, ChangeEvent]) -> list[tuple[str, bytes]]:
        """Return the keys and digests of the rows that the sink would store."""
        stored = self._stored(events.values())
        return [(key, self._digest(row) if (row := stored.get(key)) else b"") for key in events]

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

    def _differences(self, wanted: Image | None, found: Image) -> Sequence[ColumnDifference]:
        """Return the columns of `wanted` whose values differ. A column that the source has dropped is not in it."""
        if wanted is None:
            return [REFUSED]
        return [
            ColumnDifference(name, _text(value), _text(found.get(name)))
            for name, value in wanted.items()
            if row_digest([value]) != row_digest([found.get(name)])
        ]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
