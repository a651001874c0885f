"""The events of a block whose records are encoded events, and their columns. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.event.coder import decode_event
from penstock.event.model import ChangeEvent, TableSchema
from penstock.event.schema_changes import merged_schema
from penstock.io.staging.blocks import RecordBlock

ROWS = b"\xff"
"""The first byte of a staged record with rows in Arrow, which no version of an encoded event is."""


def events_of(block: RecordBlock) -> Iterator[ChangeEvent]:
    """Yield the events of a block."""
    return (decode_event(record) for _, record in block.records())


def schema_of(events: Iterable[ChangeEvent]) -> TableSchema:
    """Return the columns of all events."""
    schema = last = TableSchema(())
    for event in events:
        # Compared by identity: events of one table share the object, and comparing columns would cost more than the
        # merge.
        if event.schema is not last:
            last = event.schema
            schema = merged_schema(schema, last)
    return schema
