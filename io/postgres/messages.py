"""The messages of PostgreSQL's logical replication output plugin `pgoutput`, versions 1 to 4. Pure.

Times are microseconds since 2000-01-01T00:00:00Z, as the server sends them. Transaction ids are 32-bit here: the server
sends them without their epoch. LSNs are byte positions in the write-ahead log.

Source: PostgreSQL documentation, "Logical Replication Message Formats" and "Logical Streaming Replication Parameters".
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Unchanged(Enum):
    """The value of a large column that the change did not touch. The server does not send it (TOAST)."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = Unchanged.UNCHANGED
"""Stands for a value that the server did not send, because the change left it as it is. It is not NULL."""

Value = str | bytes | None | Unchanged
"""A column of a row: text form, binary form, NULL, or not sent because it is large and did not change."""

Row = tuple[Value, ...]
"""The columns in the order of the `Relation`. In an old row that holds only the replica identity, others are None."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """A transaction starts. `final_lsn`: the position of its Commit message. `xid`: 32 bits."""

    final_lsn: int
    commit_us: int
    xid: int


class Commit(msgspec.Struct, frozen=True, tag=True):
    """The transaction is committed. A reader that has it all continues at `end_lsn`, not at `lsn`."""

    lsn: int
    end_lsn: int
    commit_us: int


class Origin(msgspec.Struct, frozen=True, tag=True):
    """The transaction was first committed on another server, at `lsn` there."""

    lsn: int
    name: str


class RelationColumn(msgspec.Struct, frozen=True, tag=True):
    """A column of a published table. `is_key`: part of the replica identity; under FULL all columns are.

    `modifier` is the type modifier (`atttypmod`), -1 for none.
    """

    name: str
    type_oid: int
    modifier: int
    is_key: bool


class Relation(msgspec.Struct, frozen=True, tag=True):
    """The columns of a table. It precedes the table's first row and the first row after a change of its columns.

    `replica_identity`: 'd' default (primary key), 'n' nothing, 'f' full, 'i' an index. `xid`: the streamed transaction
    that the message belongs to; None outside of one. The same holds for every other message that has it.
    """

    oid: int
    schema: str
    table: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]
    xid: int | None = None


class Type(msgspec.Struct, frozen=True, tag=True):
    """The name of a type that users defined. It precedes the `Relation` of a table that uses it."""

    oid: int
    schema: str
    name: str
    xid: int | None = None


# The messages of rows are not garbage-collected: they hold no reference that could lead back to them, and there are
# many of them.


class Insert(msgspec.Struct, frozen=True, tag=True, gc=False):
    relation_oid: int
    new: Row
    xid: int | None = None


class Update(msgspec.Struct, frozen=True, tag=True, gc=False):
    """`old`: None if the replica identity did not change and is not FULL. `old_is_full`: it has every column."""

    relation_oid: int
    new: Row
    old: Row | None = None
    old_is_full: bool = False
    xid: int | None = None

    @property
    def row(self) -> Row:
        """`new` with its whole key: a large value of the key that did not change is sent in the old row only."""
        if self.old is None or self.old_is_full or UNCHANGED not in self.new:
            return self.new
        return tuple(
            old if value is UNCHANGED and old is not None else value
            for value, old in zip(self.new, self.old, strict=True)
        )


class Delete(msgspec.Struct, frozen=True, tag=True, gc=False):
    """`old_is_full`: the old row has every column (replica identity FULL), not only the columns of the identity."""

    relation_oid: int
    old: Row
    old_is_full: bool = False
    xid: int | None = None


class Truncate(msgspec.Struct, frozen=True, tag=True):
    relation_oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool
    xid: int | None = None


class LogicalMessage(msgspec.Struct, frozen=True, tag=True):
    """A message of an application (`pg_logical_emit_message`). One without a transaction is not rolled back."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes
    xid: int | None = None


class StreamStart(msgspec.Struct, frozen=True, tag=True):
    """A part of a large transaction that is still running. Until `StreamStop` all messages belong to transactions of
    it."""

    xid: int
    first_segment: bool


class StreamStop(msgspec.Struct, frozen=True, tag=True):
    pass


class StreamCommit(msgspec.Struct, frozen=True, tag=True):
    xid: int
    lsn: int
    end_lsn: int
    commit_us: int


class StreamAbort(msgspec.Struct, frozen=True, tag=True):
    """A streamed transaction, or with another `subxid` one of its savepoints, was rolled back.

    `lsn` and `abort_us` are sent only in version 4 with parallel streaming.
    """

    xid: int
    subxid: int
    lsn: int | None = None
    abort_us: int | None = None


class BeginPrepare(msgspec.Struct, frozen=True, tag=True):
    """A transaction starts that was prepared for a two-phase commit under the name `gid`."""

    prepare_lsn: int
    end_lsn: int
    prepare_us: int
    xid: int
    gid: str


class Prepare(msgspec.Struct, frozen=True, tag=True):
    prepare_lsn: int
    end_lsn: int
    prepare_us: int
    xid: int
    gid: str


class StreamPrepare(msgspec.Struct, frozen=True, tag=True):
    prepare_lsn: int
    end_lsn: int
    prepare_us: int
    xid: int
    gid: str


class CommitPrepared(msgspec.Struct, frozen=True, tag=True):
    lsn: int
    end_lsn: int
    commit_us: int
    xid: int
    gid: str


class RollbackPrepared(msgspec.Struct, frozen=True, tag=True):
    prepare_end_lsn: int
    rollback_end_lsn: int
    prepare_us: int
    rollback_us: int
    xid: int
    gid: str


Message = (
    Begin
    | Commit
    | Origin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | StreamPrepare
    | CommitPrepared
    | RollbackPrepared
)
