"""The rows that Penstock's transforms exchange in Beam YAML, which knows elements with schemas only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from apache_beam import coders

from penstock.event import ChangeEvent, Image, TableSchema
from penstock.event.coder import decode_event, encode_event
from penstock.transforms.dead_letters import DeadLetter
from penstock.transforms.formats.debezium_types import Convert, TypeModes, mapping
from penstock.transforms.formats.formatted import FormattedRecord


class ChangeRow(NamedTuple):
    """An event. `key`, `before` and `after` are JSON objects of columns; `timestamp` is in nanoseconds since 1970.

    `event` holds the whole event, from which Penstock's transforms work: other fields can be read but not changed.
    """

    system: str
    database: str
    schema: str
    table: str
    op: str
    timestamp: int
    key: str | None
    before: str | None
    after: str | None
    unavailable: Sequence[str]
    transaction: str
    event: bytes


class RecordRow(NamedTuple):
    """A record in a format. A `value` of None is a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Mapping[str, bytes]


class ErrorRow(NamedTuple):
    """An element that a transform could not process; see `DeadLetter`. `data` holds the values of the row."""

    reason: str
    table: str
    element_type: str
    data: bytes
    attempt: int


# Beam infers a pickling coder for a NamedTuple; rows of YAML need their schema.
for _row in (ChangeRow, RecordRow, ErrorRow):
    coders.registry.register_coder(_row, coders.RowCoder)


def change_row(event: ChangeEvent) -> ChangeRow:
    """Return the row of an event."""
    source, show = event.source, _image_json(event.schema)
    return ChangeRow(
        source.system,
        source.database,
        source.schema,
        source.table,
        str(event.op),
        event.timestamp,
        show(event.key),
        show(event.before),
        show(event.after),
        list(event.unavailable),
        event.version.transaction,
        encode_event(event),
    )


def event_of(row: Any) -> ChangeEvent:
    """Return the event of a row.

    Raises:
        ValueError: the row has no event.
    """
    # Rows may come from the user's own transforms, which know no event.
    data = getattr(row, "event", None)
    if not isinstance(data, bytes):
        raise ValueError(
            "the row has no field `event`: use Penstock's transforms before those that change fields"
        )
    return decode_event(data)


def record_row(record: FormattedRecord) -> RecordRow:
    """Return the row of a formatted record."""
    return RecordRow(record.topic, record.key, record.value, record.timestamp, dict(record.headers))


def error_row(letter: DeadLetter) -> ErrorRow:
    """Return the row of a dead letter."""
    table = letter.source.table if letter.source else ""
    return ErrorRow(letter.reason, table, letter.element_type, letter.data, letter.attempt)


# JSON has no bytes and no decimals, and a text keeps all digits.
_AS_TEXT = TypeModes(
    decimal_handling_mode="string",
    time_precision_mode="isostring",
    binary_handling_mode="base64",
    interval_handling_mode="string",
)


@lru_cache(maxsize=1024)
def _image_json(schema: TableSchema) -> Callable[[Image | None], str | None]:
    converters: dict[str, Convert] = {
        column.name: convert for column in schema if (convert := mapping(column.type, _AS_TEXT).convert)
    }

    def show(image: Image | None) -> str | None:
        if image is None:
            return None
        shown = {
            name: converters[name](value) if value is not None and name in converters else value
            for name, value in image.items()
        }
        return msgspec.json.encode(shown).decode()

    return show
