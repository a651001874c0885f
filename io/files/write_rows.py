"""`WriteToParquet` and `WriteToAvro`: change events as files with columns, published exactly once."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from penstock.event.coder import encode_event
from penstock.event.model import ChangeEvent
from penstock.extras import require_extra
from penstock.io.columnar.avro import AvroCompression, AvroRows
from penstock.io.columnar.parquet import ParquetCompression, ParquetRows
from penstock.io.columnar.write_checked import WriteCheckedRows
from penstock.io.files.layout import Layout, Partitions
from penstock.io.staging.format import FileFormat
from penstock.io.staging.preview import Preview, Written
from penstock.io.staging.rolling import RollingPolicy
from penstock.io.staging.store import store_of
from penstock.io.staging.transform import WriteStagedFiles

Table = str | Callable[[ChangeEvent], str] | None


class RowFormat(FileFormat, Protocol):
    """A format of files with rows of events."""

    def rows_of_event(self, event: ChangeEvent, table: str) -> list[Written]:
        """Return the rows of an event as values; see `penstock.io.staging.preview`."""


class _WriteRows(WriteCheckedRows):
    """The base of sinks that write change rows into files."""

    def __init__(
        self,
        target: str,
        output: str | os.PathLike[str],
        format: RowFormat,
        layout: Layout,
        roll_seconds: float,
        roll_bytes: int,
    ) -> None:
        self._layout, self._format = layout, format
        policy = RollingPolicy(round(roll_seconds * 1e6), roll_bytes)
        write = WriteStagedFiles(
            store_of(output), encode=encode_event, bucket=layout, format=format, policy=policy
        )
        super().__init__(target, "Write", write)

    @property
    def preview(self) -> Preview:
        """The rows of one event; see `penstock.io.staging.preview`."""
        return partial(_rows_of_event, self._format, self._layout)

    def display_data(self) -> dict[str, Any]:
        layout = self._layout
        return {**super().display_data(), "partition_by": layout.partition_by, "shards": layout.shards}


def _rows_of_event(format: RowFormat, layout: Layout, event: ChangeEvent) -> list[Written]:
    return format.rows_of_event(event, layout.table_of(event))


class WriteToParquet(_WriteRows):
    """Write change events as Parquet files: exactly once, only complete files, in folders that engines read directly.

        events | WriteToParquet("/data/lake")

    creates ``/data/lake/<table>/date=2026-11-21/hour=16/….parquet``. The columns are `op`, `timestamp`, `key`,
    `before`, `after` and `metadata` (`penstock.event.change_rows`). When the columns of the table change, a new file
    begins. Emits a `PublishedFile` for each file. Consumers may rely on what docs/files.md says.

    Order: rows of a file are in the order in which they arrived. Sort by `metadata.version` for the order of a table.
    What repeats: nothing on `PySparkRunner`; see `WriteToJsonLines`.
    Watermark: each open file holds the output watermark at its earliest event time until the file is published.
    State: for each table, partition, shard and version of the columns the events since the last roll.

    Args:
        output: a local folder or the URL of an object store. On a cluster all workers and the driver must see it.
        table: the folder of an event: a name, or a function of the event. None: the name of the event's table.
        partition_by: ``hour``, ``day`` or ``none``: folders by event time, in UTC.
        shards: how many files of a table and partition may be open at the same time.
        compression: ``zstd``, ``snappy``, ``gzip`` or ``none``.
        roll_seconds: an open file is published this long after its first event arrived, in seconds of processing
            time.
        roll_bytes: an open file whose events have this many bytes, not compressed, is published at once.

    Raises:
        UsageError: an argument is wrong, or pyarrow is missing (at construction).
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        *,
        table: Table = None,
        partition_by: Partitions = "hour",
        shards: int = 1,
        compression: ParquetCompression = "zstd",
        roll_seconds: float = 60,
        roll_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        require_extra("parquet", "pyarrow")
        layout = Layout(table, partition_by, shards)
        super().__init__("a Parquet file", output, ParquetRows(compression), layout, roll_seconds, roll_bytes)


class WriteToAvro(_WriteRows):
    """Write change events as Avro object container files: exactly once, only complete files.

        events | WriteToAvro("/data/lake")

    Layout, columns and promises: see `WriteToParquet`. The columns have Avro's logical types. Characters of a
    column's name that Avro does not allow become underscores.

    Order, repeats, watermark and state: see `WriteToParquet`.

    Args:
        output: a local folder or the URL of an object store. On a cluster all workers and the driver must see it.
        table: the folder of an event: a name, or a function of the event. None: the name of the event's table.
        partition_by: ``hour``, ``day`` or ``none``: folders by event time, in UTC.
        shards: how many files of a table and partition may be open at the same time.
        compression: ``deflate`` or ``none``.
        roll_seconds: an open file is published this long after its first event arrived, in seconds of processing
            time.
        roll_bytes: an open file whose events have this many bytes, not compressed, is published at once.

    Raises:
        UsageError: an argument is wrong, or fastavro is missing (at construction).
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        *,
        table: Table = None,
        partition_by: Partitions = "hour",
        shards: int = 1,
        compression: AvroCompression = "deflate",
        roll_seconds: float = 60,
        roll_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        require_extra("avro", "fastavro")
        layout = Layout(table, partition_by, shards)
        super().__init__("an Avro file", output, AvroRows(compression), layout, roll_seconds, roll_bytes)
