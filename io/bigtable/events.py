"""Converts Bigtable's `ChangeStreamMutation` to a `ChangeEvent`: one for each changed row. Pure.

A Bigtable row has no fixed columns, and its cells have timestamps. An event shows it in two ways:

- `after` holds the row key (`row_key`) and each column that the change set, as ``family:qualifier``. If one change sets
  several cells of a column, the cell with the highest timestamp gives the value: a reader of the row sees it first.
  Bytes of a qualifier that are not UTF-8 become ``\\xNN``.
- `cells` holds every entry of the change, in its order: also deletions of a range, of a column and of a family.

The operation of a change is always UPDATE, and READ for a row of a snapshot. Bigtable does not say whether the row
existed before, and it reports the deletion of a row as deletions of its families. There is no `before`, because old
values are not sent.

Source: google/bigtable/v2/bigtable.proto, `ReadChangeStreamResponse.DataChange`.
"""

from __future__ import annotations

from functools import lru_cache

from penstock.event.column_types import ColumnType, Kind
from penstock.event.model import (
    CellChange,
    ChangeEvent,
    Column,
    Image,
    Op,
    Source,
    TableSchema,
    Transaction,
    Version,
    column_name,
)
from penstock.io.bigtable.record import (
    AddToCell,
    ChangeStreamMutation,
    DeleteCells,
    DeleteFamily,
    Entry,
    MutationType,
    SetCell,
    UnknownMutation,
)

ROW_KEY = "row_key"
"""The name of the row key in keys and images."""

_BYTES = ColumnType(Kind.BYTES, "BYTES")


class EventConverter:
    """Converts the changes of one table. `server` is project and instance, such as ``my-project/main``."""

    def __init__(self, server: str = "", table: str = "") -> None:
        self._source = Source("bigtable", server, table=table)

    def __call__(self, mutation: ChangeStreamMutation) -> list[ChangeEvent]:
        """Return the event of a change, in a list of one."""
        cells = tuple(map(cell_change, mutation.entries))
        after: Image = {ROW_KEY: mutation.row_key}
        newest: dict[str, int] = {}
        for cell in cells:
            if cell.mod == "SET_CELL":
                column = column_name(cell.family, cell.qualifier)
                # `>=`: of two cells with one timestamp the later one was applied last.
                if cell.start_us >= newest.get(column, cell.start_us):
                    newest[column] = cell.start_us
                    after[column] = cell.value
        collected = mutation.type is MutationType.GARBAGE_COLLECTION
        return [
            ChangeEvent(
                self._source,
                Op.READ if mutation.type is MutationType.READ else Op.UPDATE,
                mutation.commit_timestamp,
                {ROW_KEY: mutation.row_key},
                None,
                after,
                # The tiebreaker orders changes of one commit time; digits are padded, so that texts sort as
                # numbers.
                Version(mutation.commit_timestamp, "", f"{mutation.tiebreaker:020d}"),
                _schema(tuple(newest)),
                Transaction("", origin=mutation.source_cluster_id, system=collected),
                None,
                cells,
            )
        ]


def cell_change(entry: Entry) -> CellChange:
    """Return an entry of a change in the event model."""
    match entry:
        case SetCell():
            return CellChange(
                "SET_CELL", entry.family, entry.qualifier, entry.timestamp_micros, None, entry.value
            )
        case DeleteCells():
            return CellChange(
                "DELETE_CELLS", entry.family, entry.qualifier, entry.start_micros, entry.end_micros
            )
        case DeleteFamily():
            return CellChange("DELETE_FAMILY", entry.family)
        case UnknownMutation():
            return CellChange("UNKNOWN", value=entry.encoded)
        # Aggregates have no value before they are computed, so the input is passed on.
        case _:
            mod = "ADD_TO_CELL" if isinstance(entry, AddToCell) else "MERGE_TO_CELL"
            return CellChange(mod, entry.family, entry.qualifier, entry.timestamp_micros, None, entry.input)


# Bounded, because applications use qualifiers as data, and then nearly every change has other columns.
@lru_cache(maxsize=4096)
def _schema(columns: tuple[str, ...]) -> TableSchema:
    """Return the schema of an event: Bigtable knows no columns but those that a change names."""
    key = Column(ROW_KEY, _BYTES, nullable=False, key_position=1)
    return TableSchema((key, *(Column(name, _BYTES) for name in columns)))
