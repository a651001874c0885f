"""The three kinds of record of a change stream, with the field names of Bigtable's documentation.

No Beam, no client. Commit timestamps and watermarks are integers, nanoseconds since 1970-01-01T00:00:00Z;
timestamps of cells are Bigtable's own microseconds and say so in their names.

Source: google/bigtable/v2/bigtable.proto, `ReadChangeStreamResponse`, and google/bigtable/v2/data.proto, `Mutation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.compat import StrEnum
from penstock.io.bigtable.keys import KeyRange
from penstock.timestamps import format_timestamp


class MutationType(StrEnum):
    """The origin of a change: a user's write, or garbage collection of old cells, which has no source cluster.

    READ: no change, but a row that a snapshot has read, with all its cells.
    """

    USER = "USER"
    GARBAGE_COLLECTION = "GARBAGE_COLLECTION"
    READ = "READ"


@dataclass(frozen=True, slots=True)
class SetCell:
    """The cell (family, qualifier, timestamp_micros) now holds `value`."""

    family: str
    qualifier: bytes
    timestamp_micros: int
    value: bytes


@dataclass(slots=True)
class _OpenSetCell:
    """A SetCell before it is frozen: the same slots, filled in a quarter of the time."""

    family: str
    qualifier: bytes
    timestamp_micros: int
    value: bytes


def set_cell(family: str, qualifier: bytes, timestamp_micros: int, value: bytes) -> SetCell:
    """Return a SetCell, for the decoder, which makes one for every cell.

    The constructor of a frozen dataclass calls `object.__setattr__` for each field, which took a third of decoding.
    So a mutable twin is filled and then becomes a SetCell by its class.
    """
    cell: Any = _OpenSetCell(family, qualifier, timestamp_micros, value)
    # CPython allows this because both classes have the same slots.
    cell.__class__ = SetCell
    return cell


@dataclass(frozen=True, slots=True)
class DeleteCells:
    """The cells of one column from `start_micros`, inclusive, to `end_micros`, exclusive, were deleted.

    `end_micros` None: without end.
    """

    family: str
    qualifier: bytes
    start_micros: int
    end_micros: int | None


@dataclass(frozen=True, slots=True)
class DeleteFamily:
    """All cells of the family in this row were deleted."""

    family: str


@dataclass(frozen=True, slots=True)
class AddToCell:
    """`input` was added to an aggregate cell: an integer (int_value) or raw bytes (raw_value)."""

    family: str
    qualifier: bytes
    timestamp_micros: int
    input: int | bytes


@dataclass(frozen=True, slots=True)
class MergeToCell:
    """The accumulator state `input` was merged into an aggregate cell; see `AddToCell`."""

    family: str
    qualifier: bytes
    timestamp_micros: int
    input: int | bytes


@dataclass(frozen=True, slots=True)
class UnknownMutation:
    """A google.bigtable.v2.Mutation that this release does not know, encoded as it was sent."""

    encoded: bytes


Entry: TypeAlias = SetCell | DeleteCells | DeleteFamily | AddToCell | MergeToCell | UnknownMutation


class _MaybeReceived:
    """Holds the `wire.DataChange` that a change was received as, if there is one."""

    # Not a field of the dataclass: equality and hash do not depend on how a record was made. `replace` makes a record
    # without it, so changed entries are never encoded from the bytes that were received.
    __slots__ = ("_change",)


@dataclass(frozen=True, slots=True)
class ChangeStreamMutation(_MaybeReceived):
    """One atomic change of one row, whole, as one cluster applied it.

    `commit_timestamp` and `estimated_low_watermark` are nanoseconds. Per row key and source cluster, changes
    come in the order of their commit timestamps. On the same cell and commit timestamp the change with the
    larger `tiebreaker` wins. `source_cluster_id` is empty for GARBAGE_COLLECTION. The watermark is an
    estimate of the service: a later record may lie below it. `token` is the stream's position after this
    record, for the partition that was being read. Entries apply in order; old values are never sent.
    """

    row_key: bytes
    type: MutationType
    source_cluster_id: str
    commit_timestamp: int
    tiebreaker: int
    token: str
    estimated_low_watermark: int
    entries: tuple[Entry, ...]

    def __repr__(self) -> str:  # without row key and values, which are user data
        return f"<{self.type} change with {entry_count(self)} entries at {format_timestamp(self.commit_timestamp)}>"

    # Hidden from mypy, which would otherwise accept every attribute name.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> tuple[Entry, ...]:
            """Decode the entries on first access. Python calls this while the slot `entries` is empty."""
            if name != "entries":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            entries = _cells(self._change.chunks)
            object.__setattr__(self, "entries", entries)
            return entries


@dataclass(slots=True)
class _OpenMutation(_MaybeReceived):
    """A ChangeStreamMutation before it is frozen and without entries; see `_OpenSetCell`."""

    row_key: bytes
    type: MutationType
    source_cluster_id: str
    commit_timestamp: int
    tiebreaker: int
    token: str
    estimated_low_watermark: int
    entries: tuple[Entry, ...] = field(init=False)


def _cells(chunks: Sequence[Any]) -> tuple[SetCell, ...]:
    cells = [chunk.mutation.set_cell for chunk in chunks]
    return tuple([set_cell(c.family_name, c.column_qualifier, c.timestamp_micros, c.value) for c in cells])


def received_mutation(
    row_key: bytes,
    type_: MutationType,
    source_cluster_id: str,
    commit_timestamp: int,
    tiebreaker: int,
    token: str,
    estimated_low_watermark: int,
    change: Any,
) -> ChangeStreamMutation:
    """Return a ChangeStreamMutation that makes its entries, from a `wire.DataChange`, on first access.

    It equals one that was made with its entries, and has its hash and its bytes.
    """
    mutation: Any = _OpenMutation(
        row_key, type_, source_cluster_id, commit_timestamp, tiebreaker, token, estimated_low_watermark
    )
    mutation._change = change
    mutation.__class__ = ChangeStreamMutation
    return mutation


def as_received(mutation: ChangeStreamMutation) -> Any | None:
    """Return the `wire.DataChange` that the change was received as, or None: it was made with its entries."""
    return getattr(mutation, "_change", None)


def entry_count(mutation: ChangeStreamMutation) -> int:
    """Return the number of entries without making them."""
    change = as_received(mutation)
    return len(mutation.entries if change is None else change.chunks)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing new: the position `token` of `partition`, and the service's estimate of the watermark."""

    partition: KeyRange
    token: str
    estimated_low_watermark: int


@dataclass(frozen=True, slots=True)
class Continuation:
    """The position after a CloseStream: `token` continues the keys of `partition`, and must be read in `target`.

    `target` may reach beyond `partition` on both sides: then it wants the tokens of its other parts too.
    """

    partition: KeyRange
    token: str
    target: KeyRange


@dataclass(frozen=True, slots=True)
class CloseStream:
    """The stream of a partition ends. Status OK without continuations: it was read to its end_time.

    `code` is a google.rpc.Code, 0 for OK; a change of partitioning comes as OUT_OF_RANGE (11).
    """

    code: int
    message: str
    continuations: tuple[Continuation, ...]


@dataclass(frozen=True, slots=True)
class DamagedMutation:
    """A change whose entries cannot be decoded, but whose place in its partition is readable.

    `data` are the messages of the change as the service sent them, each a `DataChange` after its length in 4 bytes,
    big-endian. `reason` shows no values.
    """

    row_key: bytes
    commit_timestamp: int
    tiebreaker: int
    token: str
    estimated_low_watermark: int
    reason: str
    data: bytes


ChangeRecord: TypeAlias = ChangeStreamMutation | Heartbeat | CloseStream | DamagedMutation
