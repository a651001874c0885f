"""Real PostgreSQL servers, one for each version, and what tests do with them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock_emulators.postgres import PostgresServer, installed_servers
from tests.conftest import CAMPAIGN
from tests.support.epochs import Epochs
from tests.support.waiting import wait_until

VERSIONS = sorted(installed_servers()) if CAMPAIGN else [max(installed_servers(), default=18)]
_NUMBERS = itertools.count()


@pytest.fixture(scope="session", params=VERSIONS, ids=lambda version: f"postgres-{version}")
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server that all tests share. It fails, and does not skip, where PostgreSQL is missing."""
    with PostgresServer.start(version=request.param) as running:
        yield running


class Database:
    """A database of its own, with a publication of all tables and a slot."""

    publication, slot = "changes", "penstock"

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = f"db{next(_NUMBERS)}"
        self.slot = f"slot_{self.name}"
        with psycopg.connect(server.dsn(), autocommit=True) as session:
            session.execute(f"create database {self.name}")
        self.dsn = server.dsn(self.name)
        self.session = psycopg.connect(self.dsn, autocommit=True)

    def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        for statement in statements:
            self.session.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.session.execute(query).fetchall()

    def publish(self, publication: str = "for all tables") -> None:
        """Create the publication and the slot: changes from here on are read."""
        self.execute(
            f"create publication {self.publication} {publication}",
            f"select pg_create_logical_replication_slot('{self.slot}', 'pgoutput')",
        )

    def source(self, **options: Any) -> ReadFromPostgresChangeStream:
        return ReadFromPostgresChangeStream(
            **{"dsn": self.dsn, "publication": self.publication, "slot": self.slot, **options}
        )

    def clock(self) -> int:
        """Return the server's clock, nanoseconds."""
        ((now,),) = self.rows("select (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000")
        return now

    def read(self, **options: Any) -> list[Any]:
        """Return all records up to now, read in short epochs as a runner reads."""
        return Epochs(self.source(end=self.clock(), **options)).run_to_the_end()

    def wait_for_free_slot(self) -> None:
        """Wait until the server has noticed that the last reader closed its connection."""
        free = f"select from pg_replication_slots where slot_name = '{self.slot}' and not active"
        wait_until(lambda: bool(self.rows(free)), "the slot stays in use")

    def drop(self) -> None:
        self.session.close()
        with psycopg.connect(self.server.dsn(), autocommit=True) as session:
            session.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s",
                (self.slot,),
            )


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    database = Database(server)
    yield database
    database.drop()
