"""Rows in the form in which sinks of tables and of files with columns store them. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.event.column_types import ColumnType, Kind
from penstock.event.model import ChangeEvent, Column, Image, Source, TableSchema
from penstock.event.plain_types import plain_images
from penstock.io.columnar.arrow_rows import rows_of_arrow, rows_to_arrow
from penstock.io.columnar.check import unfit
from penstock.io.columnar.table_rows import KEY, key_text


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

    def _stored(self, events: Iterable[ChangeEvent]) -> dict[str, Image]:
        """Return by key what a read of the table would give after the sink has written the events.

        A row that the sink refuses is absent, and so is a column that a row does not have.
        """
        events = list(events)
        sent = {key_text(event.key or {}): {*(event.after or ()), *(event.key or ())} for event in events}
        return {
            row[KEY]: {name: value for name, value in row.items() if name in sent[row[KEY]]}
            for row in rows_of_arrow(self._written(events))
        }

    @property
    def _stored_schema(self) -> TableSchema:
        """The key, and the columns that are compared."""
        return TableSchema((Column(KEY, ColumnType(Kind.STRING)), *self.columns))

    def _written(self, events: list[ChangeEvent]) -> pa.Table:
        """Return the rows that the sink would write for events, as `_stored_schema`, without those that it refuses."""
        if unfit(events, "current"):
            events = [event for event in events if not unfit([event], "current")]
        rows = [
            {KEY: key_text(event.key or {}), **(plain_images(event.schema)(event.after) or {})}
            for event in events
        ]
        # The sink writes the canonical form of a key, and the image has the source's.
        for row, event in zip(rows, events, strict=True):
            row |= plain_images(event.schema)(event.key) or {}
        return rows_to_arrow(rows, self._stored_schema, events[0].source if events else Source(""))
