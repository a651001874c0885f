"""Events as rows of one table that every engine reads: the layout of files, of Spark's DataFrames and of change logs.

Needs the extra `arrow`.

| column | type |
|---|---|
| `op` | string, as `Op` |
| `timestamp` | timestamp in microseconds, UTC (rounded down; `metadata.version` has all digits) |
| `key`, `before`, `after` | struct of the columns; null if the event has no such image |
| `metadata` | struct, see `METADATA` |

The columns have the plain types of `penstock.event.plain_types`. A column that an image does not have is null there,
and `metadata.not_sent` names the columns that have a value which the source did not send. Rows of a table sort by
`metadata.order`, `transaction`, `sequence` and `index`, or by `metadata.version` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from penstock.event.arrow import arrow_array, arrow_type
from penstock.event.model import ChangeEvent, Image, Source, TableSchema
from penstock.event.plain_types import metadata_columns, plain_images, plain_schema

_TEXT, _NUMBER, _FLAG = pa.string(), pa.int64(), pa.bool_()

METADATA = pa.struct(
    {
        "system": _TEXT,
        "server": _TEXT,
        "database": _TEXT,
        "schema": _TEXT,
        "table": _TEXT,
        "stream": _TEXT,
        "version": _TEXT,
        "order": _NUMBER,
        "transaction": _TEXT,
        "sequence": _TEXT,
        "index": _NUMBER,
        "not_sent": pa.list_(_TEXT),
        "records_in_transaction": _NUMBER,
        "transaction_tag": _TEXT,
        "system_transaction": _FLAG,
        "user": _TEXT,
        "message_prefix": _TEXT,
        "message": pa.binary(),
    }
)
"""`version` is `penstock.event.replica.encode_version`: a text that sorts as versions do."""

IMAGES = ("key", "before", "after")


@lru_cache(maxsize=4096)
def change_row_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of the change rows of a table.

    A struct without fields cannot be stored, so `key` is missing in a table without a primary key, and all three images
    are missing in one without known columns.
    """
    plain = plain_schema(schema)
    fields = [
        pa.field("op", _TEXT, nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
    ]
    for name, columns in zip(IMAGES, (plain.key_columns, plain.columns, plain.columns), strict=True):
        if columns:
            held = pa.struct([(column.name, arrow_type(column.type, "us")) for column in columns])
            fields.append(pa.field(name, held))
    return pa.schema([*fields, pa.field("metadata", METADATA, nullable=False)])


def check_images(events: Sequence[ChangeEvent], schema: TableSchema) -> None:
    """Check that events of one table, all with the columns `schema`, can be change rows. It costs less than the rows.

    Raises:
        UnwritableError: a value that its column cannot hold; the message names the column.
    """
    plain, to_plain = plain_schema(schema), plain_images(schema)
    source = events[0].source if events else Source("")
    # An image has the values of the key, except if a deletion has the key only.
    keys = [event.key for event in events if event.after is None]
    after = [event.after for event in events if event.after is not None]
    before = [event.before for event in events if event.before is not None]
    for columns, images in ((plain.key_columns, keys), (plain.columns, [*after, *before])):
        if columns and images:
            _struct(columns, [to_plain(image) for image in images], source)


def change_rows(events: Sequence[ChangeEvent], schema: TableSchema) -> pa.Table:
    """Return events of one table as change rows, in their order.

    `schema` has the columns of all events; see `penstock.event.schema_changes.merged_schema`.

    Raises:
        UnwritableError: a value that its column cannot hold; the message names the column.
    """
    shape, plain = change_row_schema(schema), plain_schema(schema)
    source = events[0].source if events else Source("")
    arrays: dict[str, pa.Array] = {
        "op": pa.array([str(event.op) for event in events], _TEXT),
        "timestamp": pa.array([event.timestamp // 1000 for event in events], pa.int64()).cast(
            shape.field(1).type
        ),
    }
    for name, columns in zip(IMAGES, (plain.key_columns, plain.columns, plain.columns), strict=True):
        if columns:
            images = [_plain(event)(getattr(event, name)) for event in events]
            arrays[name] = _struct(columns, images, source)
    arrays["metadata"] = metadata_array(events)
    return pa.Table.from_arrays([arrays[name] for name in shape.names], schema=shape)


def metadata_array(events: Sequence[ChangeEvent]) -> pa.Array:
    """Return the column `metadata`."""
    columns = metadata_columns(events)
    # Columns, because pyarrow reads a dict for each event four times as slowly.
    arrays = [pa.array(columns[field.name], field.type) for field in METADATA]
    return pa.StructArray.from_arrays(arrays, fields=list(METADATA))


def _plain(event: ChangeEvent) -> Callable[[Image | None], Image | None]:
    # Use the schema of the event: in a merged schema the type of a column may be wider.
    return plain_images(event.schema)


def _struct(columns: Sequence[Any], images: Sequence[Image | None], source: Source) -> pa.Array:
    none: Image = {}
    arrays = [
        arrow_array(
            column.name, column.type, [(image or none).get(column.name) for image in images], "us", source
        )
        for column in columns
    ]
    fields = [pa.field(column.name, array.type) for column, array in zip(columns, arrays, strict=True)]
    absent = pa.array([image is None for image in images], _FLAG)
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=absent)
