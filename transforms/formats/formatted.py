"""`FormattedRecord`: what a format makes of an event, ready for a file, a queue or a topic; and `FormatEvents`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from penstock.event import ChangeEvent, Version
from penstock.transforms.element_transform import ElementTransform

__all__ = ["Format", "FormatEvents", "FormattedRecord", "Headers"]

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


Format = Callable[[ChangeEvent], Iterable[FormattedRecord]]


class FormatEvents(ElementTransform):
    """Turns events into `FormattedRecord`s, in the order of their events.

        records = events | FormatEvents(DebeziumFormat("shop"))

    An event that the format cannot express raises a ValueError that names the reason and shows no value. With
    `with_exception_handling` such events go to a second output.
    """

    def __init__(self, format: Format) -> None:
        super().__init__(format, FormattedRecord)
