"""`FormattedRecord`: an event in an output format, ready for a file, a queue or a topic. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from penstock.event import ChangeEvent, Version
from penstock.io.staging.formatted_event import SCHEMA_HEADER

__all__ = ["Encoding", "Format", "FormattedRecord", "Headers", "key_encoding", "value_encoding"]

Headers = tuple[tuple[str, bytes], ...]


class FormattedRecord(msgspec.Struct, frozen=True, gc=False):
    """One record in a format.

    `topic` is the format's own name for the table, such as ``srv.inventory.customers``. `key` and `value` are
    encoded; a key of None means that the record belongs to no row, a value of None is a tombstone. `version` orders
    the records of one source; `timestamp` is the event's, in nanoseconds since the epoch.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int
    version: Version
    headers: Headers = ()


SCHEMA_HEADERS: Headers = ((SCHEMA_HEADER, b"true"),)
"""Headers of the record of a SCHEMA event, which has no key. A queue with partitions sends it to each of them."""

Encoding = Literal["json", "text", "binary"]
"""What the bytes of a key or a value are; text: UTF-8, or any bytes that the source has as a key."""

Format = Callable[[ChangeEvent], Iterable[FormattedRecord]]


def key_encoding(format: Format) -> Encoding:
    """Return what the keys of a format are. A format whose keys are no JSON has the attribute `key_encoding`."""
    encoding: Encoding = getattr(format, "key_encoding", "json")
    return encoding


def value_encoding(format: Format) -> Encoding:
    """Return what the values of a format are. A format whose values are no JSON has the attribute `value_encoding`."""
    encoding: Encoding = getattr(format, "value_encoding", "json")
    return encoding
