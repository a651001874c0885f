"""Change rows as Arrow on their way to a file, in place of encoded events. Needs the extra `arrow`.

A record of a block (`penstock.io.staging.blocks`) is an encoded event, or an Arrow stream with several rows. The first
byte tells them apart: it is the version of an encoded event, and 0xFF in an Arrow stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from penstock.batches import ElementBatch
from penstock.event.change_rows import change_rows, check_images
from penstock.event.coder import decode_event
from penstock.event.model import ChangeEvent
from penstock.io.columnar.block_events import schema_of
from penstock.io.staging.blocks import BucketRun, RecordBlock

MIN_ROWS = 64
"""Fewer rows of a batch stay events: an Arrow stream has some kilobytes besides its rows."""

_ARROW = b"\xff"


def rows_as_records(rows: pa.Table) -> list[bytes]:
    """Return rows as records of a block, one for each row: the first holds all of them, and the others are empty."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return [sink.getvalue().to_pybytes(), *[b""] * (rows.num_rows - 1)]


def rows_of_block(block: RecordBlock) -> list[pa.Table]:
    """Return the change rows of a block in order. Neighbours that are encoded events are one table."""
    records = (record for _, record in block.records() if record)
    tables: list[pa.Table] = []
    for is_arrow, neighbours in groupby(records, lambda record: record.startswith(_ARROW)):
        if is_arrow:
            tables += [pa.ipc.open_stream(record).read_all() for record in neighbours]
        else:
            events = [decode_event(record) for record in neighbours]
            tables.append(change_rows(events, schema_of(events)))
    return tables


class EventRows:
    """Makes the rows of a batch of events. The events of a bucket stay in order. Picklable.

    `bucket` is a function from an event and its event time, in µs since 1970, to its bucket. All events of a bucket
    have columns of the same names and types.
    """

    def __init__(self, bucket: Callable[[ChangeEvent, int], str]) -> None:
        self._bucket = bucket

    def __call__(self, batch: ElementBatch) -> ElementBatch:
        """Return `BucketRun`s, and the events of a bucket that has fewer than `MIN_ROWS`. Runs in `batch` stay.

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
        buckets: dict[str, ElementBatch] = {}
        for event, time_us in zip(events, times_us, strict=True):
            bucket = buckets.setdefault(self._bucket(event, time_us), ElementBatch([], []))
            bucket.elements.append(event)
            bucket.times_us.append(time_us)
        for name, (own, own_times_us) in buckets.items():
            schema = schema_of(own)
            if len(own) < MIN_ROWS:
                check_images(own, schema)
                made.elements.extend(own)
                made.times_us.extend(own_times_us)
            else:
                made.elements.append(BucketRun(name, own_times_us, rows_as_records(change_rows(own, schema))))
                made.times_us.append(min(own_times_us))


def _is_run(pair: tuple[Any, int]) -> bool:
    return type(pair[0]) is BucketRun


def runs_of_rows(
    rows: pa.Table, times_us: Sequence[int], bucket: Callable[[int], str]
) -> Iterator[BucketRun]:
    """Yield rows as runs; `bucket` is a function from an event time to the bucket, and nearly always there is one."""
    # Times of neighbours rise, or fall by so little that a bucket of an hour has few runs more.
    if bucket(min(times_us)) == (name := bucket(max(times_us))):
        yield BucketRun(name, times_us, rows_as_records(rows))
        return
    start = 0
    for name, neighbours in groupby(times_us, bucket):
        end = start + len(list(neighbours))
        yield BucketRun(name, times_us[start:end], rows_as_records(rows.slice(start, end - start)))
        start = end
