"""A real emulator under churn, writers that remember what they committed, and a small driver of epochs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.spanner import SpannerEmulator
from tests.support.epochs import Epochs
from tests.support.writers import WriterThreads

PROJECT, INSTANCE = "penstock-test", "penstock-test"
GOOGLESQL, POSTGRESQL = "GOOGLE_STANDARD_SQL", "POSTGRESQL"
TABLES = {"Accounts": "Id INT64 NOT NULL", "Orders": "Id INT64 NOT NULL"}
DDL = [
    *(
        f"CREATE TABLE {name} ({key}, Value STRING(MAX), Version INT64) PRIMARY KEY (Id)"
        for name, key in TABLES.items()
    ),
    "CREATE CHANGE STREAM Changes FOR ALL OPTIONS (value_capture_type = 'OLD_AND_NEW_VALUES')",
]
PG_DDL = [
    *(
        f'CREATE TABLE "{name}" ("Id" bigint NOT NULL PRIMARY KEY, "Value" varchar, "Version" bigint)'
        for name in TABLES
    ),
    "CREATE CHANGE STREAM \"Changes\" FOR ALL WITH (value_capture_type = 'OLD_AND_NEW_VALUES')",
]
"""The same tables and stream in a PostgreSQL database, with the same names."""


@dataclass
class Database:
    """One database of the running emulator, with a plain client for writing and looking."""

    emulator: Emulator
    name: str
    client: Any
    dialect: str = GOOGLESQL

    def reading(self, **options: Any) -> ReadFromSpannerChangeStream:
        """Return the transform that reads this database's change stream."""
        return ReadFromSpannerChangeStream(
            **{
                "project": PROJECT,
                "instance": INSTANCE,
                "database": self.name,
                "change_stream": "Changes",
                "emulator_host": self.emulator.host,
                **options,
            }
        )

    def rows(self, table: str) -> dict[int, tuple[str, int]]:
        """Return the table's contents now."""
        from google.cloud.spanner import KeySet

        with self.client.snapshot() as snapshot:
            return {
                row[0]: (row[1], row[2])
                for row in snapshot.read(table, ["Id", "Value", "Version"], KeySet(all_=True))
            }


Emulator = SpannerEmulator | SimulatedSpanner

on_both_services = pytest.mark.parametrize(
    "emulator",
    [pytest.param("google", marks=pytest.mark.emulator), "simulated"],
    indirect=True,
    scope="session",
)
"""For tests that also run on a machine without Google's emulator, where the simulated service takes its place."""

in_a_campaign_on_both_services = pytest.mark.parametrize(
    "emulator",
    [pytest.param("google", marks=[pytest.mark.emulator, pytest.mark.campaign]), "simulated"],
    indirect=True,
    scope="session",
)
"""For tests that need a minute: only the simulated service has partitions that merge and move."""


@pytest.fixture(scope="session")
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """Google's emulator, or the simulated service where `on_both_services` asks for it; partitions live a second."""
    service: Emulator
    if getattr(request, "param", "google") == "google":
        service = SpannerEmulator.start(token_life_seconds=1)
    else:
        service = SimulatedSpanner.start(churn_seconds=1, seed=1)
    with service:
        yield service


_numbers = count()


@pytest.fixture
def new_database(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Database]:
    """Make a database with the DDL given, on the emulator given."""

    def make(emulator: Emulator, ddl: list[str] | None = None, dialect: str = GOOGLESQL) -> Database:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import spanner

        for name, value in emulator.environment().items():
            monkeypatch.setenv(name, value)
        name = f"database-{next(_numbers)}"
        usual = PG_DDL if dialect == POSTGRESQL else DDL
        emulator.create_database(PROJECT, INSTANCE, name, usual if ddl is None else ddl, dialect=dialect)
        client = spanner.Client(
            project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True
        )
        return Database(emulator, name, client.instance(INSTANCE).database(name), dialect)

    return make


@pytest.fixture
def database(emulator: Emulator, new_database: Callable[..., Database]) -> Database:
    return new_database(emulator)


def nanoseconds_of(committed: Any) -> int:
    """Return the client library's commit timestamp in nanoseconds since the epoch."""
    return int(committed.timestamp()) * 1_000_000_000 + committed.nanosecond


class Writers(WriterThreads):
    """Threads that insert, update and delete random rows of both tables until stopped.

    `commits` are the commit timestamps (ns) of the transactions that wrote a row; a transaction that deletes
    rows which are not there makes no change record.
    """

    def __init__(self, database: Database, threads: int, keys: int, pause: float) -> None:
        super().__init__(threads, pause)
        self.commits: list[int] = []
        self._database = database
        self._keys = keys

    def write(self, rng: random.Random, seed: int, number: int) -> None:
        from google.api_core.exceptions import Aborted

        try:
            committed = self._commit(rng)
        except Aborted:  # by the emulator, which runs one transaction at a time; nothing was written
            return
        if committed is not None:
            with self._lock:
                self.commits.append(nanoseconds_of(committed))

    def _commit(self, rng: random.Random) -> Any:
        """Commit a transaction; return its commit timestamp, or None when it may make no change record."""
        from google.cloud.spanner import KeySet

        wrote = False
        with self._database.client.batch() as batch:
            for table in rng.sample(sorted(TABLES), rng.choice((1, 1, 2))):
                for key in rng.sample(range(self._keys), rng.randint(1, 3)):
                    if rng.random() < 0.15:
                        batch.delete(table, KeySet(keys=[[key]]))
                    else:
                        row = (key, f"value {rng.randrange(1000)}", rng.randrange(1 << 60))
                        batch.insert_or_update(table, ["Id", "Value", "Version"], [row])
                        wrote = True
        return batch.committed if wrote else None


@pytest.fixture
def writers() -> Callable[..., Writers]:
    def make(database: Database, threads: int = 3, keys: int = 40, pause: float = 0.01) -> Writers:
        return Writers(database, threads, keys, pause)

    return make


@pytest.fixture
def epochs() -> Callable[..., Epochs]:
    return lambda transform, parts=1: Epochs(transform, parts)
