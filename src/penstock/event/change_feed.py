"""Events of one table as rows of its change feed: the layout of Spark's `changes()` and of Delta's change data feed.

Needs the extra `arrow`.

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

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.event.arrow import arrow_array, arrow_type
from penstock.event.feed_rows import FeedRow, check_feed_names, feed_rows
from penstock.event.model import ChangeEvent, TableSchema
from penstock.event.plain_types import plain_images, plain_schema
from penstock.event.replica import encode_version

CHANGE_COLUMNS = pa.schema(
    [
        pa.field("_change_type", pa.string(), nullable=False),
        pa.field("_commit_version", pa.string(), nullable=False),
        pa.field("_commit_timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("_not_sent", pa.list_(pa.string()), nullable=False),
    ]
)


def change_feed_schema(schema: TableSchema, table: str) -> pa.Schema:
    """Return the Arrow schema of the changes of a table with these columns.

    Raises:
        UsageError: the table has a column with a name of the change feed.
    """
    check_feed_names(schema.names, table)
    return pa.schema([*rows_schema(schema), *CHANGE_COLUMNS])


def change_feed(events: Sequence[ChangeEvent], schema: TableSchema, *, leaves_out: bool = False) -> pa.Table:
    """Return the changes of one table, whose DataFrame has the columns `schema`, in the order of the events.

    `leaves_out`: columns that the DataFrame does not have are left out.

    Raises:
        UsageError: an event has a column that the DataFrame does not have, and it is not left out.
        UnwritableError: a value that its column cannot hold, or a change that no row can show; the message names it.
    """
    rows = [row for event in events for row in _plain_rows(event)]
    known = set(schema.names)
    for event in () if leaves_out else events:
        _check_columns(event, known)
    arrays = (
        [
            arrow_array(
                column.name,
                column.type,
                [row.image.get(column.name) for row, _ in rows],
                "us",
                events[0].source,
            )
            for column in plain_schema(schema)
        ]
        if rows
        else [pa.array([], arrow_type(column.type, "us")) for column in plain_schema(schema)]
    )
    times = pa.array([event.timestamp // 1000 for _, event in rows], pa.int64())
    arrays += [
        pa.array([row.change_type for row, _ in rows], pa.string()),
        pa.array([encode_version(event.version) for _, event in rows], pa.string()),
        times.cast(pa.timestamp("us", "UTC")),
        pa.array([row.not_sent for row, _ in rows], pa.list_(pa.string())),
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema([*rows_schema(schema), *CHANGE_COLUMNS]))


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


def _plain_rows(event: ChangeEvent) -> Iterator[tuple[FeedRow, ChangeEvent]]:
    to_plain = plain_images(event.schema)
    return ((row._replace(image=to_plain(row.image) or {}), event) for row in feed_rows(event))


def rows_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of the rows of a table with these columns."""
    return pa.schema([pa.field(each.name, arrow_type(each.type, "us")) for each in plain_schema(schema)])


_CHANGE_TYPES = {
    "CREATE": "insert",
    "READ": "insert",
    "UPDATE": "update_postimage",
    "DELETE": "delete",
}


def feed_of_rows(rows: pa.Table) -> pa.Table:
    """Return the change feed of change rows (`penstock.event.change_rows`) without events in between.

    The rows are inserts, updates, deletes and rows of snapshots. An old row of an update must be whole: change rows do
    not tell NULL from a value that was not sent there.
    """
    before, after, metadata = (rows.column(name).combine_chunks() for name in ("before", "after", "metadata"))
    size = rows.num_rows
    numbers: list[int] = []  # of the row
    images: list[int] = []  # first the images before, then those after
    change_types: list[str] = []
    old, new = pc.is_valid(before).to_pylist(), pc.is_valid(after).to_pylist()
    for number, (op, has_old, has_new) in enumerate(
        zip(rows.column("op").to_pylist(), old, new, strict=True)
    ):
        if op == "UPDATE" and has_old:
            numbers.append(number)
            images.append(number)
            change_types.append("update_preimage")
        numbers.append(number)
        images.append(size + number if has_new else number)
        change_types.append(_CHANGE_TYPES[op])
    arrays = [
        pa.concat_arrays(both).take(pa.array(images, pa.int64()))
        for both in zip(before.flatten(), after.flatten(), strict=True)
    ]
    chosen = pa.array(numbers, pa.int64())
    arrays += [
        pa.array(change_types, pa.string()),
        pc.struct_field(metadata, "version").take(chosen),
        rows.column("timestamp").combine_chunks().take(chosen),
        pc.struct_field(metadata, "not_sent").take(chosen),
    ]
    return pa.Table.from_arrays(arrays, names=[*after.type.names, *CHANGE_COLUMNS.names])
