"""Converts events to messages of Pub/Sub. Pure."""

from __future__ import annotations

from base64 import b64encode
from hashlib import blake2b

import msgspec

from penstock.event.model import ChangeEvent
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.format import Format
from penstock.io.staging.formatted_event import FormattedEvent, QueueRecord, format_event

EVENT_ID, VERSION = "penstock_id", "penstock_version"
"""Attributes of every message: the id of its event with the number of the message, and the version of the event."""

COMPLETE_UNTIL = "penstock_complete_until"
"""Attribute of a message that is a mark: the time until which the topics are complete, as RFC 3339."""

MAX_DATA, MAX_KEY, MAX_ATTRIBUTE, MAX_ATTRIBUTES = 10_000_000, 1024, 1024, 100
"""Limits of Pub/Sub in bytes, and the number of attributes. Source: Pub/Sub documentation, "Quotas and limits"."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to publish. `ordering_key` is empty if it has none."""

    topic: str
    data: bytes
    ordering_key: str
    attributes: dict[str, str]


def messages_of(
    event: ChangeEvent | FormattedEvent, format: Format, topic: str, *, ordering: bool
) -> list[Message]:
    """Return the messages of an event. `topic` is a name with ``{table}``, ``{schema}`` and ``{database}``.

    A tombstone (a record without a value) has no data. It has the attribute ``penstock_tombstone``, because Pub/Sub
    does not tell an empty message from none.

    Raises:
        ValueError: the format cannot express the event, or a message is beyond the limits of Pub/Sub.
    """
    formatted = event if isinstance(event, FormattedEvent) else format_event(event, format)
    if formatted.reason:
        raise ValueError(formatted.reason)
    source, messages = formatted.source, []
    name = topic.format(table=source.table, schema=source.schema, database=source.database)
    for number, record in enumerate(formatted.records):
        attributes = {key: _text(value) for key, value in record.headers}
        attributes |= {
            EVENT_ID: f"{formatted.id}/{number}",
            VERSION: formatted.version,
            "penstock_table": record.topic,
        }
        if record.value is None:
            attributes["penstock_tombstone"] = "true"
        message = Message(
            name,
            record.value or b"",
            _ordering_key(record, of_row=formatted.of_row) if ordering else "",
            attributes,
        )
        _check(message)
        messages.append(message)
    return messages


def complete_message(mark: Mark, topic: str) -> Message:
    """Return a mark as a message. It has no ordering key: the number of its record says which one is newer."""
    attributes = {EVENT_ID: f"{mark.sink}/{mark.job}/{mark.record}", COMPLETE_UNTIL: mark.complete_until}
    return Message(topic, mark.encoded, "", attributes)


def _ordering_key(record: QueueRecord, *, of_row: bool) -> str:
    """Return a text of fixed length for the table and key: keys of rows may be longer than the limit."""
    # Messages that belong to no row (TRUNCATE, messages, BEGIN and END) are ordered among themselves, by their topic.
    key = record.key or b"" if of_row else b""
    # A digest: keys of rows may be longer than 1,024 bytes, and may be binary.
    return blake2b(record.topic.encode() + b"\0" + key, digest_size=16).hexdigest()


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()


def _check(message: Message) -> None:
    # 100,000 bytes are left for attributes and the rest of the request.
    if len(message.data) > MAX_DATA - 100_000:
        raise ValueError(f"the message has {len(message.data)} bytes, and Pub/Sub takes {MAX_DATA}")
    if len(message.attributes) > MAX_ATTRIBUTES:
        raise ValueError(
            f"the message has {len(message.attributes)} attributes, and Pub/Sub takes {MAX_ATTRIBUTES}"
        )
    for name, value in message.attributes.items():
        if len(value.encode()) > MAX_ATTRIBUTE:
            raise ValueError(f"attribute {name} has more than {MAX_ATTRIBUTE} bytes, the limit of Pub/Sub")
