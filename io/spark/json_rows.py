"""Events as rows whose images are JSON text: one layout for all tables, which never changes. Needs the extra `arrow`.

Columns: `op`, `timestamp`, `key`, `before`, `after`, `metadata`; see `penstock.event.change_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.event.model import ChangeEvent
from penstock.io.staging.row_refused import row_refused

TARGET = "a DataFrame"
"""Name of the target in messages."""


def json_schema() -> Any:
    """Return the Arrow schema of rows with images as JSON."""
    import pyarrow as pa

    from penstock.event.change_rows import IMAGES, METADATA

    return pa.schema(
        [
            pa.field("op", pa.string(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
            *(pa.field(name, pa.string()) for name in IMAGES),
            pa.field("metadata", METADATA, nullable=False),
        ]
    )


def json_rows(events: Sequence[ChangeEvent]) -> Any:
    """Return events as an Arrow table whose images are JSON.

    Raises:
        RowRefusedError: an image has a value that JSON text cannot show; the message names table and column.
    """
    import pyarrow as pa

    from penstock.event.change_rows import IMAGES, metadata_array

    schema = json_schema()
    # Spark's timestamps have microseconds.
    times = pa.array([event.timestamp // 1000 for event in events], pa.int64())
    columns = {
        "op": pa.array([str(event.op) for event in events], pa.string()),
        "timestamp": times.cast(schema.field("timestamp").type),
        "metadata": metadata_array(events),
    }
    for name in IMAGES:
        columns[name] = pa.array([_image(event, name) for event in events], pa.string())
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _image(event: ChangeEvent, name: str) -> str | None:
    from penstock.event.plain_json import image_json

    try:
        return image_json(event.schema, getattr(event, name))
    except ValueError as error:
        raise row_refused(event, TARGET, str(error)) from None
