"""Events as Arrow batches of a data source. Pure but for pyarrow.

Two layouts. Without a table: the rows of `WriteToSpark`, with images as JSON. With one, the
layout of Spark's `changes()` and of Delta's change data feed:

| column | content |
|---|---|
| the columns of the table | in their plain types (`penstock.event.plain_types`) |
| `_change_type` | insert, update_preimage, update_postimage, delete; truncate with NULL in all columns of the table |
| `_commit_version` | a text that sorts as the changes of the source do; both rows of an update have the same |
| `_commit_timestamp` | timestamp in microseconds, UTC |
| `_not_sent` | names of the columns that have a value which the source did not send; they are NULL in the row |

An update whose old values the source does not send has no update_preimage. A row of a snapshot is an insert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.errors import UsageError
from penstock.event.arrow import arrow_array, arrow_type
from penstock.event.model import ChangeEvent, Image, Op, TableSchema
from penstock.event.plain_types import plain_images, plain_schema
from penstock.event.replica import encode_version
from penstock.io.columnar.arrow_rows import columns_of_arrow
from penstock.io.spark.json_rows import json_rows

BATCH_EVENTS = 5_000
"""The most events in one Arrow batch."""
CHANGE_COLUMNS = pa.schema(
    [
        pa.field("_change_type", pa.string(), nullable=False),
        pa.field("_commit_version", pa.string(), nullable=False),
        pa.field("_commit_timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("_not_sent", pa.list_(pa.string()), nullable=False),
    ]
)
_INSERTS = (Op.CREATE, Op.READ)


class _Row(NamedTuple):
    image: Image
    change_type: str
    event: ChangeEvent
    not_sent: list[str]


def change_feed_schema(schema: TableSchema, table: str) -> pa.Schema:
    """Return the Arrow schema of the changes of a table with these columns.

    Raises:
        UsageError: the table has a column with a name of the change feed.
    """
    taken = {name.lower() for name in schema.names} & set(CHANGE_COLUMNS.names)
    if taken:
        raise UsageError(
            f"{table} has the column {', '.join(sorted(taken))}, a name that the change feed uses: read the stream "
            "without the option table"
        )
    return pa.schema([*rows_schema(schema), *CHANGE_COLUMNS])


def change_feed(events: Sequence[ChangeEvent], schema: TableSchema, *, leaves_out: bool = False) -> pa.Table:
    """Return the changes of one table, whose DataFrame has the columns `schema`, in the order of the events.

    `leaves_out`: columns that the DataFrame does not have are left out.

    Raises:
        UsageError: an event has a column that the DataFrame does not have, and it is not left out.
        UnwritableError: a value that its column cannot hold; the message names the column.
    """
    rows = [row for event in events for row in _rows(event)]
    known = set(schema.names)
    for event in () if leaves_out else events:
        _check_columns(event, known)
    arrays = (
        [
            arrow_array(
                column.name,
                column.type,
                [row.image.get(column.name) for row in rows],
                "us",
                rows[0].event.source,
            )
            for column in plain_schema(schema)
        ]
        if rows
        else [pa.array([], arrow_type(column.type, "us")) for column in plain_schema(schema)]
    )
    times = pa.array([row.event.timestamp // 1000 for row in rows], pa.int64())
    arrays += [
        pa.array([row.change_type for row in rows], pa.string()),
        pa.array([encode_version(row.event.version) for row in rows], pa.string()),
        times.cast(pa.timestamp("us", "UTC")),
        pa.array([row.not_sent for row in rows], pa.list_(pa.string())),
    ]
    names = [*schema.names, *CHANGE_COLUMNS.names]
    return pa.Table.from_arrays(arrays, names=names)


def _check_columns(event: ChangeEvent, known: set[str]) -> None:
    for image in (event.before, event.after):
        if image is not None and not image.keys() <= known:
            added = ", ".join(sorted(image.keys() - known))
            raise UsageError(
                f"{event.source.qualified_table} has the column {added}, which the DataFrame does not have. If it "
                "was added after the query began, start the query again: it continues where it was, with the new "
                "columns. If it was dropped, and changes from before that still wait, set the option "
                "schema_changes=ignore, which leaves it out"
            )


def _rows(event: ChangeEvent) -> Iterator[_Row]:
    plain = plain_images(event.schema)

    def row(image: Image | None, change_type: str) -> _Row:
        sent = image or {}
        not_sent = [name for name in event.schema.names if name not in sent]
        return _Row(plain(sent) or {}, change_type, event, not_sent)

    if event.op in _INSERTS:
        yield row(event.after, "insert")
    elif event.op is Op.UPDATE:
        if event.before is not None:
            yield row(event.before, "update_preimage")
        yield row(event.after, "update_postimage")
    elif event.op is Op.DELETE:
        yield row(event.key if event.before is None else event.before, "delete")
    elif event.op is Op.TRUNCATE:
        yield _Row({}, "truncate", event, [])


def rows_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of the rows of a table with these columns."""
    return pa.schema([pa.field(each.name, arrow_type(each.type, "us")) for each in plain_schema(schema)])


def batches(
    groups: Iterable[Sequence[ChangeEvent]], shape: pa.Schema, *, leaves_out: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield events as record batches that have exactly the schema `shape`, in the order of the events.

    A schema with `_change_type` is a table's; any other has rows with images as JSON. `leaves_out`: see `change_feed`.
    """
    if "_change_type" not in shape.names:
        return _in_batches(groups, shape, json_rows)
    table = columns_of_arrow(pa.schema([field for field in shape if field.name not in CHANGE_COLUMNS.names]))
    return _in_batches(groups, shape, lambda events: change_feed(events, table, leaves_out=leaves_out))


def row_batches(groups: Iterable[Sequence[ChangeEvent]], shape: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a snapshot as record batches with the table's columns, whose schema is `shape`."""
    table = columns_of_arrow(shape)
    return _in_batches(groups, shape, lambda events: change_feed(events, table).select(shape.names))


def _in_batches(
    groups: Iterable[Sequence[ChangeEvent]], shape: pa.Schema, made: Callable[[Sequence[ChangeEvent]], Any]
) -> Iterator[pa.RecordBatch]:
    pending: list[ChangeEvent] = []
    for group in groups:
        pending += group
        while len(pending) >= BATCH_EVENTS:
            yield from made(pending[:BATCH_EVENTS]).cast(shape).combine_chunks().to_batches()
            pending = pending[BATCH_EVENTS:]
    if pending:
        yield from made(pending).cast(shape).combine_chunks().to_batches()
