"""`ChangeEvent` and the values it consists of. Pure; `penstock.event` is the public name of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from penstock.compat import StrEnum
from penstock.event.column_types import ColumnType


class Op(StrEnum):
    """The kind of a change of a row, a table or the stream."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    READ = "READ"
    """A row of a snapshot: it existed at `timestamp`."""
    TRUNCATE = "TRUNCATE"
    """All rows of the table were removed. Key and images are None."""
    MESSAGE = "MESSAGE"
    """A message that was written into the log of the database; see `ChangeEvent.message`."""
    SCHEMA = "SCHEMA"
    """The columns of the table are `schema` from here on. Key and images are None."""


class Source(msgspec.Struct, frozen=True, array_like=True):
    """The origin of an event. A part that the system does not have is the empty string.

    Args:
        system: spanner, bigtable, postgresql, ydb.
        server: the part above the database, such as project and instance (``my-project/main``) or the logical
            server name.
        stream: the change stream, publication or changefeed.
        capture: the source's own name for which values it sends, such as NEW_ROW or FULL.
        materialized: the event comes from `MaterializeRows`, so its images are whole rows with every `capture`.
    """

    system: str
    server: str = ""
    database: str = ""
    schema: str = ""
    table: str = ""
    stream: str = ""
    capture: str = ""
    materialized: bool = False

    @property
    def qualified_table(self) -> str:
        """The table with its schema, if it has one, as filters and messages name it."""
        return f"{self.schema}.{self.table}" if self.schema else self.table


class Version(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The position of a change in the order of its source. Versions of one source compare as tuples.

    Args:
        order: the commit timestamp in nanoseconds, or another number that grows with each commit (PostgreSQL: the
            LSN of the commit).
        transaction: the transaction's id.
        sequence: the ordinal of the record in its transaction; texts of one source have the same length.
        index: the ordinal of the row in its record.

    Two changes of one source never have equal versions; in Bigtable, which has no transactions over rows, no two
    changes of one row.
    """

    order: int
    transaction: str = ""
    sequence: str = ""
    index: int = 0


class Transaction(msgspec.Struct, frozen=True, array_like=True):
    """The transaction of an event. A number that the source does not send is None.

    `records` and `partitions` count the records of the transaction in the whole stream. `last_in_partition` is True on
    the last record of the transaction in its partition. `tag` is the application's name for the transaction. `origin`
    is the server where a replicated transaction was first committed. `system` is True for a transaction of the database
    itself, such as a deletion by a time-to-live policy.

    PostgreSQL only: `origin_position` is the position of the commit in the log of `origin`. `previous_end` is the
    position where the transaction before this one ended. `committed` is the commit timestamp in nanoseconds
    if it differs from `ChangeEvent.timestamp`, which never falls along the log.
    """

    id: str
    records: int | None = None
    partitions: int | None = None
    last_in_partition: bool | None = None
    tag: str = ""
    origin: str = ""
    system: bool = False
    origin_position: int | None = None
    previous_end: int | None = None
    committed: int | None = None


class TransactionPlace(msgspec.Struct, frozen=True, array_like=True):
    """The ordinals of an event among the records of its transaction, for formats with transaction metadata.

    `records` of the transaction come before the event, `table_records` of them from its table. `boundary` is BEGIN or
    END for the events around a transaction, and empty for all others. `counts` of an END are (table, records) of the
    transaction.
    """

    records: int
    table_records: int = 0
    boundary: str = ""
    counts: tuple[tuple[str, int], ...] = ()


class Message(msgspec.Struct, frozen=True, array_like=True):
    """A message that an application wrote into the log of its database."""

    prefix: str
    content: bytes
    transactional: bool = True


class CellChange(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a Bigtable row change, with the names of google.bigtable.v2.Mutation.

    `mod`: SET_CELL, DELETE_CELLS, DELETE_FAMILY, ADD_TO_CELL, MERGE_TO_CELL or UNKNOWN. `start_us` (inclusive) and
    `end_us` (exclusive; None: no end) are the cell timestamps that DELETE_CELLS removes, in microseconds. For the other
    kinds `start_us` is the timestamp of the cell. `value` is an integer only for the input of an aggregate.
    """

    mod: str
    family: str = ""
    qualifier: bytes = b""
    start_us: int = 0
    end_us: int | None = None
    value: bytes | int | None = None

    @property
    def column(self) -> str | None:
        """The cell's column in images, ``family:qualifier``; None if the entry names no column."""
        if self.mod in ("DELETE_FAMILY", "UNKNOWN"):
            return None
        return column_name(self.family, self.qualifier)


def column_name(family: str, qualifier: bytes) -> str:
    """Return ``family:qualifier``, with bytes that are not UTF-8 as ``\\xNN``."""
    return f"{family}:{qualifier.decode('utf-8', 'backslashreplace')}"


class Column(msgspec.Struct, frozen=True, array_like=True):
    """A column of a table.

    `nullable` is None if the source does not say. `key_position` is 1 for the first column of the primary key, and None
    for a column outside of it. `default` is the expression of the default in the words of the source, None if there is
    none or the source does not say. `number`: which a rename keeps, None if the source does not say.
    """

    name: str
    type: ColumnType
    nullable: bool | None = None
    key_position: int | None = None
    default: str | None = None
    number: int | None = None


class TableSchema:
    """The columns that a source knows of a table, in the order of the table.

    Immutable, equal by value. All events of a table share it, so it keeps its hash and, for coders, its encoded form.
    """

    # A plain class: the generated hash of a Struct walks all columns each time, which costs more than the event.
    __slots__ = ("_hash", "columns", "encoded", "key_columns", "names")

    columns: tuple[Column, ...]
    names: tuple[str, ...]
    key_columns: tuple[Column, ...]
    """The columns of the primary key, in the order of the key."""
    encoded: bytes | None
    """For `penstock.event.coder` only."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self.columns = tuple(columns)
        self.names = tuple(column.name for column in self.columns)
        keys = [column for column in self.columns if column.key_position is not None]
        self.key_columns = tuple(sorted(keys, key=lambda column: column.key_position or 0))
        self._hash = hash(self.columns)
        self.encoded = None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, TableSchema) and self._hash == other._hash and self.columns == other.columns

    def __hash__(self) -> int:
        return self._hash

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __repr__(self) -> str:
        return f"TableSchema({', '.join(f'{c.name} {c.type.native or c.type.kind}' for c in self.columns)})"

    def __reduce__(self) -> tuple[type[TableSchema], tuple[tuple[Column, ...]]]:
        return TableSchema, (self.columns,)


NO_COLUMNS = TableSchema(())
"""The schema of events that belong to no table, such as messages."""


class SchemaChange(msgspec.Struct, frozen=True, array_like=True):
    """A change of the columns of a table, in a SCHEMA event. The new columns are in `ChangeEvent.schema`.

    `before`: the columns until then, None if the table was not seen before. Of a column it has name, type and place in
    the key. `shard`: each shard of a sink gets a copy of the event, and this is the number of its shard, from 0 on.
    """

    before: tuple[Column, ...] | None
    shard: int = 0


Image = dict[str, Any]
"""Column name to value. A column that is absent was not sent; None is NULL. Treat it as immutable."""


def event_id(version: Version, key: Image | None) -> str:
    """Return the id of the event with this version and key; see `ChangeEvent.id`."""
    text = f"{version.order}-{version.transaction}-{version.sequence}-{version.index}"
    if version.transaction:
        return text
    # Without a transaction (Bigtable, and rows of a snapshot) two rows may have one version. The digest keeps the key
    # itself out of logs.
    return f"{text}-{blake2b(repr(key).encode(), digest_size=8).hexdigest()}"


class ChangeEvent(msgspec.Struct, frozen=True, gc=False):
    """One changed row.

    - `timestamp`: commit time (for READ: the time of the snapshot), nanoseconds since the epoch.
    - `key`: the primary key, columns in the order of the key, values in the form of `penstock.event.keys`; None for a
      table without one, and if there is no row.
    - `before`, `after`: the row before and after the change: the columns that the source sends, key columns included.
      `before` is None if there was no row, or if the source sent nothing of it. `after` is None if no row remains.
    - `version`: total order of the changes of one source. The rows of one table in a snapshot share a version.
    - `schema`: all columns that the source knows, sent or not.
    - `cells`: Bigtable only: the entries of the change in their order. They say what an image cannot: deletions of
      families and of ranges, and the timestamps of cells.
    """

    # gc=False: millions of events are alive in a large bundle, and none of them can be part of a cycle.

    source: Source
    op: Op
    timestamp: int
    key: Image | None
    before: Image | None
    after: Image | None
    version: Version
    schema: TableSchema
    transaction: Transaction | None = None
    message: Message | None = None
    cells: tuple[CellChange, ...] = ()
    user: str = ""
    """Who made the change, where the source says so (YDB's user SID)."""
    incremental: bool = False
    """PostgreSQL only: a READ of an incremental snapshot, which may come after changes of its row."""
    place: TransactionPlace | None = None
    """Only `AddTransactionMetadata` sets it. BEGIN and END are events with the operation MESSAGE and no message."""
    schema_change: SchemaChange | None = None
    """Only `AddSchemaEvents` sets it, in events with the operation SCHEMA. Their version is the version of the change
    that follows them."""

    @property
    def unavailable(self) -> tuple[str, ...]:
        """Columns that have a value in the row, which the source did not send (not watched, not changed, TOAST).

        Of a DELETE it is the row before the change, of any other event the row after it. Columns of the schema only: a
        source that names no unwatched columns cannot list them.
        """
        image = self.before if self.op is Op.DELETE else self.after
        if image is None and self.key is None:
            return ()
        present: Mapping[str, Any] = image if image is not None else self.key or {}
        return tuple(name for name in self.schema.names if name not in present)

    @property
    def id(self) -> str:
        """A text that identifies the event among all events of its source; equal for a repeated delivery.

        The copies of a SCHEMA event have one id.
        """
        if self.schema_change is not None:
            return f"{event_id(self.version, None)}-schema"
        return event_id(self.version, self.key)

    def __repr__(self) -> str:  # no key and no images: they are someone's data
        return f"<{self.op} of {self.source.table or self.source.system} at {self.timestamp}>"
