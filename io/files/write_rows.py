"""`WriteToParquet` and `WriteToAvro`: change events as files with columns, published exactly once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from penstock.event.coder import encode_event
from penstock.event.feed_rows import Layout as RowsLayout
from penstock.event.model import ChangeEvent
from penstock.extras import require_extra
from penstock.io.columnar.avro import AvroRows
from penstock.io.columnar.parquet import ParquetRows
from penstock.io.columnar.write_checked import WriteCheckedRows
from penstock.io.files.layout import Layout
from penstock.io.files.options import AvroSinkOptions, ParquetSinkOptions, RowFileOptions
from penstock.io.staging.format import FileFormat
from penstock.io.staging.preview import Preview, Written
from penstock.io.staging.rolling import RollingPolicy
from penstock.io.staging.store import store_of
from penstock.io.staging.transform import WriteStagedFiles

if TYPE_CHECKING:
    from penstock.io.columnar.row_runs import EventRows


class RowFormat(FileFormat, Protocol):
    """A format of files with rows of events."""

    def rows_of_event(self, event: ChangeEvent, table: str) -> list[Written]:
        """Return the rows of an event as values; see `penstock.io.staging.preview`."""


class _WriteRows(WriteCheckedRows):
    """The base of sinks that write change rows into files."""

    def __init__(
        self,
        target: str,
        format: RowFormat,
        layout: Layout,
        *,
        options: RowFileOptions,
        rows: EventRows | None = None,
        rows_layout: RowsLayout = "events",
    ) -> None:
        self._layout, self._format = layout, format
        policy = RollingPolicy(round(options.roll_seconds * 1e6), options.roll_bytes)
        write = WriteStagedFiles(
            store_of(options.output),
            encode=encode_event,
            bucket=self._layout,
            format=format,
            policy=policy,
            marks_complete=options.mark_complete,
            folders=None if callable(options.table) else self._layout.folders_of,
        )
        super().__init__(target, "Write", write, rows=rows, layout=rows_layout)

    @property
    def preview(self) -> Preview:
        """The rows of one event; see `penstock.io.staging.preview`."""
        return partial(_rows_of_event, self._format, self._layout)

    def display_data(self) -> dict[str, Any]:
        layout = self._layout
        return {**super().display_data(), "partition_by": layout.partition_by, "shards": layout.shards}


def _layout(options: RowFileOptions) -> Layout:
    return Layout(options.table, options.partition_by, options.shards)


def _rows_of_event(format: RowFormat, layout: Layout, event: ChangeEvent) -> list[Written]:
    return format.rows_of_event(event, layout.table_of(event))


class WriteToParquet(ParquetSinkOptions, _WriteRows):
    """Write change events as Parquet files: exactly once, only complete files, in folders that engines read directly.

        events | WriteToParquet("/data/lake")

    creates ``/data/lake/<table>/date=2026-11-21/hour=16/….parquet``. The columns are `op`, `timestamp`, `key`,
    `before`, `after` and `metadata` (`penstock.event.change_rows`). With ``layout="table"`` they are the columns of the
    table and of its change feed (`penstock.event.change_feed`). When the columns of the table change, a new file
    begins. Emits a `PublishedFile` for each file. Consumers may rely on what docs/files.md says.

    Order: rows of a file are in the order in which they arrived. Sort by `metadata.version` (`_commit_version`) for the
    order of a table. Of the two rows of an update `update_preimage` is the first.
    What repeats: nothing on `PySparkRunner`; see `WriteToJsonLines`.
    Watermark: each open file holds the output watermark at its earliest event time until the file is published.
    State: for each table, partition, shard and version of the columns the events since the last roll.

    Raises:
        UsageError: an argument is wrong, or pyarrow is missing (at construction).
    """

    def __post_init__(self) -> None:
        require_extra("parquet", "pyarrow")
        # Imported here, so that the module can be loaded without the extra.
        from penstock.io.columnar.row_runs import EventRows

        layout, format = _layout(self), ParquetRows(self.compression, self.layout)
        rows = EventRows(layout, None if layout.needs_events else layout.bucket_of)
        _WriteRows.__init__(
            self,
            "a Parquet file",
            format,
            layout,
            options=self,
            # A change feed has another number of rows than the batch has events.
            rows=rows if self.layout == "events" else None,
            rows_layout=self.layout,
        )


class WriteToAvro(AvroSinkOptions, _WriteRows):
    """Write change events as Avro object container files: exactly once, only complete files.

        events | WriteToAvro("/data/lake")

    Layout, columns and promises: see `WriteToParquet`. The columns have Avro's logical types. Characters of a
    column's name that Avro does not allow become underscores.

    Order, repeats, watermark and state: see `WriteToParquet`.

    Raises:
        UsageError: an argument is wrong, or fastavro is missing (at construction).
    """

    def __post_init__(self) -> None:
        require_extra("avro", "fastavro")
        _WriteRows.__init__(self, "an Avro file", AvroRows(self.compression), _layout(self), options=self)
