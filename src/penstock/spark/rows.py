"""Events as Arrow batches of a data source. Pure but for pyarrow.

Two layouts. Without a table: the rows of `WriteToSpark`, with images as JSON. With one: its change feed
(`penstock.event.change_feed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.event.change_feed import CHANGE_COLUMNS, change_feed, feed_of_rows
from penstock.event.model import ChangeEvent
from penstock.io.columnar.arrow_rows import columns_of_arrow
from penstock.io.spark.arrow_json import json_of_rows
from penstock.io.spark.json_rows import json_rows
from penstock.spark.arrow_events import ArrowEvents

BATCH_EVENTS = 5_000
"""The most events in one Arrow batch."""

Made = Callable[[Sequence[ChangeEvent]], pa.Table]


def batches(
    groups: Iterable[Sequence[ChangeEvent]], shape: pa.Schema, *, leaves_out: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield events as record batches that have exactly the schema `shape`, in the order of the events.

    A schema with `_change_type` is a table's; any other has rows with images as JSON. `leaves_out`: see `change_feed`.
    """
    if "_change_type" not in shape.names:
        return _in_batches(groups, shape, json_rows, _json_without_events)
    fields = [field for field in shape if field.name not in CHANGE_COLUMNS.names]
    table = columns_of_arrow(pa.schema(fields))
    columns = [(field.name, field.type) for field in fields]

    def without_events(group: Sequence[ChangeEvent]) -> pa.Table | None:
        rows = _change_rows(group, columns)
        return None if rows is None else feed_of_rows(rows)

    return _in_batches(
        groups, shape, lambda events: change_feed(events, table, leaves_out=leaves_out), without_events
    )


def row_batches(groups: Iterable[Sequence[ChangeEvent]], shape: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a snapshot as record batches with the table's columns, whose schema is `shape`."""
    table = columns_of_arrow(shape)
    columns = [(field.name, field.type) for field in shape]

    def without_events(group: Sequence[ChangeEvent]) -> pa.Table | None:
        rows = _change_rows(group, columns)
        return None if rows is None else pa.Table.from_struct_array(rows.column("after"))

    return _in_batches(
        groups, shape, lambda events: change_feed(events, table).select(shape.names), without_events
    )


def _json_without_events(group: Sequence[ChangeEvent]) -> pa.Table | None:
    rows = group.change_rows() if isinstance(group, ArrowEvents) else None
    return None if rows is None else json_of_rows(rows)


def _change_rows(group: Sequence[ChangeEvent], columns: list[tuple[str, pa.DataType]]) -> pa.Table | None:
    """Return the change rows of a group, if it has them and they have these columns."""
    rows = group.change_rows() if isinstance(group, ArrowEvents) else None
    # Other columns were added or dropped, or have another type: `change_feed` knows what to do.
    is_equal = rows is not None and columns == [
        (field.name, field.type) for field in rows.schema.field("after").type
    ]
    return rows if is_equal else None


def _in_batches(
    groups: Iterable[Sequence[ChangeEvent]],
    shape: pa.Schema,
    made: Made,
    without_events: Callable[[Sequence[ChangeEvent]], pa.Table | None] = lambda group: None,
) -> Iterator[pa.RecordBatch]:
    pending: list[ChangeEvent] = []

    def pending_batches(least: int) -> Iterator[pa.RecordBatch]:
        while len(pending) >= least:
            yield from _batches_of(made(pending[:BATCH_EVENTS]), shape)
            del pending[:BATCH_EVENTS]

    for group in groups:
        if (table := without_events(group)) is not None:
            yield from pending_batches(1)
            yield from _batches_of(table, shape)
            continue
        pending += group
        yield from pending_batches(BATCH_EVENTS)
    yield from pending_batches(1)


def _batches_of(table: pa.Table, shape: pa.Schema) -> Any:
    return table.cast(shape).combine_chunks().to_batches()
