"""The records of change streams as values; `record_encoding` prints them.

Timestamps are nanoseconds since 1970, sequences are numbers that are printed with eight digits.

Source: Spanner documentation, "Change stream partitions, records, and queries", "Change streams record formats";
google/spanner/v1/change_stream.proto for the records of MUTABLE_KEY_RANGE streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock_emulators.simulated_spanner.column_type import ColumnType
from penstock_emulators.simulated_spanner.rows import Row


@dataclass(frozen=True, slots=True)
class RecordColumn:
    """A column of a data change record; `ordinal` counts from 1 in the table's definition."""

    name: str
    kind: ColumnType
    is_key: bool
    ordinal: int


@dataclass(frozen=True, slots=True)
class Mod:
    """One changed row."""

    keys: Row
    new: Row
    old: Row


@dataclass(frozen=True, slots=True)
class DataChange:
    """Changes of one kind to one table by one transaction in one partition."""

    timestamp: int
    sequence: int
    transaction: str
    is_last: bool
    table: str
    columns: tuple[RecordColumn, ...]
    mods: tuple[Mod, ...]
    mod_type: str
    capture: str
    records_in_transaction: int
    partitions_in_transaction: int
    tag: str
    is_system: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Everything up to `timestamp` has been sent."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class Children:
    """The end of a partition of an IMMUTABLE_KEY_RANGE stream: (token, parents) of those that follow."""

    timestamp: int
    sequence: int
    children: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """Partitions of a MUTABLE_KEY_RANGE stream that are to be read from `timestamp` on."""

    timestamp: int
    sequence: int
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionEvent:
    """Key ranges moved into this partition from `sources`, or out of it to `destinations`."""

    timestamp: int
    sequence: int
    token: str
    sources: tuple[str, ...] = ()
    destinations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """The last record of a partition of a MUTABLE_KEY_RANGE stream."""

    timestamp: int
    sequence: int
    token: str


Record: TypeAlias = DataChange | Heartbeat | Children | PartitionStart | PartitionEvent | PartitionEnd
LoggedRecord: TypeAlias = DataChange | Children | PartitionStart | PartitionEvent | PartitionEnd
"""All that stays in a partition's log; heartbeats are made by queries."""
