"""The options of the sinks that write files, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import field
from typing import Annotated, Any

from penstock.event.feed_rows import Layout
from penstock.event.model import ChangeEvent
from penstock.io.columnar.options import AvroCompression, ParquetCompression
from penstock.io.files.json_lines import LineCompression
from penstock.io.files.layout import Partitions
from penstock.io.files.names import Key
from penstock.options import Accepts, Options, options


@options
class OutputOptions(Options):
    """Where files are written."""

    output: str | os.PathLike[str] = field(kw_only=False)
    """Folder to write to: a path, or a URL of an object store (s3://, gs:// or az://). It is created if it does not
    exist. On a cluster all workers and the driver must see it under this path."""
    shards: int = 1
    """Number of files that are written in parallel for each table and hour. All changes of one key go to the same
    shard."""
    mark_complete: bool = False
    """Whether the output says until which commit time it is complete, in files below ``_complete`` that
    `penstock.io.files.complete_until` reads."""


@options
class LineOptions(OutputOptions):
    """How files of lines are written."""

    roll_seconds: float = 10
    """Time, in seconds of processing time, for which a file collects lines before it is published; 0 publishes in every
    epoch."""


@options
class FileOptions(LineOptions):
    """The options of the sink `files` of pipelines. `WriteToJsonLines` has them without the limits."""

    output: Annotated[
        str | os.PathLike[str], Accepts(pattern=".+", words="a path or a URL", example="/data/changes")
    ] = field(kw_only=False)
    shards: Annotated[int, Accepts(minimum=1, maximum=1024)] = 1
    roll_seconds: Annotated[float, Accepts(minimum=0)] = 10


def unchanged(element: Any) -> Any:
    """Return the element as it is."""
    return element


@options
class JsonLinesSinkOptions(LineOptions):
    """The options of `WriteToJsonLines`."""

    table: str | Callable[[Any], str]
    """Name of the table, or a function from an element to it. Any text: names are percent-encoded."""
    key: Callable[[Any], Key] | None = None
    """Function from an element to its order key: str, bytes, int, or a tuple of them. It selects the shard. Required if
    there is more than one shard, unless `shard` is given."""
    shard: Callable[[Any], int] | None = None
    """Function from an element to its shard, 0 to `shards` - 1, in place of `key`; for elements that an earlier step
    has divided."""
    format: Callable[[Any], Any] = unchanged
    """Function from an element to a value that JSON can express, or to a line as str or bytes."""
    roll_bytes: int = 64 * 1024 * 1024
    """Size, in bytes, at which an open file is published at once; with `in_event_time_order` at the end of the
    epoch."""
    in_event_time_order: bool = False
    """Whether a roll writes only the lines that the watermark has passed, by event time, and the others wait. Then
    names and lines are in event-time order even if one reader is far ahead of another. The cost is the delay of the
    watermark: if the watermark of a source does not move, nothing is published. Otherwise lines keep the order in which
    they arrive, which is the commit order of each key if the source promises that. Only `PySparkRunner` tells a sink
    the watermark; on other runners each file is in order, but not one file after another."""
    compression: LineCompression = "none"
    """Compression of files. With gzip the names end with ``.jsonl.gz``."""


@options
class RowFileOptions(OutputOptions):
    """The options of sinks whose files have rows of events."""

    output: Annotated[str | os.PathLike[str], Accepts(example="/data/lake")] = field(kw_only=False)
    table: str | Callable[[ChangeEvent], str] | None = None
    """Folder of an event: a name, or a function of the event. Default: the name of the event's table."""
    partition_by: Partitions = "hour"
    """Folders by event time, in UTC, below the folder of the table."""
    roll_seconds: float = 60
    """Time, in seconds of processing time, for which a file collects events before it is published; 0 publishes in
    every epoch."""
    roll_bytes: int = 64 * 1024 * 1024
    """Size of the events of an open file, in bytes and not compressed, at which it is published at once."""


@options
class ParquetSinkOptions(RowFileOptions):
    """The options of `WriteToParquet`."""

    layout: Layout = "events"
    """Columns of files. With events, `op`, `timestamp`, `key`, `before`, `after`, `metadata`. With table, the columns
    of the table and `_change_type`, `_commit_version`, `_commit_timestamp`, `_not_sent`; an update has a row for the
    old values, if the source sends them, and one for the new ones."""
    compression: ParquetCompression = "zstd"
    """Compression of files."""


@options
class AvroSinkOptions(RowFileOptions):
    """The options of `WriteToAvro`."""

    compression: AvroCompression = "deflate"
    """Compression of files."""
