"""Decodes the protobufs of ReadChangeStream to change records: the hot path, without client classes.

    decoder = Decoder()
    for response in call:                # plain ReadChangeStreamResponse messages, in order, of one stream
        record = decoder.feed(response)  # None: in the middle of a record
    decoder.finish()                     # the stream ended with OK; half a record is an error

If all mutations of a message set whole cells, it may come as a `wire.Response`. Such mutations need no checks, and the
entries of the record are decoded on first access.

One record may be spread over several messages, and one value of a SetCell over several chunks. The decoder rejects what
Google's own Java client rejects, and two more errors: a chunk at the wrong offset, and a value that another mutation
interrupts. A stream that *breaks off* in the middle of a record is no error. The incomplete record is dropped with
this object, and the service sends it again from the last token.

Source of the rules: google/bigtable/v2/bigtable.proto, `ReadChangeStreamResponse`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from penstock.errors import DecodeError
from penstock.io.bigtable.keys import EVERYTHING, KeyRange
from penstock.io.bigtable.record import (
    AddToCell,
    ChangeRecord,
    ChangeStreamMutation,
    CloseStream,
    Continuation,
    DamagedMutation,
    DeleteCells,
    DeleteFamily,
    Entry,
    Heartbeat,
    MergeToCell,
    MutationType,
    SetCell,
    UnknownMutation,
    received_mutation,
    set_cell,
)
from penstock.io.bigtable.wire import Response
from penstock.timestamps import NANOS

_USER, _GARBAGE_COLLECTION, _CONTINUATION = 1, 2, 3
_TYPES = {_USER: MutationType.USER, _GARBAGE_COLLECTION: MutationType.GARBAGE_COLLECTION}


_Head: TypeAlias = tuple[bytes, MutationType, str, int, int]
"""From the first message of a record: row key, type, cluster, commit timestamp, tiebreaker."""

_Tail: TypeAlias = tuple[str, int]
"""From its last message: token, watermark."""


class Decoder:
    """Decodes the messages of one stream, in order, in one thread."""

    def __init__(self) -> None:
        self._head: _Head | None = None
        self._entries: list[Entry] = []
        self._cell: _Cell | None = None
        # State of a record that comes in several messages: the messages, and why its entries cannot be decoded.
        self._messages: list[Any] = []
        self._damage = ""

    def feed(self, response: Any) -> ChangeRecord | None:
        """Return the record that is complete with this ReadChangeStreamResponse, or None.

        Raises:
            DecodeError: a message that the documentation does not allow here.
        """
        # Whole cells were checked by `wire`: see there.
        if type(response) is Response:
            return self._data_change(response.data_change, True)
        kind = response.WhichOneof("stream_record")
        if kind == "data_change":
            return self._data_change(response.data_change, False)
        self._refuse_in_mid_record(kind or "message of an unknown kind")
        if kind == "heartbeat":
            return _heartbeat(response.heartbeat)
        if kind == "close_stream":
            return _close_stream(response.close_stream)
        raise DecodeError("the change stream sent a message that is neither data, heartbeat nor close")

    def finish(self) -> None:
        """Declare the stream ended with status OK.

        Raises:
            DecodeError: it ended in the middle of a record.
        """
        self._refuse_in_mid_record("end of the stream with status OK")

    def _data_change(self, change: Any, whole_cells: bool) -> ChangeStreamMutation | DamagedMutation | None:
        head = self._head
        if head is None:
            head = _head(change)
            if change.done:
                tail = _tail(head, change)
                if whole_cells:
                    return received_mutation(*head, *tail, change)
                try:
                    return ChangeStreamMutation(*head, *tail, tuple(_entries_of_one_message(change.chunks)))
                # The frame of the record is intact, so the stream can continue after it.
                except DecodeError as error:
                    return _damaged(head, tail, str(error), [change])
            # Only now: a record that is complete in one message leaves no state behind.
            self._head = head
        else:
            _check_continuation(change, head)
        # Bad entries damage one record: its end, token and watermark do not depend on them.
        self._messages.append(change)
        try:
            if not self._damage:
                self._take_chunks(change.chunks)
            if change.done and self._cell is not None:
                raise DecodeError("the record is done in the middle of a chunked value")
        except DecodeError as error:
            self._damage, self._cell = str(error), None
        return self._finished(head, change) if change.done else None

    def _finished(self, head: _Head, change: Any) -> ChangeStreamMutation | DamagedMutation:
        """Return the record whose last message is `change`."""
        tail, damage = _tail(head, change), self._damage
        # Everything of the record is reset here, so the next message begins a new one.
        entries, self._head, self._entries = self._entries, None, []
        messages, self._messages, self._damage = self._messages, [], ""
        if damage:
            return _damaged(head, tail, damage, messages)
        return ChangeStreamMutation(*head, *tail, tuple(entries))

    def _take_chunks(self, chunks: Sequence[Any]) -> None:
        last = len(chunks) - 1
        for number, chunk in enumerate(chunks):
            if self._cell is None and not _is_part(chunk):
                # Most mutations are no chunks, and take this way.
                self._entries.append(_entry(chunk.mutation))
                continue
            if self._cell is None:
                self._cell = _Cell(chunk)
            else:
                self._cell.append(chunk)
            if chunk.chunk_info.last_chunk:
                self._entries.append(self._cell.whole())
                self._cell = None
            elif number != last:
                raise DecodeError("another mutation interrupts a chunked value")

    def _refuse_in_mid_record(self, what: str) -> None:
        if self._head is not None:
            raise DecodeError(f"{what} in the middle of the record {_at(self._head)}")


def _damaged(head: _Head, tail: _Tail, reason: str, messages: Sequence[Any]) -> DamagedMutation:
    row_key, _, _, commit_timestamp, tiebreaker = head
    # Deterministic, so that equal records give equal bytes in every attempt.
    encoded = [message.SerializeToString(deterministic=True) for message in messages]
    data = b"".join([len(each).to_bytes(4, "big") + each for each in encoded])
    return DamagedMutation(row_key, commit_timestamp, tiebreaker, *tail, reason, data)


class _Cell:
    """A SetCell whose value arrives in chunks; the first one has the family, the qualifier and the timestamp."""

    def __init__(self, chunk: Any) -> None:
        if chunk.mutation.WhichOneof("mutation") != "set_cell":
            raise DecodeError("a chunk_info belongs to a mutation other than set_cell")
        self._first = chunk.mutation.set_cell
        self._size = chunk.chunk_info.chunked_value_size
        self._received = 0
        self._values: list[bytes] = []
        self.append(chunk)

    def append(self, chunk: Any) -> None:
        """Take the next chunk.

        Raises:
            DecodeError: it is not the expected next chunk.
        """
        info = chunk.chunk_info
        if not _is_part(chunk) or chunk.mutation.WhichOneof("mutation") != "set_cell":
            raise DecodeError("another mutation interrupts a chunked value")
        if info.chunked_value_size != self._size or info.chunked_value_offset != self._received:
            # The offset is checked, because a lost chunk would leave a gap without an error.
            raise DecodeError(
                f"a chunk at {info.chunked_value_offset} of {info.chunked_value_size} bytes follows "
                f"{self._received} of {self._size}"
            )
        value = chunk.mutation.set_cell.value
        self._received += len(value)
        self._values.append(value)
        # An empty last chunk is allowed; a value that is short or long is not.
        if self._received > self._size or (self._received < self._size and info.last_chunk):
            raise DecodeError(f"the chunks of a value of {self._size} bytes have {self._received}")

    def whole(self) -> SetCell:
        """Return the cell; `append` has checked that it is complete."""
        first = self._first
        return SetCell(
            first.family_name, first.column_qualifier, first.timestamp_micros, b"".join(self._values)
        )


def _head(change: Any) -> _Head:
    key, cluster, kind = change.row_key, change.source_cluster_id, _TYPES.get(change.type_)
    if kind is None:
        raise DecodeError(
            f"a record begins with a message of type {change.type_}, not USER or GARBAGE_COLLECTION"
        )
    if not key or not change.HasField("commit_timestamp") or not change.chunks:
        raise DecodeError("a record begins without a row key, a commit timestamp or a mutation")
    # Garbage collection runs in every cluster, so its records name none.
    if (kind is MutationType.USER) is not bool(cluster):
        raise DecodeError(
            f"a record of type {kind} comes {'from' if cluster else 'without'} a source cluster"
        )
    at = change.commit_timestamp
    return key, kind, cluster, at.seconds * NANOS + at.nanos, change.tiebreaker


def _check_continuation(change: Any, head: _Head) -> None:
    if change.type_ != _CONTINUATION:
        raise DecodeError(f"a record begins in the middle of the record {_at(head)}")
    # The message's documentation: a continuation has none of these. A service that repeats them may mean another row.
    if change.row_key or change.source_cluster_id or change.HasField("commit_timestamp"):
        raise DecodeError(f"a continuation of the record {_at(head)} names a row, a cluster or a time again")


def _tail(head: _Head, change: Any) -> _Tail:
    token = change.token
    if not token or not change.HasField("estimated_low_watermark"):
        raise DecodeError(f"the record {_at(head)} is done without a token or a watermark")
    low = change.estimated_low_watermark
    return token, low.seconds * NANOS + low.nanos


def _entries_of_one_message(chunks: Sequence[Any]) -> list[Entry]:
    """Decode a record that is complete in one message. A chunked value must be complete in it too."""
    entries: list[Entry] = []
    for chunk in chunks:
        if chunk.HasField("chunk_info") and _is_part(chunk):
            # The constructor checks the first chunk.
            cell = _Cell(chunk)
            if not chunk.chunk_info.last_chunk:
                raise DecodeError("a record is done in the middle of a chunked value")
            entries.append(cell.whole())
        else:
            entries.append(_entry(chunk.mutation))
    return entries


def _is_part(chunk: Any) -> bool:
    """Return whether the chunk holds a part of a value. An empty chunk_info means the same as none."""
    if not chunk.HasField("chunk_info"):
        return False
    info = chunk.chunk_info
    if info.chunked_value_size < 0 or info.chunked_value_offset < 0:
        raise DecodeError("a chunk_info with a negative size or offset")
    if info.chunked_value_size == 0 and info.chunked_value_offset:
        raise DecodeError("a chunk_info with an offset in a value of no size")
    return bool(info.chunked_value_size)


def _entry(mutation: Any) -> Entry:
    # Nearly all mutations are set_cell. For another kind, its family is empty. Reading it costs less than `HasField`.
    cell = mutation.set_cell
    # An empty family is legal in a message, so `HasField` decides then.
    if (family := cell.family_name) or mutation.HasField("set_cell"):
        return set_cell(family, cell.column_qualifier, cell.timestamp_micros, cell.value)
    kind = mutation.WhichOneof("mutation")
    if kind == "delete_from_column":
        return _delete_cells(mutation.delete_from_column)
    if kind == "delete_from_family":
        return DeleteFamily(mutation.delete_from_family.family_name)
    if kind == "add_to_cell":
        return _aggregate(AddToCell, mutation.add_to_cell) or _unknown(mutation)
    if kind == "merge_to_cell":
        return _aggregate(MergeToCell, mutation.merge_to_cell) or _unknown(mutation)
    if kind == "delete_from_row":
        raise DecodeError("a change stream never sends delete_from_row, but one delete for each family")
    return _unknown(mutation)


def _delete_cells(delete: Any) -> DeleteCells:
    times = delete.time_range
    return DeleteCells(
        delete.family_name,
        delete.column_qualifier,
        times.start_timestamp_micros,
        # 0 means no end.
        times.end_timestamp_micros or None,
    )


def _aggregate(make: type[AddToCell] | type[MergeToCell], cell: Any) -> AddToCell | MergeToCell | None:
    """Return the entry, or None if its values are of kinds that the documentation does not name."""
    kind = cell.input.WhichOneof("kind")
    # A later release may send other forms. Their bytes are kept, and nothing is guessed.
    if (
        cell.column_qualifier.WhichOneof("kind") != "raw_value"
        or cell.timestamp.WhichOneof("kind") != "raw_timestamp_micros"
        or kind not in ("int_value", "raw_value")
    ):
        return None
    content = cell.input.int_value if kind == "int_value" else cell.input.raw_value
    return make(
        cell.family_name, cell.column_qualifier.raw_value, cell.timestamp.raw_timestamp_micros, content
    )


def _unknown(mutation: Any) -> UnknownMutation:
    encoded = mutation.SerializeToString(deterministic=True)
    if not encoded:
        raise DecodeError("a record holds a mutation without content")
    return UnknownMutation(encoded)


def _heartbeat(heartbeat: Any) -> Heartbeat:
    token, low = heartbeat.continuation_token, heartbeat.estimated_low_watermark
    if not token.token or not heartbeat.HasField("estimated_low_watermark"):
        raise DecodeError("a heartbeat without a token or a watermark")
    return Heartbeat(key_range(token.partition.row_range), token.token, low.seconds * NANOS + low.nanos)


def _close_stream(close: Any) -> CloseStream:
    tokens, partitions = close.continuation_tokens, close.new_partitions
    code = close.status.code
    if partitions and len(partitions) != len(tokens):
        raise DecodeError(f"a close with {len(tokens)} tokens for {len(partitions)} new partitions")
    # OK means that the end time is reached, so nothing follows. Tokens with it could mean unread changes.
    if code == 0 and tokens:
        raise DecodeError("a close with status OK and continuation tokens")
    if not all(token.token for token in tokens):
        raise DecodeError("a close with an empty continuation token")
    ranges = [key_range(token.partition.row_range) for token in tokens]
    # Without new partitions the token's own range is the target.
    targets = [key_range(partition.row_range) for partition in partitions] or ranges
    continuations = zip(ranges, (token.token for token in tokens), targets, strict=True)
    return CloseStream(code, close.status.message, tuple([Continuation(*each) for each in continuations]))


def key_range(row_range: Any) -> KeyRange:
    """Return a protobuf RowRange as keys from an inclusive start to an exclusive end.

    Raises:
        DecodeError: it is empty.
    """
    start = row_range.start_key_closed
    # The smallest key after a key is the key with a zero byte.
    if row_range.HasField("start_key_open"):
        start = row_range.start_key_open + b"\0"
    end = row_range.end_key_open
    if row_range.HasField("end_key_closed") and row_range.end_key_closed:
        end = row_range.end_key_closed + b"\0"
    if end and start >= end:
        raise DecodeError("the change stream names an empty range of row keys")
    return KeyRange(start, end) if start or end else EVERYTHING


def _at(head: _Head) -> str:
    seconds, nanos = divmod(head[3], NANOS)
    return f"committed at {seconds}.{nanos:09d}"
