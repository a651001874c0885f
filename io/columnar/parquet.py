"""Parquet files of change rows, or of the rows of a change feed. Needs the extra `parquet`."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from penstock.errors import UsageError
from penstock.event.feed_rows import Layout
from penstock.event.model import ChangeEvent
from penstock.io.columnar.block_events import events_of, schema_of
from penstock.io.columnar.options import ParquetCompression
from penstock.io.staging.arguments import check_choice
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.preview import Written


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """Files of the rows of one table; see `penstock.io.staging.FileFormat`. `layout`: see `ParquetSinkOptions`.

    A file has one row group for each block of records. If the columns changed within the file, it has the columns of
    all its rows, with the newest types.
    """

    suffix: ClassVar[str] = ".parquet"
    compression: ParquetCompression = "zstd"
    layout: Layout = "events"

    def __post_init__(self) -> None:
        if self.compression not in get_args(ParquetCompression):
            allowed = ", ".join(get_args(ParquetCompression))
            raise UsageError(f"compression of Parquet files is one of {allowed}, got {self.compression!r}.")
        check_choice("layout", self.layout, get_args(Layout))

    def content(self, blocks: Iterable[RecordBlock]) -> Iterator[bytes]:
        """Yield the whole file in one part: its footer, which comes last, describes all of it.

        Raises:
            UsageError: an earlier start has collected rows of the other layout.
        """
        yield self._feed(list(blocks)) if self.layout == "table" else self._change_rows(list(blocks))

    def _feed(self, blocks: Sequence[RecordBlock]) -> bytes:
        from penstock.event.change_feed import change_feed, change_feed_schema
        from penstock.io.columnar.row_runs import divided

        # One row group for each block, as in files of change rows.
        events, rows = zip(*(divided([block]) for block in blocks), strict=True)
        if any(rows):
            raise UsageError(
                "the checkpoint holds rows of Parquet files that were collected with layout=events: start the pipeline "
                "once with it and drain it, which writes them, and change the layout then"
            )
        schema = schema_of(event for each in events for event in each)
        groups = [change_feed(each, schema) for each in events]
        return parquet_file(groups, change_feed_schema(schema, "the table"), self.compression)

    def _change_rows(self, kept: Sequence[RecordBlock]) -> bytes:
        import pyarrow

        from penstock.event.change_rows import change_row_schema, change_rows
        from penstock.io.columnar.row_runs import rows_of_block

        tables = [rows_of_block(block) for block in kept]
        # Parquet needs the whole schema before the first row group. Nearly always all blocks have the same.
        shapes = {table.schema for each in tables for table in each}
        if len(shapes) == 1:
            # One row group per block bounds the memory that a reader needs.
            groups = [pyarrow.concat_tables(each) for each in tables if each]
            return parquet_file(groups, shapes.pop(), self.compression)
        # Only events can have new columns in one file: rows in Arrow are of a bucket for one version of the columns.
        schema = schema_of(event for block in kept for event in events_of(block))
        groups = [change_rows(list(events_of(block)), schema) for block in kept]
        return parquet_file(groups, change_row_schema(schema), self.compression)

    def rows_of_event(self, event: ChangeEvent, table: str) -> list[Written]:
        """Return the rows of an event; see `penstock.io.staging.preview`."""
        from penstock.io.columnar.preview import rows_of_event

        return rows_of_event(event, table, "log", self.layout)


def parquet_file(
    groups: Iterable[Any],
    schema: Any,
    compression: str = "zstd",
    row_group_size: int | None = None,
    **more: Any,
) -> bytes:
    """Return a Parquet file with one row group, or more, for each Arrow table of `groups`, all with `schema`.

    `row_group_size`: the most rows of a row group; None: as pyarrow chooses. `more` are options of pyarrow's
    `ParquetWriter`.
    """
    import pyarrow.parquet

    buffer = io.BytesIO()
    # Microseconds, because Spark refuses nanoseconds, and BigQuery rounds them.
    options: dict[str, Any] = {"compression": compression, "coerce_timestamps": "us", **more}
    with pyarrow.parquet.ParquetWriter(buffer, schema, **options) as writer:
        for group in groups:
            writer.write_table(group, row_group_size)
    return buffer.getvalue()
