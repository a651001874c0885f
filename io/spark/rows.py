"""The layout of the DataFrame that `WriteToSpark` makes, and of the staged files behind it. Needs the extra `parquet`.

| `images` | `key`, `before`, `after` |
|---|---|
| json | JSON text (`penstock.event.plain_json`): one layout for all tables, which never changes |
| struct | struct of the columns, for the events of one table; its fields are the columns of the epoch's events |
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Literal, get_args

from penstock.errors import UsageError
from penstock.event.model import ChangeEvent, Source, TableSchema
from penstock.event.schema_changes import merged_schema
from penstock.io.columnar.parquet import events_of
from penstock.io.columnar.row_refused import row_refused
from penstock.io.staging.blocks import RecordBlock

Images = Literal["json", "struct"]
TARGET = "a DataFrame"
"""Name of the target in messages."""


@dataclass(frozen=True, slots=True)
class SparkRows:
    """Parquet files of an epoch's events; see `penstock.io.staging.FileFormat`."""

    suffix: ClassVar[str] = ".parquet"
    images: Images

    def __post_init__(self) -> None:
        if self.images not in get_args(Images):
            raise UsageError(f"images is one of {', '.join(get_args(Images))}, got {self.images!r}.")

    def content(self, blocks: Iterable[RecordBlock]) -> Iterator[bytes]:
        """Yield the whole file in one part.

        Raises:
            UsageError: the events are of several tables, which have no struct in common.
            RowRefusedError: a value that JSON text cannot show; the message names table and column.
            ValueError: a value that its column cannot hold; `CheckRows` lets no such event pass.
        """
        import pyarrow.parquet

        events = [event for block in blocks for event in events_of(block)]
        table = json_rows(events) if self.images == "json" else _struct_rows(events)
        buffer = io.BytesIO()
        # Spark reads microseconds only.
        pyarrow.parquet.write_table(table, buffer, compression="zstd", coerce_timestamps="us")
        yield buffer.getvalue()


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

    from penstock.event.change_rows import IMAGES, METADATA
    from penstock.event.plain_types import event_metadata

    schema = json_schema()
    times = pa.array([event.timestamp // 1000 for event in events], pa.int64())
    columns = {
        "op": pa.array([str(event.op) for event in events], pa.string()),
        "timestamp": times.cast(schema.field("timestamp").type),
        "metadata": pa.array([event_metadata(event) for event in events], METADATA),
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


def _struct_rows(events: Sequence[ChangeEvent]) -> Any:
    from penstock.event.change_rows import change_rows

    # Struct columns are one schema for all rows, so tables cannot be mixed.
    tables = sorted({_name(event.source) for event in events})
    if len(tables) > 1:
        raise UsageError(
            f"images='struct' needs the events of one table, and these are of {', '.join(tables)}: use one "
            "WriteToSpark for each table (FilterTables selects its events), or images='json'"
        )
    schema: TableSchema = reduce(merged_schema, (event.schema for event in events), TableSchema(()))
    return change_rows(events, schema)


def _name(source: Source) -> str:
    return f"{source.schema}.{source.table}" if source.schema else source.table
