"""One simulation with a stopped clock for all tests of a module, and databases with histories in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from penstock_emulators.simulated_spanner import SimulatedSpanner

PROJECT, INSTANCE = "penstock-test", "penstock-test"
GOOGLESQL, POSTGRESQL = "GOOGLE_STANDARD_SQL", "POSTGRESQL"
COLUMNS = {
    "Id": "INT64 NOT NULL",
    "B": "BOOL",
    "I": "INT64",
    "F": "FLOAT64",
    "G": "FLOAT32",
    "N": "NUMERIC",
    "S": "STRING(MAX)",
    "Y": "BYTES(MAX)",
    "D": "DATE",
    "T": "TIMESTAMP",
    "J": "JSON",
    "U": "UUID",
    "Is": "ARRAY<INT64>",
    "Ss": "ARRAY<STRING(MAX)>",
    "Fs": "ARRAY<FLOAT64>",
}
PG_COLUMNS = {
    "id": "bigint NOT NULL PRIMARY KEY",
    "b": "boolean",
    "i": "bigint",
    "f": "double precision",
    "n": "numeric",
    "s": "varchar",
    "y": "bytea",
    "d": "date",
    "t": "timestamptz",
    "j": "jsonb",
    "ns": "numeric[]",
    "g": "real",
    "u": "uuid",
    "v": "interval",
    "nums": "bigint[]",
    "texts": "varchar[]",
    "times": "timestamptz[]",
    "floats": "double precision[]",
}


@dataclass(frozen=True, slots=True)
class History:
    """A database of the simulation with a history between `start` and `end` (nanoseconds, inclusive)."""

    simulation: SimulatedSpanner
    name: str
    client: Any
    start: int
    end: int
    commits: int

    @property
    def path(self) -> str:
        """The full name of the database."""
        return f"projects/{PROJECT}/instances/{INSTANCE}/databases/{self.name}"


def ddl(dialect: str, options: str, first: tuple[str, ...] = (), extra: str = "") -> list[str]:
    """Return two tables and a change stream with the options; `extra` is one more column."""
    if dialect == POSTGRESQL:
        columns = ", ".join(f"{name} {kind}" for name, kind in PG_COLUMNS.items())
        tables = [f"CREATE TABLE {table} ({columns})" for table in ("accounts", "orders")]
        return [*first, *tables, f"CREATE CHANGE STREAM changes FOR ALL WITH ({options})"]
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()) + extra
    tables = [f"CREATE TABLE {table} ({columns}) PRIMARY KEY (Id)" for table in ("Accounts", "Orders")]
    return [*first, *tables, f"CREATE CHANGE STREAM Changes FOR ALL OPTIONS ({options})"]


@pytest.fixture(scope="session")
def simulation() -> Iterator[SimulatedSpanner]:
    """A simulation whose clock stands still, two weeks before the present, and moves only with histories."""
    with SimulatedSpanner.start(speed=0, partitions=3, granularity_us=1000) as simulation:
        simulation.control.clock(offset_seconds=-14 * 86_400)
        yield simulation


_numbers = count()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return an ordinary client of a database of a simulation."""

    def connected(simulation: SimulatedSpanner, name: str) -> Any:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import spanner

        monkeypatch.setenv("SPANNER_EMULATOR_HOST", simulation.host)
        client = spanner.Client(
            project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True
        )
        return client.instance(INSTANCE).database(name)

    return connected


@pytest.fixture
def new_history(simulation: SimulatedSpanner, connect: Callable[..., Any]) -> Callable[..., History]:
    """Make a database with a change stream and play a seeded history in it."""

    def make(
        seed: int,
        *,
        dialect: str = GOOGLESQL,
        options: str = "value_capture_type = 'NEW_ROW_AND_OLD_VALUES'",
        first: tuple[str, ...] = (),
        extra: str = "",
        steps: int = 120,
        **played: Any,
    ) -> History:
        name = f"database-{next(_numbers)}"
        simulation.create_database(
            PROJECT, INSTANCE, name, ddl(dialect, options, first, extra), dialect=dialect
        )
        path = f"projects/{PROJECT}/instances/{INSTANCE}/databases/{name}"
        facts = simulation.control.play(path, seed, steps, **played)
        # Past the end, which a reader of placements waits for.
        simulation.control.clock(advance_seconds=0.001)
        assert facts["end"] < time.time_ns(), "the history ends before the present, for readers with a clock"
        return History(
            simulation, name, connect(simulation, name), facts["start"], facts["end"], facts["commits"]
        )

    return make
