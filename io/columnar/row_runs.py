"""Change rows as Arrow on their way to a file, in place of encoded events. Needs the extra `arrow`.

A record of a block (`penstock.io.staging.blocks`) is an encoded event, or an Arrow stream with several rows. The first
byte tells them apart: it is the version of an encoded event, and 0xFF in an Arrow stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from penstock.batches import ElementBatch
from penstock.event.change_rows import change_rows, check_images
from penstock.event.coder import decode_event
from penstock.event.model import ChangeEvent, Source, TableSchema
from penstock.io.columnar.block_events import schema_of
from penstock.io.staging.blocks import BucketRun, RecordBlock

MIN_ROWS = 64
"""Fewer rows of a batch stay events: an Arrow stream has some kilobytes besides its rows."""

_ARROW = b"\xff"
_SOURCE = b"penstock.source"


class TableRows(NamedTuple):
    """Change rows of one table with one version of its columns, in order. `source`: the first row has it."""

    source: Source
    rows: pa.Table


def rows_as_records(rows: TableRows) -> list[bytes]:
    """Return rows as records of a block, one for each row: the first holds all of them, and the others are empty."""
    sink = pa.BufferOutputStream()
    table = rows.rows.replace_schema_metadata({_SOURCE: msgspec.msgpack.encode(rows.source)})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return [sink.getvalue().to_pybytes(), *[b""] * (table.num_rows - 1)]


def rows_of_block(block: RecordBlock) -> list[pa.Table]:
    """Return the change rows of a block of one table in order. Neighbours that are events are one Arrow table."""
    tables: list[pa.Table] = []
    for is_arrow, neighbours in groupby(_records([block]), _is_arrow):
        if is_arrow:
            tables += [_decode_rows(record).rows for record in neighbours]
        else:
            events = [decode_event(record) for record in neighbours]
            tables.append(change_rows(events, schema_of(events)))
    return tables


def divided(blocks: Iterable[RecordBlock]) -> tuple[list[ChangeEvent], list[TableRows]]:
    """Return the encoded events of blocks, and the rows in Arrow, each in their order."""
    events: list[ChangeEvent] = []
    rows: list[TableRows] = []
    for record in _records(blocks):
        if _is_arrow(record):
            rows.append(_decode_rows(record))
        else:
            events.append(decode_event(record))
    return events, rows


def _records(blocks: Iterable[RecordBlock]) -> Iterator[bytes]:
    return (record for block in blocks for _, record in block.records() if record)


def _is_arrow(record: bytes) -> bool:
    return record.startswith(_ARROW)


def _decode_rows(record: bytes) -> TableRows:
    table = pa.ipc.open_stream(record).read_all()
    source = msgspec.msgpack.decode(table.schema.metadata[_SOURCE], type=Source)
    return TableRows(source, table.replace_schema_metadata(None))


class EventRows:
    """Makes the rows of a batch of events. The events of a table stay in order within a bucket. Picklable.

    `bucket` is a function from an event and its event time, in µs since 1970, to its bucket. `rows_bucket` is one from
    source, columns and event time; with it an earlier step may make the rows without events. None: it cannot be told
    without the event.
    """

    def __init__(
        self,
        bucket: Callable[[ChangeEvent, int], str],
        rows_bucket: Callable[[Source, TableSchema, int], str] | None = None,
    ) -> None:
        self._bucket, self.rows_bucket = bucket, rows_bucket

    def __call__(self, batch: ElementBatch) -> ElementBatch:
        """Return `BucketRun`s, and the events of which there are fewer than `MIN_ROWS`. Runs in `batch` stay.

        Raises:
            UnwritableError: a value that its column cannot hold; the message names the column.
        """
        made = ElementBatch([], [])
        pairs = zip(batch.elements, batch.times_us, strict=True)
        neighbours = groupby(pairs, _is_run)
        for is_run, some in neighbours:
            elements, times_us = zip(*some, strict=True)
            if is_run:
                made.elements.extend(elements)
                made.times_us.extend(times_us)
            else:
                self._add_rows(made, elements, times_us)
        return made

    def _add_rows(self, made: ElementBatch, events: Sequence[ChangeEvent], times_us: Sequence[int]) -> None:
        groups: list[tuple[str, ElementBatch]] = []
        last: dict[tuple[str, int], ElementBatch] = {}
        for event, time_us in zip(events, times_us, strict=True):
            # Events of one table share their source and schema. To compare these would cost more than the rows.
            key = self._bucket(event, time_us), id(event.source)
            group = last.get(key)
            if group is None or group.elements[-1].schema is not event.schema:
                group = last[key] = ElementBatch([], [])
                groups.append((key[0], group))
            group.elements.append(event)
            group.times_us.append(time_us)
        for bucket, group in groups:
            schema, source = group.elements[0].schema, group.elements[0].source
            if len(group.elements) < MIN_ROWS:
                check_images(group.elements, schema)
                made.elements.extend(group.elements)
                made.times_us.extend(group.times_us)
            else:
                records = rows_as_records(TableRows(source, change_rows(group.elements, schema)))
                made.elements.append(BucketRun(bucket, group.times_us, records))
                made.times_us.append(min(group.times_us))


def _is_run(pair: tuple[Any, int]) -> bool:
    return type(pair[0]) is BucketRun


def runs_of_rows(
    rows: TableRows, times_us: Sequence[int], bucket: Callable[[int], str]
) -> Iterator[BucketRun]:
    """Yield rows as runs; `bucket` is a function from an event time to the bucket, and nearly always there is one."""
    # Times of neighbours rise, or fall by so little that a bucket of an hour has few runs more.
    if bucket(min(times_us)) == (name := bucket(max(times_us))):
        yield BucketRun(name, times_us, rows_as_records(rows))
        return
    start = 0
    for name, neighbours in groupby(times_us, bucket):
        end = start + len(list(neighbours))
        part = TableRows(rows.source, rows.rows.slice(start, end - start))
        yield BucketRun(name, times_us[start:end], rows_as_records(part))
        start = end
