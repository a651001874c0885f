"""`FormattedRecord`: an event in an output format, ready for a file, a queue or a topic. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from penstock.event import ChangeEvent, Version

__all__ = ["Format", "FormattedRecord", "Headers"]

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
