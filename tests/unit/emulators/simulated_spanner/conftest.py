"""Databases in this process, without a server, and a reader of their streams that needs no clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock_emulators.simulated_spanner.change_query import ChangeQuery, RunningQuery, open_query
from penstock_emulators.simulated_spanner.churn import ChurnLimits
from penstock_emulators.simulated_spanner.clock import Clock
from penstock_emulators.simulated_spanner.database import Database
from penstock_emulators.simulated_spanner.history import play
from penstock_emulators.simulated_spanner.mutation import Write
from penstock_emulators.simulated_spanner.record import Children, PartitionStart, Record

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
TABLE = "CREATE TABLE T (Id INT64 NOT NULL, V INT64, W STRING(MAX)) PRIMARY KEY (Id)"


def database(*options: str, watched: str = "ALL", **settings: Any) -> Database:
    """Return a database with the table T and the stream S, at START."""
    made = Database(**settings)
    clause = f" OPTIONS ({', '.join(options)})" if options else ""
    made.apply_ddl([TABLE, f"CREATE CHANGE STREAM S FOR {watched}{clause}"], START)
    return made


def write(kind: str, **values: Any) -> Write:
    """Return a mutation of one row of T."""
    return Write(kind, "T", tuple(values), (tuple(values.values()),))


def query(
    made: Database, token: str | None, start: int, end: int | None, heartbeat: int = SECOND
) -> ChangeQuery:
    """Return a query of the stream S."""
    stream = made.streams["S"]
    placement = next(iter(stream.functions))
    return ChangeQuery(stream, placement, "READ_S", start, end, token, heartbeat)


def drain(running: RunningQuery, now: int) -> list[Record]:
    """Poll until the query has nothing more to send at `now`."""
    found: list[Record] = []
    while not running.done:
        rows = running.poll(now)
        found += [record for record, _, _ in rows]
        if not rows and running.wake > now:
            break
    return found


def answer(made: Database, token: str | None, start: int, end: int) -> list[Record]:
    """Return the whole answer to a query whose end has passed."""
    now = max(end, made.last)
    running = open_query(made, query(made, token, start, end), now)
    found = drain(running, now)
    assert running.done
    return found


def announced(record: Record) -> list[tuple[str, int]]:
    """Return the partitions that a record announces, with their starts."""
    if isinstance(record, Children):
        return [(token, record.timestamp) for token, _ in record.children]
    return (
        [(token, record.timestamp) for token in record.tokens] if isinstance(record, PartitionStart) else []
    )


def follow(made: Database, start: int, end: int) -> dict[str, list[Record]]:
    """Return the records by token of all partitions that a reader of [start, end] finds."""
    waiting = [child for record in answer(made, None, start, start) for child in announced(record)]
    found: dict[str, list[Record]] = {}
    while waiting:
        token, since = waiting.pop()
        if token not in found and since <= end:
            found[token] = answer(made, token, since, end)
            waiting += [child for record in found[token] for child in announced(record)]
    return found


@pytest.fixture
def played() -> Callable[..., tuple[Database, int]]:
    """Make a database with a seeded history; returns it and the moment of its end."""

    def make(seed: int, mode: str, steps: int = 60, granularity_us: int = 1) -> tuple[Database, int]:
        made = database(f"partition_mode = '{mode}'", seed=seed, granularity_us=granularity_us)
        clock = Clock(speed=0, start=START)
        rng = random.Random(seed)
        play(made, clock, rng, steps=steps, keys=8, limits=ChurnLimits(1, 5), churn_share=0.4)
        return made, max(clock.now(), made.last)

    return make
