"""Rows as Arrow on their way to a file or a table, in place of encoded events. Needs the extra `arrow`.

A record of a block (`penstock.io.staging.blocks`) is an encoded event, or an Arrow stream with several rows. The first
byte tells them apart: it is the version of an encoded event, and 0xFF in an Arrow stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from penstock.batches import ElementBatch
from penstock.event.change_rows import change_rows, check_images
from penstock.event.coder import decode_event
from penstock.event.model import ChangeEvent, Column, Source, TableSchema
from penstock.io.columnar.block_events import ROWS, schema_of
from penstock.io.columnar.whole_rows import WholeRows, rows_of_events
from penstock.io.staging.blocks import BucketRun, RecordBlock

MIN_ROWS = 64
"""Fewer rows of a batch stay events: an Arrow stream has some kilobytes besides its rows."""

_SOURCE, _WHOLE = b"penstock.source", b"penstock.whole"


class TableRows(NamedTuple):
    """Rows of one table with one version of its columns, in order. `source`: the first row has it.

    `whole`: the columns of their events, if they are whole rows (`penstock.io.columnar.whole_rows`). None: they are
    change rows.
    """

    source: Source
    rows: pa.Table
    whole: TableSchema | None = None

    @property
    def events(self) -> Sequence[ChangeEvent]:
        """The events of whole rows."""
        assert self.whole is not None
        return WholeRows(self.source, (), [(self.whole, self.rows)])


def rows_as_records(rows: TableRows) -> list[bytes]:
    """Return rows as records of a block, one for each row: the first holds all of them, and the others are empty."""
    sink = pa.BufferOutputStream()
    metadata = {_SOURCE: msgspec.msgpack.encode(rows.source)}
    if rows.whole is not None:
        metadata[_WHOLE] = msgspec.msgpack.encode(rows.whole.columns)
    table = rows.rows.replace_schema_metadata(metadata)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return [sink.getvalue().to_pybytes(), *[b""] * (table.num_rows - 1)]


def rows_of_block(block: RecordBlock) -> list[pa.Table]:
    """Return the change rows of a block of one table in order. Neighbours that are events are one Arrow table."""
    tables: list[pa.Table] = []
    for of_rows, neighbours in groupby(_records([block]), is_arrow):
        if of_rows:
            tables += [decode_rows(record).rows for record in neighbours]
        else:
            events = [decode_event(record) for record in neighbours]
            tables.append(change_rows(events, schema_of(events)))
    return tables


def divided(blocks: Iterable[RecordBlock]) -> tuple[list[ChangeEvent], list[TableRows]]:
    """Return the encoded events of blocks, and the change rows in Arrow, each in their order.

    Whole rows, which another mode has staged, become events.
    """
    events: list[ChangeEvent] = []
    rows: list[TableRows] = []
    for record in _records(blocks):
        if not is_arrow(record):
            events.append(decode_event(record))
        elif (found := decode_rows(record)).whole is None:
            rows.append(found)
        else:
            events += found.events
    return events, rows


def _records(blocks: Iterable[RecordBlock]) -> Iterator[bytes]:
    return (record for block in blocks for record in block.contents())


def is_arrow(record: bytes) -> bool:
    """Return whether a record holds rows, and is no encoded event."""
    return record.startswith(ROWS)


def decode_rows(record: bytes) -> TableRows:
    """Return the rows of a record."""
    table = pa.ipc.open_stream(record).read_all()
    metadata = table.schema.metadata
    source = msgspec.msgpack.decode(metadata[_SOURCE], type=Source)
    columns = metadata.get(_WHOLE)
    whole = None if columns is None else _schema(columns)
    return TableRows(source, table.replace_schema_metadata(None), whole)


@lru_cache(maxsize=4096)
def _schema(encoded: bytes) -> TableSchema:
    return TableSchema(msgspec.msgpack.decode(encoded, type=tuple[Column, ...]))


class EventRows:
    """Makes the rows of a batch of events. The events of a table stay in order within a bucket. Picklable.

    `bucket` is a function from an event and its event time, in µs since 1970, to its bucket. `rows_bucket` is one from
    source, columns and event time; with it an earlier step may make the rows without events. None: it cannot be told
    without the event. `whole`: the rows are whole rows, and changes that are none stay events.
    """

    def __init__(
        self,
        bucket: Callable[[ChangeEvent, int], str],
        rows_bucket: Callable[[Source, TableSchema, int], str] | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self._bucket, self.rows_bucket, self.whole = bucket, rows_bucket, whole

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
            rows = self._rows(group.elements) if len(group.elements) >= MIN_ROWS else None
            if rows is None:
                check_images(group.elements, group.elements[0].schema)
                made.elements.extend(group.elements)
                made.times_us.extend(group.times_us)
            else:
                made.elements.append(BucketRun(bucket, group.times_us, rows_as_records(rows)))
                made.times_us.append(min(group.times_us))

    def _rows(self, events: Sequence[ChangeEvent]) -> TableRows | None:
        schema, source = events[0].schema, events[0].source
        if not self.whole:
            return TableRows(source, change_rows(events, schema))
        rows = rows_of_events(events, schema)
        return None if rows is None else TableRows(source, rows, schema)


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
