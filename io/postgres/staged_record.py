"""A log record in a staged batch: the event of an error output is made of it, which is seldom needed. Pure.

shared, origin = shared_of("shop", "changes", table), origin_of(record)
event = event_of(msgspec.Raw(encode(shared)), msgspec.Raw(encode(origin)))
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.event.model import ChangeEvent
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.logged_rows import LoggedRows
from penstock.io.postgres.record import ChangeKind, LogRecord, LogTransaction, Table

LOADER, MESSAGE_LOADER = f"{__name__}:event_of", f"{__name__}:event_of_message"
"""See `penstock.io.staging.formatted_run`."""


class _Shared(msgspec.Struct, array_like=True):
    database: str
    stream: str
    table: Table


class _Origin(msgspec.Struct, array_like=True):
    kind: ChangeKind
    event_timestamp: int
    transaction: LogTransaction | None
    sequence: int
    lsn: int
    last: bool
    new: tuple[str | None, ...] | None
    old: tuple[str | None, ...] | None
    old_is_full: bool
    incremental: bool


def shared_of(database: str, stream: str, table: Table) -> tuple[Any, ...]:
    """Return what the records of a table share."""
    return database, stream, table


def origin_of(record: LogRecord) -> tuple[Any, ...]:
    """Return the rest of a change of a row, all of whose values were sent."""
    return (
        record.kind,
        record.event_timestamp,
        record.transaction,
        record.sequence,
        record.lsn,
        record.last,
        record.new,
        record.old,
        record.old_is_full,
        record.incremental,
    )


class _Message(msgspec.Struct, array_like=True):
    event_timestamp: int
    transaction: LogTransaction
    sequence: int
    lsn: int
    last: bool
    payload: bytes


def message_of(rows: LoggedRows, number: int) -> tuple[Any, ...]:
    """Do the same for a row as the server has sent it."""
    lsn, payload = rows.messages[number]
    return (
        rows.timestamps[number],
        rows.transactions[number],
        rows.sequences[number],
        lsn,
        rows.lasts[number],
        payload,
    )


def event_of_message(shared: msgspec.Raw, origin: msgspec.Raw) -> ChangeEvent:
    """Return the event of `message_of`."""
    of = msgspec.msgpack.decode(shared, type=_Shared)
    own = msgspec.msgpack.decode(origin, type=_Message)
    message, tables = (own.lsn, own.payload), {own.payload[1:5]: of.table}
    rows = LoggedRows.of_one(
        own.transaction, own.event_timestamp, tables, [message], [own.sequence], ended=own.last
    )
    (event,) = EventConverter("", of.database, of.stream)(rows[0])
    return event


def event_of(shared: msgspec.Raw, origin: msgspec.Raw) -> ChangeEvent:
    """Return the event of a record."""
    of = msgspec.msgpack.decode(shared, type=_Shared)
    own = msgspec.msgpack.decode(origin, type=_Origin)
    record = LogRecord(
        own.kind,
        own.event_timestamp,
        own.transaction,
        own.sequence,
        own.lsn,
        own.last,
        of.table,
        own.new,
        own.old,
        own.old_is_full,
        incremental=own.incremental,
    )
    (event,) = EventConverter("", of.database, of.stream)(record)
    return event
