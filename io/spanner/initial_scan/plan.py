"""Plans the tables, columns and key ranges that a snapshot reads. Pure: rows of INFORMATION_SCHEMA in, values out.

A *schema* here is what the queries of this module return, read at the timestamp of the snapshot. They are legal in both
dialects, except `CHANGE_STREAMS`, which quotes a reserved word.

Source: Cloud Spanner documentation, "Information schema for GoogleSQL-dialect databases" and "… PostgreSQL-dialect
databases".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from penstock.errors import SetupError
from penstock.io.change_streams.incremental.new_tables import KnownTables
from penstock.io.spanner.initial_scan.frontier import KeyRange, Table
from penstock.suggestions import did_you_mean
from penstock.timestamps import NANOS, format_timestamp

Query: TypeAlias = Callable[[str], list[list[Any]]]
"""Runs a statement and returns its rows as JSON values."""

DIALECT = (
    "SELECT option_value FROM information_schema.database_options WHERE option_name = 'database_dialect'"
)
VERSION_RETENTION = (
    "SELECT option_value FROM information_schema.database_options "
    "WHERE option_name = 'version_retention_period'"
)
TABLES = "SELECT table_schema, table_name, table_type FROM information_schema.tables"
COLUMNS = (
    "SELECT table_schema, table_name, column_name, ordinal_position, is_generated, spanner_type "
    "FROM information_schema.columns"
)
KEY_COLUMNS = (
    "SELECT table_schema, table_name, column_name, ordinal_position FROM information_schema.index_columns "
    "WHERE index_type = 'PRIMARY_KEY'"
)
# `all` is reserved in both dialects, and each quotes it in another way.
CHANGE_STREAMS = {
    "GOOGLE_STANDARD_SQL": "SELECT change_stream_name, `all` FROM information_schema.change_streams",
    "POSTGRESQL": 'SELECT change_stream_name, "all" FROM information_schema.change_streams',
}
STREAM_TABLES = (
    "SELECT change_stream_name, table_schema, table_name, all_columns "
    "FROM information_schema.change_stream_tables"
)
STREAM_COLUMNS = (
    "SELECT change_stream_name, table_schema, table_name, column_name "
    "FROM information_schema.change_stream_columns"
)
STREAM_OPTIONS = (
    "SELECT change_stream_name, option_name, option_value FROM information_schema.change_stream_options"
)

GOOGLESQL = "GOOGLE_STANDARD_SQL"
DEFAULT_VERSION_RETENTION, DEFAULT_STREAM_RETENTION = "1h", "1d"
_SYSTEM_SCHEMAS = frozenset(("information_schema", "spanner_sys", "pg_catalog"))
_UNREADABLE = frozenset(("tokenlist", "spanner.tokenlist"))
"""Types of columns that no read returns."""
# Units of Spanner's retention periods.
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PERIOD = re.compile(r"(\d+)([smhd])")


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """One column of a table; `position` from 1."""

    name: str
    position: int
    is_generated: bool


@dataclass(frozen=True, slots=True)
class SchemaTable:
    """One table: its readable columns in their order, and the names of its key columns in the order of the key."""

    name: str
    columns: tuple[SchemaColumn, ...]
    key: tuple[str, ...]

    def read(self, wanted: Callable[[SchemaColumn], bool]) -> Table:
        """Return what to read: the key, and the other columns that are wanted."""
        by_name = {column.name: column for column in self.columns}
        # The key comes first: the rows of a range are ordered by it, and progress is a key.
        rest = [column for column in self.columns if column.name not in self.key and wanted(column)]
        columns = [*(by_name[name] for name in self.key), *rest]
        return Table(
            self.name,
            tuple(column.name for column in columns),
            tuple(column.position for column in columns),
            len(self.key),
        )


def tables_of(query: Query) -> dict[str, SchemaTable]:
    """Return the tables of the database by name; ``schema.table`` outside the default schema."""
    columns: defaultdict[str, list[SchemaColumn]] = defaultdict(list)
    for schema, table, column, position, generated, type_ in query(COLUMNS):
        # A type that no read returns would fail the whole read.
        if (type_ or "").lower() not in _UNREADABLE:
            columns[_name(schema, table)].append(SchemaColumn(column, int(position), generated == "ALWAYS"))
    keys = primary_keys(query(KEY_COLUMNS))
    found = {}
    for schema, table, kind in query(TABLES):
        # Views have no primary key, so they have no order in which a read could continue.
        if kind == "BASE TABLE" and schema.lower() not in _SYSTEM_SCHEMAS:
            name = _name(schema, table)
            ordered = sorted(columns[name], key=lambda column: column.position)
            found[name] = SchemaTable(name, tuple(ordered), keys.get(name, ()))
    return found


def primary_keys(rows: Iterable[Sequence[Any]]) -> dict[str, tuple[str, ...]]:
    """Return the columns of each table's primary key, in the order of the key. `rows`: the answer to `KEY_COLUMNS`."""
    keys: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for schema, table, column, position in rows:
        keys[_name(schema, table)].append((int(position), column))
    return {name: tuple(column for _, column in sorted(columns)) for name, columns in keys.items()}


def chosen_tables(
    tables: Mapping[str, SchemaTable], chosen: Sequence[tuple[str, Sequence[str]]], database: str
) -> tuple[Table, ...]:
    """Return what to read of each chosen table; without columns, all of them. Key columns are always read.

    Raises:
        SetupError: a table or a column does not exist.
    """
    read = []
    for name, columns in chosen:
        if name not in tables:
            raise SetupError(
                f"{database} has no table {name!r} at this time that these credentials can see"
                f"{did_you_mean(name, tables)}. Write the name as CREATE TABLE has it, with its schema if it has one "
                "(sales.Orders)"
            )
        known = [column.name for column in tables[name].columns]
        for column in columns:
            if column not in known:
                raise SetupError(
                    f"table {name} of {database} has no column {column!r}{did_you_mean(column, known)}; its columns "
                    f"are {', '.join(known)}"
                )
        # Without columns all are read, also generated ones: the user chose the table explicitly.
        read.append(tables[name].read(_explicitly(columns or known)))
    return tuple(read)


def watched_tables(query: Query, change_stream: str) -> tuple[Table, ...]:
    """Return the tables and columns that a change stream watches, in alphabetical order.

    A change stream never watches a generated column outside of the primary key, so the snapshot leaves these out:
    their values would never be updated.
    """
    streams = _rows_of(query, CHANGE_STREAMS[dialect_of(query)], change_stream)
    # FOR ALL: the stream names no tables then.
    watches_all = any(_is_true(everything) for (everything,) in streams)
    whole: set[str] = set()
    parts: set[str] = set()
    for schema, table, all_columns in _rows_of(query, STREAM_TABLES, change_stream):
        # A stream may watch a table whole or some of its columns.
        (whole if _is_true(all_columns) else parts).add(_name(schema, table))
    columns: defaultdict[str, set[str]] = defaultdict(set)
    for schema, table, column in _rows_of(query, STREAM_COLUMNS, change_stream):
        columns[_name(schema, table)].add(column)
    watched = []
    for name, table in sorted(tables_of(query).items()):
        if watches_all or name in whole:
            watched.append(table.read(lambda column: not column.is_generated))
        elif name in parts:
            watched.append(table.read(_explicitly(columns[name])))
    # The only row of a table with an empty primary key has no column to read if none is watched.
    return tuple(table for table in watched if table.columns)


def known_tables(query: Query, change_stream: str) -> KnownTables:
    """Return which tables a change stream watches, at least in part, and which it does not."""
    streams = _rows_of(query, CHANGE_STREAMS[dialect_of(query)], change_stream)
    watches_all = any(_is_true(everything) for (everything,) in streams)
    every = {
        _name(schema, table)
        for schema, table, kind in query(TABLES)
        if kind == "BASE TABLE" and schema.lower() not in _SYSTEM_SCHEMAS
    }
    named = {_name(schema, table) for schema, table, _ in _rows_of(query, STREAM_TABLES, change_stream)}
    watched = every if watches_all else every & named
    return KnownTables(frozenset(watched), frozenset(every - watched), watches_all)


def _explicitly(names: Collection[str]) -> Callable[[SchemaColumn], bool]:
    return lambda column: column.name in names


def stream_options(query: Query, change_stream: str) -> dict[str, str]:
    """Return the options of a change stream that are set."""
    return dict(_rows_of(query, STREAM_OPTIONS, change_stream))


def stream_retention_of(options: Mapping[str, str]) -> int:
    """Return for how many nanoseconds a change stream with these options keeps its records."""
    return period_of(options.get("retention_period", DEFAULT_STREAM_RETENTION))


def dialect_of(query: Query) -> str:
    """Return GOOGLE_STANDARD_SQL or POSTGRESQL."""
    rows = query(DIALECT)
    # The row is missing where the dialect is the default.
    return str(rows[0][0]) if rows else GOOGLESQL


def version_retention(query: Query) -> int:
    """Return for how many nanoseconds the database keeps old versions of rows."""
    rows = query(VERSION_RETENTION)
    return period_of(rows[0][0] if rows and rows[0][0] else DEFAULT_VERSION_RETENTION)


def period_of(text: str) -> int:
    """Return the nanoseconds of a retention period such as ``7d``, ``36h`` or ``90m``.

    Raises:
        ValueError: it does not have this form.
    """
    # The service returns the text as it was set, also in quotes.
    parts = _PERIOD.fullmatch(text.strip().strip("'\"").lower())
    if not parts:
        raise ValueError(f"{text!r} is not a retention period such as 36h")
    return int(parts[1]) * _UNITS[parts[2]] * NANOS


def check_timestamp(timestamp: int, now: int, retention: int, database: str) -> None:
    """Check that a database still keeps the rows of `timestamp`; all times in nanoseconds.

    Raises:
        SetupError: it does not.
    """
    if timestamp < now - retention:
        raise SetupError(
            f"{database} no longer has the rows of {format_timestamp(timestamp)}: it keeps old versions for "
            f"{retention // NANOS} s (version_retention_period). Pass a later time, or none for now. To read longer "
            f"back in future, raise the period before: {RAISE_VERSION_RETENTION}"
        )


RAISE_VERSION_RETENTION = "ALTER DATABASE … SET OPTIONS (version_retention_period = '7d')"


def ranges_between(table: int, keys: Sequence[str]) -> list[KeyRange]:
    """Return ranges of a table that cover all its keys, cut at `keys`, which are in the order of the primary key."""
    # One key more than there are cuts: the first range has no start, and the last one no end.
    return [KeyRange(table, start, end) for start, end in pairwise(["", *keys, ""])]


def signal_query(table: str, dialect: str) -> str:
    """Return the query for the signals in a table: id, type, data, ordered by id."""
    if dialect == GOOGLESQL:
        name = ".".join(f"`{part}`" for part in table.split("."))
    else:
        name = ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))
    return f"SELECT id, type, data FROM {name} ORDER BY id"


def _rows_of(query: Query, statement: str, change_stream: str) -> list[list[Any]]:
    """Return the rows about one change stream, without its name. Names are not case-sensitive in GoogleSQL."""
    return [row[1:] for row in query(statement) if row[0].lower() == change_stream.lower()]


def _name(schema: str, table: str) -> str:
    # The default schema of the PostgreSQL dialect; a change stream does not name it either.
    return f"{schema}.{table}" if schema and schema != "public" else table


def _is_true(value: Any) -> bool:
    # The two dialects return a boolean or YES.
    return value is True or value == "YES"
