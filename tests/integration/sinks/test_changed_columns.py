"""`penstock run …`, while DDL changes the columns of a table that is written, with kills.

Columns are renamed and dropped in the target too, and the rows of a table with a new column are read again. Logs tell
the columns.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle.kill import After, kill_at
from penstock_emulators.postgres import PostgresServer
from penstock_emulators.spanner import SpannerEmulator
from tests.integration.postgres.conftest import VERSIONS
from tests.integration.sinks.changing_tables import (
    OLD_ROWS,
    DeltaReplica,
    IcebergReplica,
    Log,
    Orders,
    PostgresOrders,
    Replica,
    SpannerOrders,
    Writers,
)
from tests.support.schema_lines import told_columns
from tests.support.waiting import PATIENCE_SECONDS, wait_for_run

pytestmark = pytest.mark.spark

FOLLOWS = ("evolve", "orders.rename=evolve", "orders.drop=evolve")


def follow_random_ddl(
    replica: Replica, rng: random.Random, ddl: int, *, keeps_dropped: bool = False
) -> dict[str, int]:
    """Change columns `ddl` times under four writers, kill the job after half of them, and compare; return figures.

    `keeps_dropped`: the target keeps columns that the source has dropped.
    """
    source, seen = replica.source, set(replica.source.columns())
    run = replica.start()

    def is_equal() -> bool:
        return replica.is_equal(without=seen - set(source.columns()) if keeps_dropped else ())

    try:
        with Writers(source) as writers:
            wait_for_run(run, lambda: replica.has(OLD_ROWS[-1]), "nothing arrives", replica.log)
            for step in range(ddl):
                source.alter(rng.choice(source.actions(rng, step)))
                seen |= set(source.columns())
                if step % 2:
                    moment = After(rng.random())
                    moment.arm()
                    kill_at(run, moment, "after DDL", PATIENCE_SECONDS)
                    run = replica.start()
                # The log does not tell numbers of columns: a further rename waits until this one was read.
                marker = 1000 + step
                insert_marker(source, marker)
                wait_for_run(run, lambda key=marker: replica.has(key), "no change arrives", replica.log)
        wait_for_run(run, is_equal, "the replica is not equal", replica.log)
        run.kill()
        run = replica.start()
        insert_marker(source, -1)
        wait_for_run(run, is_equal, "the replica is not equal", replica.log)
    finally:
        run.kill()
    return {"ddl": ddl, "kills": replica.starts - 1, "writes": writers.writes, "rows": len(source.rows())}


def insert_marker(source: Orders, key: int) -> None:
    while not any(row["k"] == key for row in source.rows()):
        source.write(key, {})


# `tests/integration/sql/test_renames.py`, `tests/unit/tables/test_renamed_columns.py` and
# `postgres/test_new_columns.py` show the parts in each run.
@pytest.mark.long(seconds=60)
@pytest.mark.parametrize("kind", [Replica, IcebergReplica], ids=["postgresql", "iceberg"])
def test_a_replica_follows_random_ddl_of_postgres_with_kills(
    tmp_path: Path, campaign: Any, kind: type[Replica]
) -> None:
    rng = campaign.random(f"changed columns {kind.target}")
    with PostgresServer.start(version=VERSIONS[-1]) as server:
        replica = kind(tmp_path, PostgresOrders(server), server, *FOLLOWS)
        figures = follow_random_ddl(replica, rng, campaign.size(4, 40))
    campaign.record(f"changed-columns-postgres-{kind.target}", **figures)


@pytest.mark.emulator
@pytest.mark.long(seconds=60)
def test_a_replica_follows_random_ddl_of_spanner_with_kills(
    tmp_path: Path, campaign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = campaign.random("changed columns of spanner")
    with PostgresServer.start(version=VERSIONS[-1]) as server, SpannerEmulator.start() as emulator:
        for name, value in emulator.environment().items():
            monkeypatch.setenv(name, value)
        replica = Replica(tmp_path, SpannerOrders(emulator), server, "evolve")
        figures = follow_random_ddl(replica, rng, campaign.size(4, 40), keeps_dropped=True)
    campaign.record("changed-columns-spanner-postgresql", **figures)


@pytest.mark.long(seconds=60)
@pytest.mark.parametrize("kind", [Replica, DeltaReplica], ids=["postgresql", "delta"])
def test_a_new_column_has_the_values_of_old_rows_through_kills(tmp_path: Path, kind: type[Replica]) -> None:
    """The log has no value of the columns in rows that nobody writes after the DDL."""
    with PostgresServer.start(version=VERSIONS[-1]) as server:
        replica = kind(tmp_path, PostgresOrders(server), server, "evolve")
        run = replica.start()
        try:
            with Writers(replica.source):
                # Shards of one transaction become visible one after the other.
                wait_for_run(run, replica.has_old_rows, "old rows are missing", replica.log)
                for step in range(2):
                    replica.source.alter(f"add column d{step} int default {step + 5}")
                    column, value = f"d{step}", step + 5
                    # A reader looks at its start, and then every minute. The second one dies between two chunks.
                    for rows in (1, len(OLD_ROWS)):
                        run.kill()
                        run = replica.start()
                        wait_for_run(
                            run,
                            lambda some=rows, column=column, value=value: (
                                replica.old_rows_with(column, value) >= some
                            ),
                            "old rows have no value",
                            replica.log,
                        )
            wait_for_run(run, replica.is_equal, "the target is not equal", replica.log)
        finally:
            run.kill()


@pytest.mark.long(seconds=60)
def test_each_shard_of_a_log_is_told_of_every_change_of_columns_through_kills(tmp_path: Path) -> None:
    actions = [
        "add column d int default 7",
        "rename column c0 to x",
        "alter column c1 type bigint",
        "drop column x",
    ]
    columns = [
        ["k", "c0", "c1"],
        ["k", "c0", "c1", "d"],
        ["k", "x", "c1", "d"],
        ["k", "x", "c1", "d"],
        ["k", "c1", "d"],
    ]
    with PostgresServer.start(version=VERSIONS[-1]) as server:
        log = Log(tmp_path, PostgresOrders(server), server)
        run = log.start()
        try:
            with Writers(log.source):
                wait_for_run(run, lambda: log.has(OLD_ROWS[-1]), "nothing arrives", log.log)
                for step, action in enumerate(actions):
                    log.source.alter(action)
                    if step % 2:
                        run.kill()
                        run = log.start()
                    marker = 1000 + step
                    log.source.write(marker, {})
                    wait_for_run(run, lambda key=marker: log.has(key), "no change arrives", log.log)
        finally:
            run.kill()
    assert told_columns(log.output) == {"00-of-02": columns, "01-of-02": columns}
