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
from typing import Any, ClassVar, get_args

from penstock.errors import UsageError
from penstock.event.model import ChangeEvent, Source, TableSchema
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
