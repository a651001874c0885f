"""The native record of a PostgreSQL change: one row, truncated table or message, as the log has it. Pure.

Values of rows are the texts that the server sent. `events` and `row_values` turn them into Python values.
"""

from __future__ import annotations

import msgspec

from penstock.compat import StrEnum
from penstock.event.column_types import ColumnType
from penstock.helpers import sent_once
from penstock.io.postgres.messages import UNCHANGED, Row, Unchanged, Value

__all__ = [
    "UNCHANGED",
    "ChangeKind",
    "LogRecord",
    "LogTransaction",
    "Row",
    "Table",
    "TableColumn",
    "Unchanged",
    "Value",
]

_POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01T00:00:00Z in microseconds since 1970, where the server's times begin."""


class ChangeKind(StrEnum):
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    TRUNCATE = "TRUNCATE"
    MESSAGE = "MESSAGE"
    READ = "READ"
    """A row of a snapshot."""


class TableColumn(msgspec.Struct, frozen=True, array_like=True):
    """A published column.

    Args:
        in_identity: part of the replica identity, under FULL every column.
        key_position: 1 for the first column of the primary key (of the identity index under INDEX; without both of
            a unique index that holds no NULL), None outside of it.
        nullable: None if the catalogue no longer has the column.
        default: the expression of the default.
        number: which a rename keeps; None if the catalogue has other columns by now.
    """

    name: str
    type: ColumnType
    type_oid: int
    in_identity: bool
    key_position: int | None = None
    nullable: bool | None = None
    default: str | None = None
    number: int | None = None


@sent_once
class Table(msgspec.Struct, frozen=True, array_like=True):
    """A table with its columns at the time of a change. `replica_identity`: DEFAULT, NOTHING, FULL or INDEX."""

    oid: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[TableColumn, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


class LogTransaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The transaction of a record.

    Args:
        id: the 64-bit transaction id.
        commit_lsn: the position of its commit record; it orders transactions.
        commit_timestamp: nanoseconds since 1970.
        origin: the replication origin, if it was first committed on another server, at `origin_lsn` there.
        previous_end_lsn: where the transaction before it ended, 0 if that is not known.
    """

    id: int
    commit_lsn: int
    commit_timestamp: int
    origin: str = ""
    origin_lsn: int = 0
    previous_end_lsn: int = 0


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One change.

    - `event_timestamp`: nanoseconds. The commit timestamp of this transaction, or of an earlier one if that is later:
      the server takes the timestamp of a commit a moment before its position in the log, so timestamps of neighbours
      may be swapped.
    - `transaction`: None for a READ, and for a message that was written outside of its transaction.
    - `sequence`: the place in the transaction, from 1; `last`: no record of the transaction follows.
    - `lsn`: the position of the change. Several rows may have one (COPY).
    - `new`, `old`: values in the order of `table.columns`. `old` has the columns of the replica identity; `old_is_full`
      says that these are all columns.
    - `cascade`, `restart_identity`: of a TRUNCATE; one that names several tables is one record for each.
    - `prefix`, `content`: of a MESSAGE.
    - A READ has no transaction. Its `lsn` is the place in the log where the reader emits it: the row contains every
      earlier change of its key. `sequence` tells apart the rows that are emitted there; a row of an initial snapshot
      has the same one when it is read again. `incremental`: a signal has asked for the row; otherwise it is of an
      initial snapshot.
    """

    kind: ChangeKind
    event_timestamp: int
    transaction: LogTransaction | None
    sequence: int
    lsn: int
    last: bool
    table: Table | None = None
    new: Row | None = None
    old: Row | None = None
    old_is_full: bool = False
    cascade: bool = False
    restart_identity: bool = False
    prefix: str = ""
    content: bytes = b""
    incremental: bool = False

    @property
    def commit_timestamp(self) -> int:
        """The time of the record in a pipeline, in nanoseconds: `event_timestamp`, which never falls along the log."""
        return self.event_timestamp

    def __repr__(self) -> str:  # no values: they are someone's data
        return f"<{self.kind} of {self.table or self.prefix} at {format_lsn(self.lsn)}>"


def read_record(table: Table, row: Row) -> LogRecord:
    """Return the record of a row that was read from its table, without a place in the log."""
    return LogRecord(ChangeKind.READ, 0, None, 1, 0, True, table, row)


def nanoseconds(server_us: int) -> int:
    """Return a time of the server, microseconds since 2000, as nanoseconds since 1970."""
    return (server_us + _POSTGRES_EPOCH_US) * 1000


def format_lsn(lsn: int) -> str:
    """Return a position in the log in PostgreSQL's form, such as ``0/16B3748``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Return the position that a text such as ``0/16B3748`` names.

    Raises:
        ValueError: it has another form.
    """
    high, slash, low = text.partition("/")
    if not slash or not 1 <= len(high) <= 8 or not 1 <= len(low) <= 8:
        raise ValueError(f"{text!r} is not a position in the log, such as 0/16B3748")
    return int(high, 16) << 32 | int(low, 16)


def widen_transaction_id(xid: int, near: int) -> int:
    """Return the 64-bit id of the 32-bit `xid` that is nearest to the 64-bit id `near`.

    The log has ids without their epoch. Ids in use at one time lie within 2^31 of each other.
    """
    distance = (xid - near) & 0xFFFFFFFF
    return near + (distance if distance < 1 << 31 else distance - (1 << 32))
