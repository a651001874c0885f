"""The coder of change stream mutations: compact, versioned bytes, never pickle.

A change whose entries are all SetCell, as nearly all are:

    byte      version (2)
    message   google.bigtable.v2.ReadChangeStreamResponse.DataChange, `done`: fields in the order of their numbers,
              defaults left out, nothing unknown

A change as it was received is that message already, and is written and read without making its entries. Any other:

    byte      version (1)
    byte      type: 1 = USER, 2 = GARBAGE_COLLECTION, 3 = READ
    byte      width of a length: 1, 2, 4 or 8 bytes
    uint32    number of entries
    int64     commit_timestamp, nanoseconds
    int64     estimated_low_watermark, nanoseconds
    int32     tiebreaker
    kinds     one byte for each entry
    numbers   int64 for each entry, as its kind says
    lengths   of the texts that follow, in bytes: row key, cluster, token, then the texts of each entry
    texts     without separators; cluster, token and families in UTF-8

Integers are little endian. Kinds, with their numbers and texts:

    1  SetCell                 timestamp_micros              family, qualifier, value
    2  DeleteCells             start_micros, end_micros      family, qualifier
    3  DeleteCells to the end  start_micros                  family, qualifier
    4  DeleteFamily                                          family
    5  AddToCell, integer      timestamp_micros, input       family, qualifier
    6  AddToCell, bytes        timestamp_micros              family, qualifier, input
    7  MergeToCell, integer    timestamp_micros, input       family, qualifier
    8  MergeToCell, bytes      timestamp_micros              family, qualifier, input
    9  UnknownMutation                                       encoded

Equal records have equal bytes, however they were made.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from apache_beam import coders

from penstock.coders import VersionedCoder
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.record import (
    AddToCell,
    ChangeStreamMutation,
    DeleteCells,
    DeleteFamily,
    Entry,
    MergeToCell,
    MutationType,
    SetCell,
    UnknownMutation,
    as_received,
    received_mutation,
    set_cell,
)
from penstock.io.bigtable.source import ChangeStream
from penstock.io.bigtable.wire import DataChange
from penstock.io.change_streams import coders as shared
from penstock.io.change_streams.packing import cut, pack, unpack, width_of
from penstock.timestamps import NANOS

ANY_ENTRIES, WHOLE_CELLS = 1, 2
"""The versions."""
# Little endian, without padding.
_HEAD = struct.Struct("<BBBIqqi")
_TYPES = {MutationType.USER: 1, MutationType.GARBAGE_COLLECTION: 2, MutationType.READ: 3}
_TYPES_BACK = {number: kind for kind, number in _TYPES.items()}
_SET, _DELETE, _DELETE_OPEN, _FAMILY, _ADD, _ADD_BYTES, _MERGE, _MERGE_BYTES, _UNKNOWN = range(1, 10)


class ChangeStreamMutationCoder(VersionedCoder):
    """Encodes a `ChangeStreamMutation` in the format of this module; deterministic."""

    value_type = ChangeStreamMutation
    what = "a ChangeStreamMutation"
    versions = (ANY_ENTRIES, WHOLE_CELLS)

    def encode(self, value: ChangeStreamMutation) -> bytes:
        change = _data_change(value)
        # A deletion or an aggregate: version 1 holds any entries.
        if change is None:
            return entry_by_entry(value)
        return b"\2" + change.SerializeToString(deterministic=True)

    def decode(self, encoded: bytes) -> ChangeStreamMutation:
        """Return the record.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
        """
        version = encoded[0]
        self.check_version(version)
        if version == WHOLE_CELLS:
            return _received(DataChange.FromString(encoded[1:]))
        return _decoded(encoded)


def _data_change(mutation: ChangeStreamMutation) -> Any | None:
    """Return the change as a `wire.DataChange`, or None if it does more than set cells.

    Its times are written again, because the service may have split them into seconds and nanoseconds differently.
    """
    change = as_received(mutation)
    if change is not None:
        # Unknown fields would make equal records unequal.
        change.DiscardUnknownFields()
    else:
        cells = [entry for entry in mutation.entries if isinstance(entry, SetCell)]
        if len(cells) < len(mutation.entries):
            return None
        change = _made(mutation, cells)
    # In the received message itself: the record has both times as integers, and nothing reads them from the message.
    at, low = change.commit_timestamp, change.estimated_low_watermark
    at.seconds, at.nanos = divmod(mutation.commit_timestamp, NANOS)
    low.seconds, low.nanos = divmod(mutation.estimated_low_watermark, NANOS)
    return change


def _made(mutation: ChangeStreamMutation, cells: list[SetCell]) -> Any:
    change = DataChange(
        type_=_TYPES[mutation.type],
        source_cluster_id=mutation.source_cluster_id,
        row_key=mutation.row_key,
        tiebreaker=mutation.tiebreaker,
        done=True,
        token=mutation.token,
    )
    for cell in cells:
        written = change.chunks.add().mutation.set_cell
        written.family_name, written.column_qualifier = cell.family, cell.qualifier
        written.timestamp_micros, written.value = cell.timestamp_micros, cell.value
    return change


def _received(change: Any) -> ChangeStreamMutation:
    at, low = change.commit_timestamp, change.estimated_low_watermark
    return received_mutation(
        change.row_key,
        _TYPES_BACK[change.type_],
        change.source_cluster_id,
        at.seconds * NANOS + at.nanos,
        change.tiebreaker,
        change.token,
        low.seconds * NANOS + low.nanos,
        change,
    )


def entry_by_entry(mutation: ChangeStreamMutation) -> bytes:
    """Return the change in version 1, which can hold any entries.

    It takes half the time of version 2 if the entries are decoded already.
    """
    kinds = bytearray()
    numbers: list[int] = []
    texts = [mutation.row_key, mutation.source_cluster_id.encode(), mutation.token.encode()]
    for entry in mutation.entries:
        kinds.append(_write(entry, numbers, texts))
    lengths = [len(text) for text in texts]
    # One width for all lengths: most records are short.
    width = width_of(max(lengths))
    head = _HEAD.pack(
        ANY_ENTRIES,
        _TYPES[mutation.type],
        width,
        len(kinds),
        mutation.commit_timestamp,
        mutation.estimated_low_watermark,
        mutation.tiebreaker,
    )
    return b"".join((head, kinds, pack(numbers, 8, signed=True), pack(lengths, width), *texts))


def _decoded(encoded: bytes) -> ChangeStreamMutation:
    _, type_, width, count, timestamp, low, tiebreaker = _HEAD.unpack_from(encoded)
    kinds = encoded[_HEAD.size : _HEAD.size + count]
    at = _HEAD.size + count
    numbers, at = _unpacked(encoded, at, sum([_SHAPES[kind][0] for kind in kinds]), 8, signed=True)
    # The row key, the cluster and the token come before the texts of the entries.
    texts = 3 + sum([_SHAPES[kind][1] for kind in kinds])
    lengths, at = _unpacked(encoded, at, texts, width)
    pieces = cut(encoded, lengths, at)
    key, cluster, token = next(pieces), next(pieces).decode(), next(pieces).decode()
    # Iterators: each kind takes as many numbers and texts as it has.
    remaining = iter(numbers)
    entries = tuple([_SHAPES[kind][2](remaining, pieces) for kind in kinds])
    return ChangeStreamMutation(key, _TYPES_BACK[type_], cluster, timestamp, tiebreaker, token, low, entries)


def _write(entry: Entry, numbers: list[int], texts: list[bytes]) -> int:
    """Append the entry's numbers and texts, and return its kind."""
    match entry:
        case SetCell(family, qualifier, timestamp, value):
            numbers.append(timestamp)
            texts += (family.encode(), qualifier, value)
            return _SET
        case DeleteCells(family, qualifier, start, end):
            numbers += (start,) if end is None else (start, end)
            texts += (family.encode(), qualifier)
            return _DELETE_OPEN if end is None else _DELETE
        case DeleteFamily(family):
            texts.append(family.encode())
            return _FAMILY
        case AddToCell() | MergeToCell():
            return _write_aggregate(entry, numbers, texts)
        case UnknownMutation(encoded):
            texts.append(encoded)
            return _UNKNOWN


def _write_aggregate(entry: AddToCell | MergeToCell, numbers: list[int], texts: list[bytes]) -> int:
    add = isinstance(entry, AddToCell)
    numbers.append(entry.timestamp_micros)
    texts += (entry.family.encode(), entry.qualifier)
    if isinstance(entry.input, int):
        numbers.append(entry.input)
        return _ADD if add else _MERGE
    texts.append(entry.input)
    return _ADD_BYTES if add else _MERGE_BYTES


_Numbers = Iterator[int]
_Texts = Iterator[bytes]


def _integer(make: type[AddToCell] | type[MergeToCell]) -> Callable[[_Numbers, _Texts], Entry]:
    return lambda n, t: make(next(t).decode(), next(t), next(n), next(n))


def _raw(make: type[AddToCell] | type[MergeToCell]) -> Callable[[_Numbers, _Texts], Entry]:
    return lambda n, t: make(next(t).decode(), next(t), next(n), next(t))


# Arguments are evaluated from left to right, so the calls of `next` follow the order in which `_write` appends.
_SHAPES: dict[int, tuple[int, int, Callable[[_Numbers, _Texts], Entry]]] = {
    _SET: (1, 3, lambda n, t: set_cell(next(t).decode(), next(t), next(n), next(t))),
    _DELETE: (2, 2, lambda n, t: DeleteCells(next(t).decode(), next(t), next(n), next(n))),
    _DELETE_OPEN: (1, 2, lambda n, t: DeleteCells(next(t).decode(), next(t), next(n), None)),
    _FAMILY: (0, 1, lambda n, t: DeleteFamily(next(t).decode())),
    _ADD: (2, 2, _integer(AddToCell)),
    _ADD_BYTES: (1, 3, _raw(AddToCell)),
    _MERGE: (2, 2, _integer(MergeToCell)),
    _MERGE_BYTES: (1, 3, _raw(MergeToCell)),
    _UNKNOWN: (0, 1, lambda n, t: UnknownMutation(next(t))),
}
"""For each kind: its count of numbers, its count of texts, and the function that makes the entry of them."""


def _unpacked(
    encoded: bytes, at: int, count: int, width: int, *, signed: bool = False
) -> tuple[array[int], int]:
    """Return `count` numbers that begin at `at`, and where they end."""
    end = at + count * width
    return unpack(encoded[at:end], width, signed=signed), end


class ChangeStreamCoder(shared.ChangeStreamCoder):
    """Encodes a `ChangeStream`. Row keys are text in which each character is one byte (Latin-1)."""

    value_type = ChangeStream
    system = "bigtable"

    def fields(self, stream: ChangeStream) -> list[Any]:
        # Latin-1 maps each byte to one character, so a key of any bytes survives JSON.
        keys = [key.decode("latin-1") for key in stream.row_range]
        return [stream.project, stream.instance, stream.table, stream.start, stream.end, *keys]

    def stream(self, fields: list[Any]) -> ChangeStream:
        project, instance, table, start, end, first, last = fields
        return ChangeStream(
            project, instance, table, start, end, KeyRange(first.encode("latin-1"), last.encode("latin-1"))
        )


coders.registry.register_coder(ChangeStreamMutation, ChangeStreamMutationCoder)
coders.registry.register_coder(ChangeStream, ChangeStreamCoder)
