"""A PostgreSQL server whose replication slots have not been read since before the changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import psycopg

from backlogs import Backlog, Before, batches
from penstock_emulators.postgres import PostgresServer

PUBLICATION, DATABASE = "benchmark", "postgres"
ONE_ROW = "one_row"
"""A database for runs that end with their first row."""
UNREAD = "unread"
"""A slot at the position before the first change. Each run reads a copy of it."""
TABLE = (
    "create table orders (id bigint primary key, name text, note text, amount numeric(12,2), at timestamptz, "
    "day timestamp, paid boolean, rate float8, reference uuid, account bigint)"
)
INSERT = (
    "insert into orders select i, 'name ' || i, repeat('x', 60), i + 0.25, clock_timestamp(), '2026-01-31 12:00:00', "
    "i %% 2 = 0, i / 3.0, md5(i::text)::uuid, i * 1000003 from generate_series(%s::int8, %s::int8) i"
)
UPDATE = "update orders set amount = amount + 1, at = clock_timestamp() where id between %s and %s"
CHANGED = "changed"
CHANGE_ALL_OVER = (
    f"update orders set note = '{CHANGED}', at = clock_timestamp() "
    "where id = any (select i * %s %% %s from generate_series(%s::int8, %s::int8) i)"
)
STEP = 7_919
"""A prime number, so that its multiples reach each row of the table once."""


@dataclass(frozen=True, slots=True)
class Server:
    """The server with its backlog, for peers that read the same log."""

    server: PostgresServer
    session: psycopg.Connection[Any]
    backlog: Backlog

    def slot(self, *, empty: bool) -> str:
        """Return the name of a new slot: at the first change, or with `empty` after the last one."""
        name = f"run_{next(_NUMBERS)}"
        if empty:
            self.session.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
        else:
            self.session.execute("select pg_copy_logical_replication_slot(%s, %s)", (UNREAD, name))
        return name

    def end(self) -> str:
        """Return the position of the server's log now, as the server writes it."""
        row = self.session.execute("select pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return str(row[0])


_NUMBERS = itertools.count(1)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


@contextmanager
def server_with_backlog(changes: int, rows: int) -> Iterator[Server]:
    """Start a server and commit `changes`, half of them inserts and half updates, with `rows` in each transaction."""
    with (
        PostgresServer.start(settings={"max_wal_size": "8GB"}) as server,
        psycopg.connect(server.dsn(DATABASE), autocommit=True) as session,
    ):
        session.execute(TABLE)
        session.execute(f"create publication {PUBLICATION} for all tables")
        session.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (UNREAD,))
        for statement in (INSERT, UPDATE):
            for numbers in batches(changes // 2, rows):
                session.execute(statement, (numbers[0], numbers[-1]))

        def settings(empty: bool) -> Mapping[str, str]:
            return {
                "dsn": server.dsn(DATABASE),
                "publication": PUBLICATION,
                "slot": waiting.slot(empty=empty),
                "end": _now(),
            }

        waiting = Server(server, session, Backlog("postgres", changes, settings))
        yield waiting


@contextmanager
def server_with_table(rows: int, rows_per_statement: int) -> Iterator[tuple[PostgresServer, Backlog]]:
    """Start a server with a table of `rows` rows. A run reads them as an initial snapshot, and no change after it.

    The database `one_row` has the same table with one row, and `empty` has it without rows.
    """
    with PostgresServer.start(settings={"max_wal_size": "8GB"}) as server:
        with psycopg.connect(server.dsn(DATABASE), autocommit=True) as session:
            session.execute("create database empty")
            session.execute(f"create database {ONE_ROW}")
        for name, filled in ((DATABASE, rows), ("empty", 0), (ONE_ROW, 1)):
            with psycopg.connect(server.dsn(name), autocommit=True) as session:
                session.execute(TABLE)
                session.execute(f"create publication {PUBLICATION} for all tables")
                for numbers in batches(filled, rows_per_statement):
                    session.execute(INSERT, (numbers[0], numbers[-1]))
                session.execute("vacuum analyze orders")

        def settings(empty: bool) -> Mapping[str, str]:
            return {
                "dsn": server.dsn("empty" if empty else DATABASE),
                "publication": PUBLICATION,
                "slot": f"run_{next(_NUMBERS)}",
                "create_slot": "true",
                "snapshot": "initial",
                "end": _now(),
            }

        yield server, Backlog("postgres", rows, settings, written="id >= 0")


@contextmanager
def rows_of_a_table(rows: int, rows_per_statement: int) -> Iterator[Backlog]:
    """See `server_with_table`."""
    with server_with_table(rows, rows_per_statement) as (_, waiting):
        yield waiting


@contextmanager
def changes_all_over(changes: int, rows: int, table_rows: int) -> Iterator[Backlog]:
    """Start a server with a table. The changes are of different rows all over it, `rows` in each transaction.

    Raises:
        SystemExit: there are more changes than rows, or a row would be changed twice.
    """
    if changes > table_rows or table_rows % STEP == 0:
        raise SystemExit(f"{changes:,} changes are not of different rows of {table_rows:,}")
    with (
        PostgresServer.start(settings={"max_wal_size": "8GB"}) as server,
        psycopg.connect(server.dsn(DATABASE), autocommit=True) as session,
    ):
        session.execute(TABLE)
        session.execute(f"create publication {PUBLICATION} for all tables")
        session.execute(INSERT, (0, table_rows - 1))
        session.execute("vacuum analyze orders")
        session.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (UNREAD,))

        def reading(slot: str) -> dict[str, str]:
            return {"dsn": server.dsn(DATABASE), "publication": PUBLICATION, "slot": slot, "end": _now()}

        def settings(empty: bool) -> Mapping[str, str]:
            return reading(waiting.slot(empty=empty))

        def fill() -> Mapping[str, str]:
            return {**reading(f"run_{next(_NUMBERS)}"), "create_slot": "true", "snapshot": "initial"}

        def commit() -> None:
            for numbers in batches(changes, rows):
                session.execute(CHANGE_ALL_OVER, (STEP, table_rows, numbers[0], numbers[-1]))

        own = Backlog("postgres", changes, settings, Before(fill, commit), f"note = '{CHANGED}'")
        waiting = Server(server, session, own)
        yield own


@contextmanager
def backlog(changes: int, rows: int) -> Iterator[Backlog]:
    """See `server_with_backlog`."""
    with server_with_backlog(changes, rows) as waiting:
        yield waiting.backlog
