"""Decodes the bytes of one `pgoutput` message to a message object. Pure; the hot path of the source.

    byte    type of the message
    int32   transaction id: only between Stream Start and Stream Stop, and only in messages of rows, tables and types
    …       fields of the message; integers are big-endian, strings end with a zero byte

A row is an int16 with the number of columns, and for each one a byte: `n` NULL; `u` large and unchanged, not sent;
`t` or `b`, an int32 length and the value in text or binary form.

Source: PostgreSQL documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error

from penstock.errors import DecodeError
from penstock.io.postgres.messages import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RelationColumn,
    RollbackPrepared,
    Row,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
    Value,
)

_INT16 = Struct("!h").unpack_from
_INT32 = Struct("!I").unpack_from
_VALUE = Struct("!Bi").unpack_from
_BEGIN = Struct("!QqI").unpack_from
_COMMIT = Struct("!BQQq").unpack_from
_LSN = Struct("!Q").unpack_from
_COLUMN_TYPE = Struct("!Ii").unpack_from
_TRUNCATE = Struct("!iB").unpack_from
_MESSAGE = Struct("!BQ").unpack_from
_STREAM_START = Struct("!IB").unpack_from
_STREAM_COMMIT = Struct("!IBQQq").unpack_from
_STREAM_ABORT = Struct("!II").unpack_from
_PARALLEL_ABORT = Struct("!IIQq").unpack_from
_BEGIN_PREPARE = Struct("!QQqI").unpack_from
_PREPARE = Struct("!BQQqI").unpack_from
_ROLLBACK_PREPARED = Struct("!BQQqqI").unpack_from

_NULL, _TOAST, _TEXT, _BINARY = b"nutb"
_NEW, _KEY, _OLD = b"NKO"
_DELETE = ord("D")


def decode(payload: bytes, in_stream: bool = False) -> Message:
    """Decode one message. `in_stream`: it came between Stream Start and Stream Stop.

    Raises:
        DecodeError: the type of the message is unknown, or the message is cut short or too long.
    """
    try:
        return _DECODERS[payload[0]](payload, in_stream)
    except KeyError:
        raise DecodeError(
            f"the server sent a message of the unknown type {chr(payload[0])!r}. Penstock reads versions 1 to 4 of the "
            "pgoutput protocol: report this, with the version of the server"
        ) from None
    # A text that is not UTF-8 raises a ValueError too.
    except (IndexError, error, ValueError):
        kind = chr(payload[0]) if payload else "empty"
        raise DecodeError(
            f"a pgoutput message of type {kind!r} with {len(payload)} bytes is damaged"
        ) from None


def _text(payload: bytes, at: int) -> tuple[str, int]:
    end = payload.index(0, at)
    return payload[at:end].decode(), end + 1


def _transaction(payload: bytes, in_stream: bool) -> tuple[int | None, int]:
    """Return the transaction id, if the message has one, and the place of the next field."""
    return (_INT32(payload, 1)[0], 5) if in_stream else (None, 1)


def _row(payload: bytes, at: int) -> tuple[Row, int]:
    """Return the row that begins at `at`, and the place after it."""
    if payload.isascii() and (values := _short_texts(payload, at)) is not None:
        return values, len(payload)
    return _any_row(payload, at)


def _short_texts(payload: bytes, at: int) -> Row | None:
    """Return the row from `at` to the end of the message; None if it ends earlier or has other than short texts.

    The message is ASCII, so a text is shorter than 128 bytes if the first three bytes of its length are zero.
    """
    # One `split` in place of a step for each value: half of the time. A text of PostgreSQL has no zero byte, but a
    # value in binary form may have the same bytes as the head of a text. So each length is compared, and a row is
    # taken only if its texts and the marks between them are the whole message.
    before, *texts = payload[at + 2 :].decode("ascii").split("t\0\0\0")
    values: list[Value] = [text[1:] for text in texts if text and ord(text[0]) == len(text) - 1]
    (count,) = _INT16(payload, at)
    if len(values) == count == len(texts) and not before:
        return tuple(values)
    # The slower pass, for rows with NULLs or unchanged values: their marks have no length and stand between texts.
    values = [_MARKS.get(mark) for mark in before]
    marks = before
    for text in texts:
        end = ord(text[0]) + 1 if text else 1
        if end > len(text):
            return None
        values.append(text[1:end])
        if end < len(text):
            marks += text[end:]
            values += map(_MARKS.get, text[end:])
    return tuple(values) if len(values) == count and _MARKS.keys() >= set(marks) else None


_MARKS: dict[str, Value] = {"n": None, "u": UNCHANGED}
"""What stands for a column in a row without a length."""


def _any_row(payload: bytes, at: int) -> tuple[Row, int]:
    # Called for each row, and its loop for each value: the texts are nearly all values, so they come first. One unpack
    # reads the kind and the length. It is tried at the end of the message too, where other kinds have no length.
    (count,) = _INT16(payload, at)
    at += 2
    values: list[Value] = []
    append, value_of, end = values.append, _VALUE, len(payload) - 5
    for _ in range(count):
        if at <= end:
            kind, length = value_of(payload, at)
            if kind == _TEXT:
                at += 5
                append(payload[at : at + length].decode())
                at += length
                continue
        else:
            kind, length = payload[at], -1
        if kind == _NULL:
            append(None)
            at += 1
        elif kind == _TOAST:
            append(UNCHANGED)
            at += 1
        elif kind == _BINARY and length >= 0:
            at += 5
            append(payload[at : at + length])
            at += length
        else:
            raise ValueError("unknown kind of column value, or one without its length")
    # A slice that reaches beyond the end is shorter than it should be, without an error.
    if at > end + 5:
        raise ValueError("the row is cut short")
    return tuple(values), at


def _ended(payload: bytes, at: int) -> None:
    if at != len(payload):
        raise ValueError("bytes after the last field")


def new_row(payload: bytes) -> Row | None:
    """Return the row of an insert, or of an update without an old row; None for other messages. Not in a stream.

    Raises:
        DecodeError: as `decode`.
    """
    if payload[0] == _DELETE or payload[5] != _NEW:
        return None
    if payload.isascii() and (values := _short_texts(payload, 6)) is not None:
        return values
    new: Row = decode(payload).new  # type: ignore[union-attr]
    return new


def _insert(payload: bytes, in_stream: bool) -> Insert:
    # The most frequent message: `_transaction` and `_ended` without their calls.
    xid, at = (_INT32(payload, 1)[0], 5) if in_stream else (None, 1)
    (oid,) = _INT32(payload, at)
    if payload[at + 4] != _NEW:
        raise ValueError("an insert without a new row")
    new, at = _row(payload, at + 5)
    if at != len(payload):
        raise ValueError("bytes after the last field")
    return Insert(oid, new, xid)


def _update(payload: bytes, in_stream: bool) -> Update:
    xid, at = _transaction(payload, in_stream)
    (oid,) = _INT32(payload, at)
    kind = payload[at + 4]
    at += 5
    old: Row | None = None
    if kind in (_KEY, _OLD):
        old, at = _row(payload, at)
        if payload[at] != _NEW:
            raise ValueError("an update without a new row")
        at += 1
    elif kind != _NEW:
        raise ValueError("an update without a new row")
    new, at = _row(payload, at)
    _ended(payload, at)
    return Update(oid, new, old, kind == _OLD, xid)


def _delete(payload: bytes, in_stream: bool) -> Delete:
    xid, at = _transaction(payload, in_stream)
    (oid,) = _INT32(payload, at)
    kind = payload[at + 4]
    if kind not in (_KEY, _OLD):
        raise ValueError("a delete without an old row")
    old, at = _row(payload, at + 5)
    _ended(payload, at)
    return Delete(oid, old, kind == _OLD, xid)


def _begin(payload: bytes, in_stream: bool) -> Begin:
    _ended(payload, 21)
    return Begin(*_BEGIN(payload, 1))


def _commit(payload: bytes, in_stream: bool) -> Commit:
    _ended(payload, 26)
    return Commit(*_COMMIT(payload, 1)[1:])


def _origin(payload: bytes, in_stream: bool) -> Origin:
    (lsn,) = _LSN(payload, 1)
    name, at = _text(payload, 9)
    _ended(payload, at)
    return Origin(lsn, name)


def _relation(payload: bytes, in_stream: bool) -> Relation:
    xid, at = _transaction(payload, in_stream)
    (oid,) = _INT32(payload, at)
    schema, at = _text(payload, at + 4)
    table, at = _text(payload, at)
    identity = chr(payload[at])
    (count,) = _INT16(payload, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        is_key = bool(payload[at] & 1)
        name, at = _text(payload, at + 1)
        type_oid, modifier = _COLUMN_TYPE(payload, at)
        at += 8
        columns.append(RelationColumn(name, type_oid, modifier, is_key))
    _ended(payload, at)
    # The server sends an empty name for pg_catalog.
    return Relation(oid, schema or "pg_catalog", table, identity, tuple(columns), xid)


def _type(payload: bytes, in_stream: bool) -> Type:
    xid, at = _transaction(payload, in_stream)
    (oid,) = _INT32(payload, at)
    schema, at = _text(payload, at + 4)
    name, at = _text(payload, at)
    _ended(payload, at)
    return Type(oid, schema or "pg_catalog", name, xid)


def _truncate(payload: bytes, in_stream: bool) -> Truncate:
    xid, at = _transaction(payload, in_stream)
    count, options = _TRUNCATE(payload, at)
    at += 5
    # Before the ids are read: in a damaged message the count may be any number.
    _ended(payload, at + 4 * count)
    oids = Struct(f"!{count}I").unpack_from(payload, at)
    return Truncate(oids, bool(options & 1), bool(options & 2), xid)


def _message(payload: bytes, in_stream: bool) -> LogicalMessage:
    xid, at = _transaction(payload, in_stream)
    flags, lsn = _MESSAGE(payload, at)
    prefix, at = _text(payload, at + 9)
    (length,) = _INT32(payload, at)
    at += 4
    _ended(payload, at + length)
    return LogicalMessage(bool(flags & 1), lsn, prefix, payload[at:], xid)


def _stream_start(payload: bytes, in_stream: bool) -> StreamStart:
    _ended(payload, 6)
    xid, first = _STREAM_START(payload, 1)
    return StreamStart(xid, first == 1)


def _stream_stop(payload: bytes, in_stream: bool) -> StreamStop:
    _ended(payload, 1)
    return StreamStop()


def _stream_commit(payload: bytes, in_stream: bool) -> StreamCommit:
    _ended(payload, 30)
    xid, _, lsn, end_lsn, commit_us = _STREAM_COMMIT(payload, 1)
    return StreamCommit(xid, lsn, end_lsn, commit_us)


def _stream_abort(payload: bytes, in_stream: bool) -> StreamAbort:
    # Position and time are sent only with parallel streaming, which needs version 4.
    if len(payload) == 9:
        return StreamAbort(*_STREAM_ABORT(payload, 1))
    _ended(payload, 25)
    return StreamAbort(*_PARALLEL_ABORT(payload, 1))


def _begin_prepare(payload: bytes, in_stream: bool) -> BeginPrepare:
    gid, at = _text(payload, 29)
    _ended(payload, at)
    prepare_lsn, end_lsn, prepare_us, xid = _BEGIN_PREPARE(payload, 1)
    return BeginPrepare(prepare_lsn, end_lsn, prepare_us, xid, gid)


def _prepared(make: Callable[..., Message]) -> Callable[[bytes, bool], Message]:
    """Return the decoder of a message that has a flags byte and then the fields of `Prepare`."""

    def decode_prepared(payload: bytes, in_stream: bool) -> Message:
        gid, at = _text(payload, 30)
        _ended(payload, at)
        return make(*_PREPARE(payload, 1)[1:], gid)

    return decode_prepared


def _rollback_prepared(payload: bytes, in_stream: bool) -> RollbackPrepared:
    gid, at = _text(payload, 38)
    _ended(payload, at)
    _, prepare_end_lsn, rollback_end_lsn, prepare_us, rollback_us, xid = _ROLLBACK_PREPARED(payload, 1)
    return RollbackPrepared(prepare_end_lsn, rollback_end_lsn, prepare_us, rollback_us, xid, gid)


_DECODERS: dict[int, Callable[[bytes, bool], Message]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("O"): _origin,
    ord("R"): _relation,
    ord("Y"): _type,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
    ord("M"): _message,
    ord("S"): _stream_start,
    ord("E"): _stream_stop,
    ord("c"): _stream_commit,
    ord("A"): _stream_abort,
    ord("b"): _begin_prepare,
    ord("P"): _prepared(Prepare),
    ord("K"): _prepared(CommitPrepared),
    ord("p"): _prepared(StreamPrepare),
    ord("r"): _rollback_prepared,
}
