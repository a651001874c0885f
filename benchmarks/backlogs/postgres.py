"""A PostgreSQL server whose replication slots have not been read since before the changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import psycopg

from backlogs import Backlog, batches
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
                "end": datetime.now(timezone.utc).isoformat(),
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
                "end": datetime.now(timezone.utc).isoformat(),
            }

        yield server, Backlog("postgres", rows, settings)


@contextmanager
def rows_of_a_table(rows: int, rows_per_statement: int) -> Iterator[Backlog]:
    """See `server_with_table`."""
    with server_with_table(rows, rows_per_statement) as (_, waiting):
        yield waiting


@contextmanager
def backlog(changes: int, rows: int) -> Iterator[Backlog]:
    """See `server_with_backlog`."""
    with server_with_backlog(changes, rows) as waiting:
        yield waiting.backlog
