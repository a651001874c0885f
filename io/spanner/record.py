"""The kinds of record of a change stream, with the field names of Spanner's documentation.

A stream with partition_mode IMMUTABLE_KEY_RANGE sends child partitions records; one with MUTABLE_KEY_RANGE sends
partition start, end and event records.

No Beam, no client. Timestamps are integers, nanoseconds since 1970-01-01T00:00:00Z, because Spanner's
TIMESTAMP is finer than Beam's and Python's microseconds. Values in mods stay the JSON text that was sent.

Source: Cloud Spanner documentation, "Change streams partitions, records, and queries";
google/spanner/v1/change_stream.proto.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, make_dataclass
from typing import Any, NamedTuple, TypeAlias, cast, overload


@dataclass(frozen=True, slots=True)
class ColumnType:
    """One column of the table that a data change record belongs to.

    `type` is the JSON text of Spanner's Type, such as ``{"code":"INT64"}`` or
    ``{"array_element_type":{"code":"STRING"},"code":"ARRAY"}``.
    """

    name: str
    type: str
    is_primary_key: bool
    ordinal_position: int

    @property
    def code(self) -> str:
        """The type's code, such as INT64 or ARRAY."""
        code: str = json.loads(self.type)["code"]
        return code


class Mod(NamedTuple):
    """One changed row: three JSON objects as text, exactly as the service sent them.

    Which columns are present depends on the capture type: an absent column was not sent, which is not the
    same as ``null``. A side that the service left out is ``{}``; one sent as NULL is the empty string.
    INT64 and NUMERIC are JSON strings, BYTES base64, a JSON column is a string that holds JSON.
    """

    keys: str
    new_values: str
    old_values: str

    def parsed(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return (keys, new values, old values) as dictionaries; a NULL side is an empty one."""
        return _parsed(self.keys), _parsed(self.new_values), _parsed(self.old_values)


class Mods(Sequence[Mod]):
    """The mods of one record, kept as one flat tuple of texts; a `Mod` is made when it is looked at.

    Python's garbage collector does not traverse a tuple of strings, but it would traverse a hundred thousand named
    tuples. Most programs look at each mod once or pass the texts on. Equal to any sequence of equal mods.
    """

    __slots__ = ("texts",)

    def __init__(self, texts: tuple[str, ...]) -> None:
        """Take keys, new values, old values of the first mod, then of the second, and so on."""
        self.texts = texts

    @classmethod
    def of(cls, mods: Iterable[Mod]) -> Mods:
        """Return the mods as one value."""
        return cls(tuple([text for mod in mods for text in mod]))

    def __len__(self) -> int:
        return len(self.texts) // 3

    def __iter__(self) -> Iterator[Mod]:
        # One iterator in all three places: `zip` takes keys, new values and old values in turns.
        sides = iter(self.texts)
        return map(Mod._make, zip(sides, sides, sides, strict=True))

    @overload
    def __getitem__(self, index: int) -> Mod: ...
    @overload
    def __getitem__(self, index: slice) -> Mods: ...
    def __getitem__(self, index: int | slice) -> Mod | Mods:
        if isinstance(index, slice):
            return Mods.of([self[number] for number in range(*index.indices(len(self)))])
        # `range` checks the index, and counts a negative one from the end.
        first = 3 * range(len(self))[index]
        return Mod(*self.texts[first : first + 3])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mods):
            return self.texts == other.texts
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{len(self)} mods>"  # without values, which are user data


@dataclass(frozen=True, slots=True)
class DataChangeRecord:
    """Changes of one kind to rows of one table, made by one transaction in one partition.

    `commit_timestamp` is in nanoseconds. (`commit_timestamp`, `server_transaction_id`, `record_sequence`,
    index in `mods`) is a total order of all changes of a stream and identifies each. A transaction may be
    spread over several records and partitions: `number_of_records_in_transaction` counts them all.
    """

    commit_timestamp: int
    record_sequence: str
    server_transaction_id: str
    is_last_record_in_transaction_in_partition: bool
    table_name: str
    column_types: tuple[ColumnType, ...]
    mods: Mods
    mod_type: str
    value_capture_type: str
    number_of_records_in_transaction: int
    number_of_partitions_in_transaction: int
    transaction_tag: str
    is_system_transaction: bool


_Unfrozen: Any = make_dataclass(
    "_Unfrozen", [(field.name, field.type) for field in fields(DataChangeRecord)], slots=True
)


def new_record(*values: Any) -> DataChangeRecord:
    """Return the `DataChangeRecord` of these values, in the order of its fields. For hot paths.

    `__init__` of a frozen dataclass sets each field by a call of `object.__setattr__`, which takes five times as long
    as the assignments of a class that is not frozen. Python allows an object to change to a class of the same slots.
    """
    record = _Unfrozen(*values)
    record.__class__ = DataChangeRecord
    return cast(DataChangeRecord, record)


def new_records(*columns: Iterable[Any]) -> list[DataChangeRecord]:
    """Return the records whose first fields are in the first column, and so on. All columns have the same length."""
    records = list(map(_Unfrozen, *columns))
    for record in records:
        record.__class__ = DataChangeRecord
    return records


@dataclass(frozen=True, slots=True)
class HeartbeatRecord:
    """All changes of the partition with commit timestamps up to and including `timestamp` have been sent."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class ChildPartition:
    """A partition that continues another one; `parent_partition_tokens` is empty only in the answer to a NULL token."""

    token: str
    parent_partition_tokens: frozenset[str]


@dataclass(frozen=True, slots=True)
class ChildPartitionsRecord:
    """The partition ends: `child_partitions` continue its keys from `start_timestamp` (inclusive) on.

    A split names both children in one record; a merge names one child in a record of each parent. One
    partition may send several records with one `start_timestamp`, told apart by `record_sequence`.
    """

    start_timestamp: int
    record_sequence: str
    child_partitions: tuple[ChildPartition, ...]


@dataclass(frozen=True, slots=True)
class PartitionStartRecord:
    """Partitions that are to be read from `start_timestamp` (inclusive) on."""

    start_timestamp: int
    record_sequence: str
    partition_tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionEventRecord:
    """Key ranges moved at `commit_timestamp`: into this partition from `sources`, out of it to `destinations`.

    Changes of these keys up to `commit_timestamp` (inclusive) may be in the sources.
    """

    commit_timestamp: int
    record_sequence: str
    sources: frozenset[str]
    destinations: frozenset[str]


@dataclass(frozen=True, slots=True)
class PartitionEndRecord:
    """The last record of a partition: it has no change after `end_timestamp`."""

    end_timestamp: int
    record_sequence: str


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """A data change record that cannot be decoded, but whose place in its partition is readable.

    `data` is the encoded google.protobuf.Value of the row, or `format` says what else. `reason` shows no values.
    """

    commit_timestamp: int
    record_sequence: str
    server_transaction_id: str
    reason: str
    data: bytes
    format: str = "google.protobuf.Value"


ChangeRecord: TypeAlias = (
    DataChangeRecord
    | HeartbeatRecord
    | ChildPartitionsRecord
    | PartitionStartRecord
    | PartitionEventRecord
    | PartitionEndRecord
    | DamagedRecord
)


def _parsed(side: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(side) if side else {}
    return values
