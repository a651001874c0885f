"""The layout of the DataFrame that `WriteToSpark` makes, and of the staged files behind it. Needs the extra `parquet`.

| `images` | `key`, `before`, `after` |
|---|---|
| json | JSON text (`penstock.event.plain_json`): one layout for all tables, which never changes |
| struct | struct of the columns, for the events of one table; its fields are the columns of the epoch's events |

With the layout *table* the rows are the change feed of one table (`penstock.event.change_feed`).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, get_args

from penstock.errors import UsageError
from penstock.event.feed_rows import Layout
from penstock.event.model import ChangeEvent, Op, Source, TableSchema
from penstock.event.schema_changes import merged_schema
from penstock.io.columnar.block_events import events_of
from penstock.io.spark.json_rows import json_rows
from penstock.io.spark.options import Images
from penstock.io.staging.blocks import RecordBlock


@dataclass(frozen=True, slots=True)
class SparkRows:
    """Parquet files of an epoch's events; see `penstock.io.staging.FileFormat`."""

    suffix: ClassVar[str] = ".parquet"
    images: Images
    layout: Layout = "events"

    def __post_init__(self) -> None:
        for name, value, known in (("images", self.images, Images), ("layout", self.layout, Layout)):
            if value not in get_args(known):
                raise UsageError(f"{name} is one of {', '.join(get_args(known))}, got {value!r}.")
        if self.layout == "table" and self.images != "json":
            raise UsageError("layout='table' has no images: leave images out")

    def content(self, blocks: Iterable[RecordBlock]) -> Iterator[bytes]:
        """Yield the whole file in one part.

        Raises:
            UsageError: the events are of several tables, which have no columns in common, or the table has a column
                with a name of the change feed.
            RowRefusedError: a value that JSON text cannot show; the message names table and column.
            ValueError: a value that its column cannot hold; `CheckRows` lets no such event pass.
        """
        import pyarrow.parquet

        events = [event for block in blocks for event in events_of(block)]
        table = self._rows(events)
        buffer = io.BytesIO()
        # Spark reads microseconds only.
        pyarrow.parquet.write_table(table, buffer, compression="zstd", coerce_timestamps="us")
        yield buffer.getvalue()

    def _rows(self, events: Sequence[ChangeEvent]) -> Any:
        from penstock.event.change_feed import change_feed, change_feed_schema
        from penstock.event.change_rows import change_rows

        if self.layout == "table":
            # A message of an application belongs to no table.
            events = [event for event in events if event.op is not Op.MESSAGE]
            schema = _schema_of_one_table(events, "layout='table'", "layout='events'")
            change_feed_schema(schema, "the table")
            return change_feed(events, schema)
        if self.images == "struct":
            return change_rows(events, _schema_of_one_table(events, "images='struct'", "images='json'"))
        return json_rows(events)


def _schema_of_one_table(events: Sequence[ChangeEvent], option: str, other: str) -> TableSchema:
    # Columns are one schema for all rows, so tables cannot be mixed.
    tables = sorted({_name(event.source) for event in events})
    if len(tables) > 1:
        raise UsageError(
            f"{option} needs the events of one table, and these are of {', '.join(tables)}: use one "
            f"WriteToSpark for each table (FilterTables selects its events), or {other}"
        )
    return reduce(merged_schema, (event.schema for event in events), TableSchema(()))


def _name(source: Source) -> str:
    return f"{source.schema}.{source.table}" if source.schema else source.table
