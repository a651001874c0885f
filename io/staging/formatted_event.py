"""`FormattedEvent`: a change event as the records of its format, on its way to a queue. Pure.

`formatted_run` has the form in which it is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from penstock.event.model import ChangeEvent, Source
from penstock.event.replica import encode_version
from penstock.io.staging.format import Format, Formatted

SCHEMA_HEADER = "penstock.schema"
"""Header of the record of a SCHEMA event, which belongs to all rows of its table."""


class QueueRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A record of a format; see `penstock.transforms.formats.FormattedRecord`.

    `timestamp_ms`: of the event, since 1970, from 0 on.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...]


class FormattedEvent(msgspec.Struct, frozen=True, gc=False):
    """The records of one event.

    - `op`, `id`: of the event. `version`: as text (`penstock.event.replica.encode_version`).
    - `of_row`: the event has the key of a row.
    - `reason`: why the format cannot express the event, which then has no records; "" if it can.
    """

    source: Source
    op: str
    id: str
    version: str
    of_row: bool
    records: tuple[QueueRecord, ...]
    reason: str
    make_event: Callable[[], ChangeEvent]
    """Returns the event itself, for an error output."""


def format_event(event: ChangeEvent, format: Format) -> FormattedEvent:
    """Return the records of an event, or the reason why there are none."""
    reason = ""
    records: tuple[QueueRecord, ...] = ()
    try:
        records = tuple(QueueRecord(*each) for each in queue_records(format(event)))
    except ValueError as error:
        reason = str(error)
    version, of_row = encode_version(event.version), event.key is not None
    return FormattedEvent(
        event.source, str(event.op), event.id, version, of_row, records, reason, lambda: event
    )


def queue_records(records: Iterable[Formatted]) -> list[tuple[Any, ...]]:
    """Return the fields of the `QueueRecord`s for the records of a format."""
    # Kafka takes no time before 1970; -1 would mean the time of the client.
    return [
        (each.topic, each.key, each.value, max(0, each.timestamp // 1_000_000), each.headers)
        for each in records
    ]
