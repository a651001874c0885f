"""The SQL of the sink, and the table model behind it. Pure.

The upsert is one statement over a temporary table `penstock_batch` that COPY has filled. For each changed row it has
the key, the version, `deleted`, the values that were sent, the names of the columns that were not sent (`unsent`), and
the key of the row that has their values (`base_…`, see `penstock.event.replica.RowChange`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.event.column_types import ColumnType, Kind
from penstock.event.model import TableSchema

VERSION, DELETED, COMMITTED_AT = "_penstock_version", "_penstock_deleted", "_penstock_committed_at"
META = ((VERSION, 'text collate "C"'), (DELETED, "boolean"), (COMMITTED_AT, "timestamp with time zone"))
"""Columns that the sink adds to a replica table."""

LEDGER, TRUNCATIONS, COMPLETE = "penstock_ledger", "penstock_truncations", "penstock_complete"
COLUMNS = "penstock_columns"

LOG_COLUMNS = (
    ("event_id", "text not null"),
    ("version", 'text collate "C" not null'),
    ("op", "text not null"),
    ("committed_at", "timestamp with time zone"),
    ("transaction_id", "text"),
    ("source", "jsonb not null"),
    ("key", "jsonb"),
    ("before", "jsonb"),
    ("after", "jsonb"),
    ("not_sent", "text[] not null"),
)
"""Columns of a change log."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table of the target."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{quote(self.schema)}.{quote(self.table)}"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column that the target has. `sql` is its type as `format_type` writes it."""

    name: str
    sql: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A replica table as the catalogue describes it, without generated columns and without the columns of `META`."""

    name: TableName
    columns: tuple[TargetColumn, ...]
    key: tuple[str, ...]
    """The columns of the primary key of the source, in its order."""

    @property
    def data(self) -> tuple[TargetColumn, ...]:
        return tuple(column for column in self.columns if column.name not in self.key)

    @property
    def key_columns(self) -> tuple[TargetColumn, ...]:
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[name] for name in self.key)


def quote(name: str) -> str:
    """Return an identifier in quotes."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as a string literal, for the few statements that take no parameters."""
    return "'" + text.replace("'", "''") + "'"


def create_bookkeeping(schema: str) -> str:
    """Return the statements that create the ledger and the table of truncations."""
    ledger, truncations = TableName(schema, LEDGER), TableName(schema, TRUNCATIONS)
    return (
        f"create table if not exists {ledger} (writer text primary key, generation bigint not null, "
        "epoch bigint not null, driver text not null default '', refused jsonb not null, "
        "updated_at timestamp with time zone not null default now());"
        f'create table if not exists {truncations} (table_name text primary key, version text collate "C" not null)'
    )


def create_columns(schema: str) -> str:
    """Return the statement that creates the table with the numbers of columns; see `penstock.event.column_numbers`."""
    return (
        f"create table if not exists {TableName(schema, COLUMNS)} (table_name text, source text, number int, "
        'name text not null, since text collate "C" not null, former jsonb not null, '
        "primary key (table_name, source, number))"
    )


def create_complete(schema: str) -> str:
    """Return the statement that creates the table of the times until which the target is complete."""
    return (
        f"create table if not exists {TableName(schema, COMPLETE)} (job text, sink text, record bigint not null, "
        "complete_until timestamp with time zone not null, updated_at timestamp with time zone not null default now(), "
        "primary key (job, sink))"
    )


def mark_complete(schema: str) -> str:
    """Return the statement that sets the time of a sink, with the parameters job, sink, record and time.

    A driver that was paused may come with an older record, which changes nothing.
    """
    name = TableName(schema, COMPLETE)
    return (
        f"insert into {name} as known (job, sink, record, complete_until) values (%s, %s, %s, %s::timestamptz) "
        "on conflict (job, sink) do update set record = excluded.record, complete_until = excluded.complete_until, "
        "updated_at = now() where excluded.record > known.record"
    )


def create_replica(name: TableName, schema: TableSchema, types: Sequence[str]) -> str:
    """Return the statements that create a replica table; `types` are the types of the schema's columns."""
    columns = [f"{quote(column.name)} {sql}" for column, sql in zip(schema, types, strict=True)]
    meta = [f"{quote(column)} {sql} not null" for column, sql in META]
    key = ", ".join(quote(column.name) for column in schema.key_columns)
    # The index finds tombstones to remove without a scan of the table.
    return (
        f"create table if not exists {name} ({', '.join((*columns, *meta))}, primary key ({key}));"
        f"create index if not exists {quote(_index_name(name.table))} on {name} ({quote(COMMITTED_AT)}) "
        f"where {quote(DELETED)}"
    )


def _index_name(table: str) -> str:
    return f"{table[:40]}_penstock_tombstones"


def create_log(name: TableName) -> str:
    """Return the statement that creates a change log."""
    return f"create table if not exists {name} ({', '.join(f'{quote(n)} {sql}' for n, sql in LOG_COLUMNS)})"


def add_meta_columns(name: TableName) -> str:
    """Return the statement that gives the columns of `META` to a table that the user created."""
    # Lower than every version, and higher than the empty text of "no TRUNCATE yet".
    defaults = ("' '", "false", "'-infinity'")
    parts = [
        f"add column if not exists {quote(column)} {sql} not null default {default}"
        for (column, sql), default in zip(META, defaults, strict=True)
    ]
    return f"alter table {name} {', '.join(parts)}"


def create_batch(batch: str, table: TargetTable) -> str:
    """Return the statement that creates the temporary table of a replica table."""
    columns = [f"{quote(column.name)} {column.sql}" for column in table.columns]
    bases = [f"{quote(_base(number))} {column.sql}" for number, column in enumerate(table.key_columns)]
    meta = [f"{quote(name)} {sql}" for name, sql in META]
    # The session keeps the table for its next batch. Each commit empties it.
    return (
        f"create temporary table if not exists {quote(batch)} "
        f"({', '.join((*columns, *meta, 'unsent text[]', *bases))}) on commit delete rows"
    )


def copy_batch(batch: str, table: TargetTable) -> str:
    """Return the COPY into the temporary table: key, data, version, deleted, committed at, unsent, base."""
    names = [column.name for column in (*table.key_columns, *table.data)]
    names += [name for name, _ in META] + ["unsent"] + [_base(number) for number in range(len(table.key))]
    return f"copy {quote(batch)} ({', '.join(map(quote, names))}) from stdin"


def copy_log(name: TableName) -> str:
    """Return the COPY into a change log."""
    return f"copy {name} ({', '.join(quote(column) for column, _ in LOG_COLUMNS)}) from stdin"


def upsert(batch: str, table: TargetTable, *, with_bases: bool) -> str:
    """Return the upsert; its parameter is the version of the newest TRUNCATE, or the empty text.

    `with_bases` is needed if a row of the batch has columns that were not sent.
    """
    name, key = table.name, [quote(each) for each in table.key]
    meta = [quote(each) for each, _ in META]
    data = [quote(column.name) for column in table.data]
    values = [f"n.{each}" for each in data]
    join = ""
    if with_bases:
        values = [
            f"case when {literal(column.name)} = any(n.unsent) then o.{quote(column.name)} "
            f"else n.{quote(column.name)} end"
            for column in table.data
        ]
        match = " and ".join(f"o.{each} = n.{quote(_base(number))}" for number, each in enumerate(key))
        join = (
            f" left join {name} o on {match} and not o.{quote(DELETED)} and o.{quote(VERSION)} > %(horizon)s"
        )
    updates = ", ".join(f"{each} = excluded.{each}" for each in (*data, *meta))
    # Sort by key, so that two transactions that change the same rows take their locks in the same order.
    return (
        f"insert into {name} as t ({', '.join((*key, *data, *meta))}) "
        f"select {', '.join((*(f'n.{each}' for each in key), *values, *(f'n.{each}' for each in meta)))} "
        f"from {quote(batch)} n{join} where n.{quote(VERSION)} > %(horizon)s "
        f"order by {', '.join(f'n.{each}' for each in key)} "
        f"on conflict ({', '.join(key)}) do update set {updates} where t.{quote(VERSION)} < excluded.{quote(VERSION)}"
    )


def _base(number: int) -> str:
    return f"base_{number}"


# --- types that may become wider --------------------------------------------------------------------------------------

_WIDENING = {
    "smallint": ColumnType(Kind.INT16),
    "integer": ColumnType(Kind.INT32),
    "bigint": ColumnType(Kind.INT64),
    "real": ColumnType(Kind.FLOAT32),
    "double precision": ColumnType(Kind.FLOAT64),
}


_STORED = _WIDENING | {
    "boolean": ColumnType(Kind.BOOL),
    "text": ColumnType(Kind.STRING),
    "bytea": ColumnType(Kind.BYTES),
    "date": ColumnType(Kind.DATE),
    "time without time zone": ColumnType(Kind.TIME),
    "timestamp with time zone": ColumnType(Kind.TIMESTAMP),
    "timestamp without time zone": ColumnType(Kind.LOCAL_TIMESTAMP),
    "interval": ColumnType(Kind.INTERVAL),
    "jsonb": ColumnType(Kind.JSON),
    "uuid": ColumnType(Kind.UUID),
}


def stored_type(sql: str) -> ColumnType:
    """Return the type of the event model of a column that `penstock.io.sql.values.sql_type` has chosen, else OTHER."""
    if sql.endswith("[]"):
        return ColumnType(Kind.ARRAY, element=stored_type(sql.removesuffix("[]")))
    return _decimal(sql) if sql.startswith("numeric") else _STORED.get(sql, ColumnType(Kind.OTHER, sql))


def _decimal(sql: str) -> ColumnType:
    precision, _, scale = sql.removeprefix("numeric").strip("()").partition(",")
    return (
        ColumnType(Kind.DECIMAL, sql, int(precision), int(scale or 0))
        if precision
        else ColumnType(Kind.DECIMAL)
    )


def known_type(sql: str, wanted: ColumnType) -> ColumnType:
    """Return the type of the event model for a column of the target, to compare it with the source's.

    Types that the user chose are taken as they are: the server converts the text of a value, or refuses the row.
    """
    if wanted.kind in (Kind.INT8, Kind.UINT8, Kind.UINT16, Kind.UINT32) and sql in (
        "smallint",
        "integer",
        "bigint",
    ):
        # These have no type of their own in PostgreSQL. The next wider one holds them.
        needs = {Kind.INT8: 0, Kind.UINT8: 0, Kind.UINT16: 1, Kind.UINT32: 2}[wanted.kind]
        return wanted if ("smallint", "integer", "bigint").index(sql) >= needs else _WIDENING[sql]
    known = _WIDENING.get(sql)
    if known is not None and wanted.kind in (Kind.INT16, Kind.INT32, Kind.INT64, Kind.FLOAT32, Kind.FLOAT64):
        return known
    if wanted.kind is Kind.DECIMAL and sql.startswith("numeric"):
        return _decimal(sql)
    return wanted
