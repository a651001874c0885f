"""The statements that read a chunk of a table, its cursor, and the keys of its rows. Pure.

A chunk is read in one REPEATABLE READ transaction: lock the table, ask for the snapshot and the columns, read the
rows, ask for the end of the log. The lock comes first. A change of the table's definition would otherwise be possible
between the snapshot and the read, and a rewritten table looks empty to an older snapshot.

Rows are ordered by the primary key. The same columns stand in ORDER BY and WHERE, so both use the same comparison and
the same collation. Values of the last key are passed as literals without a type: the server takes them for the type
of the column.

A surrogate key may have equal values and NULLs. A chunk then ends with all rows of its last value, and the last chunk
has the rows with a NULL.

Source: PostgreSQL documentation, "Row Constructor Comparison", "System Information Functions" (pg_current_snapshot),
"LOCK".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, overload

import msgspec
from psycopg import sql

from penstock.io.change_streams.incremental.engine import ChunkRequest, ChunkRow
from penstock.io.postgres import messages as log
from penstock.io.postgres.catalog import KEY_INDEX
from penstock.io.postgres.initial_scan.copied_rows import rows_of
from penstock.io.postgres.record import Row, Table

BEGIN = "begin isolation level repeatable read read only"
# Column lists and row filters are read through JSON, because PostgreSQL 14 has neither and would refuse the query.
_STATES = """
select pg_current_snapshot()::text, relation.oid::int8, relation.relreplident::text, relation.relkind::text,
       pg_relation_filenode(relation.oid)::int8,
       jsonb_agg(to_jsonb(published) -> 'attnames'), jsonb_agg(to_jsonb(published) -> 'rowfilter'),
       namespace.nspname || '.' || relation.relname
from pg_class relation join pg_namespace namespace on namespace.oid = relation.relnamespace
join pg_publication_tables published on published.schemaname = namespace.nspname
     and published.tablename = relation.relname and published.pubname = any(%(publications)s)
where {where}
group by namespace.nspname, relation.relname, relation.oid, relation.relreplident, relation.relkind
"""
STATE = _STATES.format(where="namespace.nspname = %(schema)s and relation.relname = %(table)s")
"""The snapshot of the transaction, the table, what the publications send of it (columns and conditions), its name."""
STATES = _STATES.format(where="true")
"""The same for all published tables."""

COLUMNS = """
select attribute.attname, attribute.atttypid::int8, attribute.atttypmod, attribute.attgenerated <> '',
       coalesce(attribute.attnum = any((identity.indkey::int2[])[0:identity.indnkeyatts - 1]), false)
from pg_attribute attribute
join pg_class relation on relation.oid = attribute.attrelid
left join pg_index identity on identity.indrelid = relation.oid
     and case when relation.relreplident = 'i' then identity.indisreplident else identity.indisprimary end
where attribute.attrelid = %s and attribute.attnum > 0 and not attribute.attisdropped
order by attribute.attnum
"""
REWRITTEN = """
select from (select %(table)s::oid union select relid from pg_partition_tree(%(table)s::oid::regclass)) part (oid)
join pg_class relation on relation.oid = part.oid
where relation.relfilenode <> 0 and relation.relfilenode <> pg_relation_filenode(relation.oid) limit 1
"""
"""Files of a table that are newer than the transaction's snapshot. An older snapshot sees nothing in them.

The column shows the file as of the snapshot, the function as of now. Source: PostgreSQL documentation, "MVCC Caveats".
"""

END_OF_LOG = """
select pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn(),
       current_setting('wal_block_size')::int8, pg_size_bytes(current_setting('wal_segment_size'))::int8
"""
FLUSH_AT_COMMIT = "select txid_current()"
"""Gives a transaction an id, so that the server writes the log to disk when it commits.

A transaction that reads may write to the log: with checksums, for each page on which it notes that a row is committed.
Readers of the log get that when it is on disk. Without an id, or with a rollback, the server does not hurry (`xact.c`):
the next flush of a quiet server is that of the background writer, up to 15 s later (`LOG_SNAPSHOT_INTERVAL_MS`).
"""
TABLES = f"""
select distinct published.schemaname, published.tablename, exists (select from pg_index index where {KEY_INDEX}),
       greatest(relation.reltuples, 0)::int8
from pg_publication_tables published
join pg_namespace namespace on namespace.nspname = published.schemaname
join pg_class relation on relation.relnamespace = namespace.oid and relation.relname = published.tablename
where published.pubname = any(%s)
order by published.schemaname, published.tablename
"""
"""The published tables, whether each has a key to divide it by, and about how many rows; 0 if that is not known."""

BLOCKS = f"""
select namespace.nspname || '.' || relation.relname,
       coalesce(max(pg_relation_size(coalesce(leaf.relid, relation.oid))), 0) / current_setting('block_size')::int8,
       exists (select from pg_index index where {KEY_INDEX})
from pg_class relation join pg_namespace namespace on namespace.oid = relation.relnamespace
left join lateral pg_partition_tree(relation.oid) leaf on relation.relkind = 'p' and leaf.isleaf
where namespace.nspname || '.' || relation.relname = any(%(tables)s)
group by relation.oid, namespace.nspname, relation.relname
"""
"""The number of blocks of tables, and whether each has a key. Of a partitioned table it is the largest number of a
partition: a range of blocks means these blocks of every partition."""

REWRITTEN_OF_SEVERAL = """
select distinct namespace.nspname || '.' || relation.relname
from pg_class relation join pg_namespace namespace on namespace.oid = relation.relnamespace
cross join lateral (select relation.oid union select relid from pg_partition_tree(relation.oid)) part (oid)
join pg_class file on file.oid = part.oid
where namespace.nspname || '.' || relation.relname = any(%(tables)s)
and file.relfilenode <> 0 and file.relfilenode <> pg_relation_filenode(file.oid)
"""
"""The tables of which `REWRITTEN` finds a file."""

_encode = msgspec.json.Encoder().encode

CTID = "ctid"
_SHORT_HEADER, _LONG_HEADER = 24, 40


class VisibleTransactions(NamedTuple):
    """The result of `pg_current_snapshot`. Transactions below `low` are visible, from `high` on they are not."""

    low: int
    high: int
    running: frozenset[int]

    def sees(self, transaction: int) -> bool:
        """Whether a transaction that committed is visible."""
        return transaction < self.low or (transaction < self.high and transaction not in self.running)


def parse_snapshot(text: str) -> VisibleTransactions:
    """Return the snapshot of a text such as ``750:755:750,752``."""
    low, high, running = text.split(":")
    return VisibleTransactions(int(low), int(high), frozenset(map(int, filter(None, running.split(",")))))


def end_of_records(insert_lsn: int, block: int, segment: int) -> int:
    """Return the end of the last record before a position where the next one would be written.

    The server counts the header of a page that has no record yet. A reader of the log stays before it until a record
    comes, which may be never.
    """
    header = _LONG_HEADER if insert_lsn % segment == _LONG_HEADER else _SHORT_HEADER
    return insert_lsn - header if insert_lsn % block == header else insert_lsn


def published_columns(
    columns: Sequence[tuple[str, int, int, bool, bool]], lists: Sequence[Sequence[str] | None]
) -> list[tuple[str, int, int, bool, bool]]:
    """Return the columns that the publications send, from rows of `COLUMNS`. `lists`: those that each publication
    names.
    """
    named = [names for names in lists if names is not None]
    # PostgreSQL 14 has no lists and sends no generated columns. Later versions always name the columns.
    if not named:
        return [column for column in columns if not column[3]]
    wanted = {name for names in named for name in names}
    return [column for column in columns if column[0] in wanted]


def row_conditions(filters: Sequence[str | None]) -> list[str]:
    """Return the conditions of the rows that publications send, from a row of `STATE`."""
    # One publication without a condition sends every row.
    return [] if None in filters else [" or ".join(f"({each})" for each in filters)]


def relation_of(
    oid: int, schema: str, name: str, identity: str, columns: Sequence[tuple[str, int, int, bool, bool]]
) -> log.Relation:
    """Return the table as the log describes it, so that rows and changes have equal tables."""
    return log.Relation(
        oid,
        schema,
        name,
        identity,
        tuple(
            log.RelationColumn(
                column, type_oid, modifier, identity == "f" or (identity != "n" and in_identity)
            )
            for column, type_oid, modifier, _, in_identity in columns
        ),
    )


def key_places(table: Table) -> list[int]:
    """Return the places of the key columns in a row, in the order of the key; empty if there is no key."""
    keyed = [
        (column.key_position, place) for place, column in enumerate(table.columns) if column.key_position
    ]
    return [place for _, place in sorted(keyed)]


def _json(value: Any) -> str:
    # msgspec, because this runs twice for each row: `json.dumps` took a third of the time of a chunk.
    return _encode(value).decode()


def key_name(key: Sequence[Any]) -> str:
    """Return a key, values as text, as a text."""
    return _json(key)


def rows_in_blocks(table: Table, kind: str, conditions: Sequence[str], start: int, end: int) -> sql.Composed:
    """Return the statement for the rows in blocks from `start`, inclusive, to `end`, exclusive.

    From PostgreSQL 14 on the server reads only these blocks ("Tid Range Scan").
    """
    names = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
    given = [sql.SQL(" and ({})").format(sql.SQL(each)) for each in conditions]
    return sql.SQL("copy (select {} from {}{} where ctid >= {}::tid and ctid < {}::tid{}) to stdout").format(
        names,
        only(kind),
        sql.Identifier(table.schema, table.name),
        sql.Literal(f"({start},0)"),
        sql.Literal(f"({end},0)"),
        sql.SQL("").join(given),
    )


def locked(schema: str, table: str) -> sql.Composed:
    """Return the statement that keeps a table, with its partitions, from being rewritten or dropped."""
    return sql.SQL("lock table {} in access share mode").format(sql.Identifier(schema, table))


def only(kind: str) -> sql.SQL:
    """Return ``only`` for a table of this relkind, if rows of other tables would come with its own."""
    # Inherited tables are published under their own names, partitions under the name of the partitioned table.
    return sql.SQL("" if kind == "p" else "only ")


class SnapshotRow(NamedTuple):
    """A row of a chunk before it has its place in the log."""

    table: Table
    row: Row


class ChunkStatement:
    """The statement of one chunk, and how its rows are read.

    `order`: the columns that the chunks are ordered by. `ties`: rows may have equal values or NULLs there.
    """

    def __init__(
        self, table: Table, request: ChunkRequest, *, kind: str, file: int, conditions: Sequence[str]
    ) -> None:
        """`kind`: relkind. `file`: of the table; another one after a rewrite. `conditions`: of the publications."""
        self.table = table
        self._request, self._conditions = request, [each for each in (*conditions, request.condition) if each]
        self._key = key_places(table)
        key = [table.columns[place].name for place in self._key]
        self.order = list(request.surrogate_key) or key or [CTID]
        self.ties = bool(request.surrogate_key)
        names = [column.name for column in table.columns]
        # Columns of the order may be unpublished; they stand at the end, and are cut off from the row.
        self._selected = [*names, *(name for name in self.order if name not in names)]
        self._order_places = list(map(self._selected.index, self.order))
        self._only = only(kind)
        self._mark = [*self.order, str(file)] if self.order == [CTID] else self.order
        self._mark_text = _json(self._mark)
        self._after: list[str] | None = None
        self.restarted = False
        if request.cursor:
            mark, after = json.loads(request.cursor)
            # With another key, or another file after a rewrite, the old place means nothing.
            self.restarted = mark != self._mark
            self._after = None if self.restarted else after

    def rows_after(self) -> sql.Composed:
        """Return the statement for rows after the cursor."""
        columns = list(map(sql.Identifier, self.order))
        conditions = [sql.SQL("{} is not null").format(column) for column in columns] if self.ties else []
        if self._after is not None:
            conditions.append(_compare(columns, ">", [self._after]))
        limit = "fetch first {} rows with ties" if self.ties else "limit {}"
        ending = sql.SQL("order by {} " + limit).format(
            sql.SQL(", ").join(columns), sql.Literal(self._request.size)
        )
        return self._select(conditions, ending)

    def rows_with_null(self) -> sql.Composed:
        """Return the statement for rows that have a NULL in the surrogate key."""
        either = sql.SQL(" or ").join(
            sql.SQL("{} is null").format(sql.Identifier(name)) for name in self.order
        )
        return self._select([sql.SQL("({})").format(either)], sql.SQL(""))

    def rows_of_keys(self) -> sql.Composed:
        """Return the statement for rows with the keys of the request."""
        columns = [sql.Identifier(self.table.columns[place].name) for place in self._key]
        return self._select([_compare(columns, "in", list(map(json.loads, self._request.keys)))], sql.SQL(""))

    def _select(self, conditions: Sequence[sql.Composable], ending: sql.Composable) -> sql.Composed:
        selected = sql.SQL(", ").join(map(sql.Identifier, self._selected))
        # Conditions are SQL that users wrote, in the publication or in a signal.
        given = [sql.SQL("({})").format(sql.SQL(each)) for each in self._conditions]
        every = [*conditions, *given]
        where = sql.SQL("where {}").format(sql.SQL(" and ").join(every)) if every else sql.SQL("")
        table = sql.Identifier(self.table.schema, self.table.name)
        return sql.SQL("copy (select {} from {}{} {} {}) to stdout").format(
            selected, self._only, table, where, ending
        )

    @property
    def selects_more(self) -> bool:
        """Whether an answer has more columns than the table: columns of the order that are not published."""
        return len(self._selected) > len(self.table.columns)

    def chunk_row(self, answer: Row, *, null: bool = False) -> ChunkRow:
        """Return the row of an answer."""
        row = answer[: len(self.table.columns)]
        own = tuple([row[place] for place in self._key]) if self._key else None
        # Rows with a NULL end the last chunk, so no chunk continues behind them.
        after = None if null else [answer[place] for place in self._order_places]
        cursor = f"[{self._mark_text},{_json(after)}]"
        return ChunkRow(own, cursor, "" if own is None else key_name(own), SnapshotRow(self.table, row))


class ChunkLines(Sequence[ChunkRow]):
    """The rows of an answer as the server has sent them, which are made when they are asked for.

    A consumer that reads whole columns takes `lines`, of which there are as many as rows, and no row is made.
    """

    def __init__(self, statement: ChunkStatement, lines: bytes, size: int, *, null: bool = False) -> None:
        self.statement, self.lines, self._size, self._null = statement, lines, size, null

    @cached_property
    def _rows(self) -> list[ChunkRow]:
        return [self.statement.chunk_row(answer, null=self._null) for answer in rows_of(self.lines)]

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> ChunkRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[ChunkRow]: ...
    def __getitem__(self, index: int | slice) -> ChunkRow | list[ChunkRow]:
        if index == -1 and "_rows" not in self.__dict__:  # the next chunk begins after it
            last = self.lines[self.lines.rindex(b"\n", 0, -1) + 1 :] if self._size > 1 else self.lines
            (answer,) = rows_of(last)
            return self.statement.chunk_row(answer, null=self._null)
        return self._rows[index]


def _compare(
    columns: Sequence[sql.Identifier], operator: str, values: Sequence[Sequence[str]]
) -> sql.Composed:
    """Return ``(columns) operator (values)``; for "in" several rows of values."""
    left = sql.SQL(", ").join(columns)
    rows = [sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, row))) for row in values]
    right = sql.SQL("({})").format(sql.SQL(", ").join(rows)) if operator == "in" else rows[0]
    return sql.SQL("({}) {} {}").format(left, sql.SQL(operator), right)
