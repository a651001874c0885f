"""Tables of the target: their columns in the catalogue, and the DDL that is needed before rows are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg

from penstock.event.column_numbers import (
    ColumnMoves,
    NumberedColumn,
    Numbers,
    column_moves,
    source_text,
)
from penstock.event.column_types import ColumnType
from penstock.event.model import Source, TableSchema
from penstock.event.schema_changes import plan_schema_change
from penstock.event.schema_policies import ChangePolicies
from penstock.io.sql.errors import SqlTargetError
from penstock.io.sql.statements import (
    COLUMNS,
    COMPLETE,
    META,
    TRUNCATIONS,
    TableName,
    TargetColumn,
    TargetTable,
    add_meta_columns,
    create_bookkeeping,
    create_columns,
    create_complete,
    create_log,
    create_replica,
    known_type,
    quote,
    stored_type,
)
from penstock.io.sql.values import json_text, sql_type

# Without columns that PostgreSQL fills itself: a statement cannot give them a value.
_COLUMNS = """
select a.attname, format_type(a.atttypid, a.atttypmod), not a.attnotnull
from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = %s and a.attnum > 0 and not a.attisdropped
  and a.attgenerated = '' and a.attidentity <> 'a'
order by a.attnum
"""

_UNIQUE = """
select array(select attname from pg_attribute where attrelid = relation.oid
             and attnum = any((index.indkey::int2[])[0:index.indnkeyatts - 1]))
from pg_index index join pg_class relation on relation.oid = index.indrelid
join pg_namespace namespace on namespace.oid = relation.relnamespace
where namespace.nspname = %s and relation.relname = %s and index.indisunique and index.indisvalid
  and index.indimmediate and index.indpred is null and index.indexprs is null
"""
"""The columns of each index that `on conflict` can use."""

# Objects are created under one lock: two sessions that create the same table at once would fail, although both say
# "if not exists". The number is arbitrary; locks of this kind are per database.
_LOCK = "select pg_advisory_xact_lock(7236837465)"

_MAX_NAME = 63
"""Bytes of an identifier; PostgreSQL cuts longer ones without an error."""


@dataclass(slots=True)
class Catalog:
    """The replica tables of one connection, as they were when a batch last needed them."""

    session: psycopg.Connection[Any]
    schema: str
    create_tables: bool

    def create_bookkeeping(self) -> None:
        """Create the ledger and the table of truncations if they are missing."""
        # Look whether the tables exist first: a role that may not create tables can use existing ones.
        if self._exists(TRUNCATIONS) is None:
            self._change(create_bookkeeping(self.schema))

    def create_complete(self) -> None:
        """Create the table of the times until which the target is complete, if it is missing."""
        if self._exists(COMPLETE) is None:
            self._change(create_complete(self.schema))

    def types(self, name: TableName) -> dict[str, ColumnType]:
        """Return the types of the columns of a table; none if it is missing. OTHER: the user chose the type."""
        return {column: stored_type(each.sql) for column, each in columns_of(self.session, name).items()}

    def follow(
        self,
        name: TableName,
        source: Source,
        schemas: Sequence[tuple[str, TableSchema]],
        policies: ChangePolicies,
    ) -> ColumnMoves:
        """Rename and drop columns as the numbers of the source's columns say; return what was done.

        `schemas`: see `column_moves`.

        Raises:
            SchemaChangedError: the policy does not allow it.
        """
        if self._exists(COLUMNS) is None:
            self._change(create_columns(self.schema))
        with self.session.transaction():
            self.session.execute(_LOCK)
            # Shards that write rows hold these entries: they see the columns that they have prepared for.
            known = self.numbers(name, source, "for update")
            target = frozenset(columns_of(self.session, name))
            moves = column_moves(
                str(name), known, target, schemas, policies, has_numbers=source.system == "postgresql"
            )
            for old, new in moves.renamed.items():
                _check_names(name, [new])
                self.session.execute(f"alter table {name} rename column {quote(old)} to {quote(new)}")
            for column in moves.dropped:
                self.session.execute(f"alter table {name} drop column {quote(column)}")
            for number, named in moves.known.items():
                if known.get(number) != named:
                    self.session.execute(
                        f"insert into {TableName(self.schema, COLUMNS)} values (%s, %s, %s, %s, %s, %s) on conflict "
                        "(table_name, source, number) do update set name = excluded.name, since = excluded.since, "
                        "former = excluded.former",
                        (
                            name.table,
                            source_text(source),
                            number,
                            named.name,
                            named.since,
                            json_text(named.former),
                        ),
                    )
        return moves

    def numbers(self, name: TableName, source: Source, lock: str) -> Numbers:
        """Return the columns of the source that a table has, by number, and lock these entries."""
        rows = self.session.execute(
            f"select number, name, since, former from {TableName(self.schema, COLUMNS)} where table_name = %s "
            f"and source = %s order by number {lock}",
            (name.table, source_text(source)),
        )
        return {number: msgspec.convert(rest, NumberedColumn) for number, *rest in rows.fetchall()}

    def replica(self, name: TableName, schema: TableSchema, policies: ChangePolicies) -> TargetTable:
        """Return a replica table that takes rows of `schema`, after it was created or altered as the policy allows.

        Raises:
            SqlTargetError: it is missing or unsuitable.
            SchemaChangedError: the policy does not allow the change.
        """
        if self._exists(name.table) is None:
            self._require_create(name)
            _check_names(name, schema.names)
            self._change(create_replica(name, schema, [sql_type(column.type) for column in schema]))
        columns = columns_of(self.session, name)
        if not {each for each, _ in META} <= columns.keys():
            self._change(add_meta_columns(name))
            columns = columns_of(self.session, name)
        types = {column.name: column.type for column in schema}
        known = {
            each: known_type(column.sql, types[each]) for each, column in columns.items() if each in types
        }
        change = plan_schema_change(str(name), known, schema, policies)
        if change.alters:
            _check_names(name, [column.name for column in change.added])
            # Nothing was locked until here, so another shard may have added a column in the meantime.
            parts = [f"add column if not exists {quote(c.name)} {sql_type(c.type)}" for c in change.added]
            parts += [f"alter column {quote(c.name)} type {sql_type(c.type)}" for c in change.widened]
            self._change(f"alter table {name} {', '.join(parts)}")
            columns = columns_of(self.session, name)
        key = tuple(column.name for column in schema.key_columns)
        meta = {each for each, _ in META}
        table = TargetTable(name, tuple(c for c in columns.values() if c.name not in meta), key)
        _check_key_columns(table)
        self._check_key(table)
        _check_nullable(table)
        self._know_truncations(name)
        return table

    def log(self, name: TableName) -> None:
        """Create a change log if it is missing."""
        if self._exists(name.table) is None:
            self._require_create(name)
            _check_names(name, ())
            self._change(create_log(name))

    def _exists(self, table: str) -> Any:
        query = "select to_regclass(%s)"
        ((exists,),) = self.session.execute(query, (str(TableName(self.schema, table)),)).fetchall()
        return exists

    def _check_key(self, table: TargetTable) -> None:
        indexes = self.session.execute(_UNIQUE, (table.name.schema, table.name.table)).fetchall()
        if not any(set(columns) == set(table.key) for (columns,) in indexes):
            key = ", ".join(map(quote, table.key))
            raise SqlTargetError(
                f"table {table.name} has no primary key or unique constraint on ({key}), the key columns of the "
                "source. If the source got another key, rows cannot be found under the old one: empty the table, "
                f"add the key (alter table {table.name} add primary key ({key})), and read the rows again (penstock "
                "snapshot)"
            )

    def _know_truncations(self, name: TableName) -> None:
        # A row that exists can be locked: shards of one table wait for a TRUNCATE, and it waits for them.
        self.session.execute(
            f"insert into {TableName(self.schema, TRUNCATIONS)} values (%s, '') on conflict do nothing",
            (name.table,),
        )

    def _require_create(self, name: TableName) -> None:
        if not self.create_tables:
            raise SqlTargetError(
                f"table {name} does not exist, and create_tables is false: create it with the columns of the "
                "source and its primary key"
            )

    def _change(self, statement: str) -> None:
        with self.session.transaction():
            self.session.execute(_LOCK)
            self.session.execute(statement)


def columns_of(session: psycopg.Connection[Any], name: TableName) -> dict[str, TargetColumn]:
    """Return the columns of a table by name; none if there is no such table."""
    rows = session.execute(_COLUMNS, (name.schema, name.table)).fetchall()
    return {column: TargetColumn(column, sql, nullable) for column, sql, nullable in rows}


def _check_names(name: TableName, columns: tuple[str, ...] | list[str]) -> None:
    for each in (name.table, *columns):
        if len(each.encode()) > _MAX_NAME:
            raise SqlTargetError(
                f"{each!r} has more than {_MAX_NAME} bytes, which PostgreSQL cuts: rename the table with "
                "table=, or the column with RenameColumns"
            )


def _check_key_columns(table: TargetTable) -> None:
    missing = [name for name in table.key if name not in {column.name for column in table.columns}]
    if missing:
        raise SqlTargetError(f"table {table.name} lacks the key column {missing[0]}: add it")


def _check_nullable(table: TargetTable) -> None:
    for column in table.data:
        if not column.nullable:
            raise SqlTargetError(
                f"column {column.name} of {table.name} is NOT NULL. A deleted row stays as a tombstone without "
                f"values, so drop the constraint: alter table {table.name} alter column {quote(column.name)} "
                "drop not null"
            )
