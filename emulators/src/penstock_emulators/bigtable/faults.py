"""Faults that a test can inject into change streams, and the stream that gets one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.compat import StrEnum


class Fault(StrEnum):
    """One fault, which happens once, in one stream.

    Faults that end a stream happen as soon as a stream can have them. Faults that damage a record wait for the
    next record (`HALF_RECORD`, `HEARTBEAT_IN_RECORD`), or for the next one that holds a chunked value.
    """

    UNAVAILABLE = "UNAVAILABLE"
    """The call fails with this status, between two records."""
    ABORTED = "ABORTED"
    """The call fails with this status, between two records."""
    INTERNAL = "INTERNAL"
    """The call fails with this status, between two records."""
    END_WITHOUT_CLOSE = "END_WITHOUT_CLOSE"
    """The call ends OK, with no CloseStream before it."""
    CLOSE_INTERNAL = "CLOSE_INTERNAL"
    """CloseStream with status INTERNAL and no tokens, then OK."""
    CLOSE_WITHOUT_TOKENS = "CLOSE_WITHOUT_TOKENS"
    """CloseStream with status OUT_OF_RANGE and no tokens, then OK."""
    HALF_RECORD = "HALF_RECORD"
    """A record without its last message (or without `done`, if it has only one), then UNAVAILABLE."""
    HEARTBEAT_IN_RECORD = "HEARTBEAT_IN_RECORD"
    """A heartbeat after the first message of a record of several messages (or of a part of a record)."""
    WRONG_CHUNK_SIZE = "WRONG_CHUNK_SIZE"
    """The second chunk of a value announces another total size."""
    WRONG_CHUNK_OFFSET = "WRONG_CHUNK_OFFSET"
    """The second chunk of a value stands at another offset."""
    MISSING_LAST_CHUNK = "MISSING_LAST_CHUNK"
    """No chunk of the value is the last one."""
    INTERRUPTED_CHUNK = "INTERRUPTED_CHUNK"
    """Another mutation stands between the first and the second chunk of a value."""

    @property
    def damages_record(self) -> bool:
        """Whether the fault needs a record to happen in."""
        return self in _IN_A_RECORD


_IN_A_CHUNKED_VALUE = frozenset(
    (
        Fault.WRONG_CHUNK_SIZE,
        Fault.WRONG_CHUNK_OFFSET,
        Fault.MISSING_LAST_CHUNK,
        Fault.INTERRUPTED_CHUNK,
    )
)
_IN_A_RECORD = _IN_A_CHUNKED_VALUE | {Fault.HALF_RECORD, Fault.HEARTBEAT_IN_RECORD}


@dataclass(frozen=True, slots=True)
class Armed:
    """A fault that waits for a stream which has sent at least `after_records` records since it was opened."""

    fault: Fault
    after_records: int = 0

    def __post_init__(self) -> None:
        if self.after_records < 0:
            raise ValueError(f"after_records is {self.after_records}; pass 0 or more")
