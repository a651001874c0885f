"""`penstock run postgres-to-postgresql`, while DDL changes the columns of a table that is written, with kills.

Columns are renamed and dropped in the replica too, and the rows of a table with a new column are read again.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock_emulators.oracle.kill import After, Run, kill_at, python
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.support.waiting import PATIENCE_SECONDS, wait_for_run
from tests.support.writers import WriterThreads

# `tests/integration/sql/test_renames.py` and `postgres/test_new_columns.py` show the parts in each run.
pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=120), pytest.mark.campaign]

KEYS = 50


class Writers(WriterThreads):
    """Write and delete rows of the table in four threads, with the columns that it has."""

    def __init__(self, dsn: str) -> None:
        super().__init__(4, 0.08)
        self._dsn = dsn

    def write(self, rng: random.Random, seed: int, number: int) -> None:
        # DDL may come between the question and the statement.
        with psycopg.connect(self._dsn, autocommit=True) as session, suppress(psycopg.errors.UndefinedColumn):
            key, columns = rng.randrange(KEYS), columns_of(session)
            if rng.random() < 0.2:
                session.execute(f"delete from orders where k = {key}")
                return
            names, values = ", ".join(["k", *columns]), ", ".join([str(key), *(str(number) for _ in columns)])
            sets = ", ".join(f"{each} = excluded.{each}" for each in columns)
            session.execute(
                f"insert into orders ({names}) values ({values}) on conflict (k) do update set {sets}"
            )


def columns_of(session: Any) -> list[str]:
    """Return the columns of the table outside of its key."""
    query = (
        "select attname from pg_attribute where attrelid = 'orders'::regclass and attnum > 1 "
        "and not attisdropped order by 1"
    )
    return [name for (name,) in session.execute(query).fetchall()]


class Replica:
    """A table, its replica in another database, and the job between them."""

    def __init__(self, folder: Path, source: Database, target: Database) -> None:
        self.folder, self.source, self.target = folder, source, target
        self.starts = 0
        source.execute("create table orders (k int primary key, c0 int, c1 int)")
        source.execute("insert into orders select n, n, n from generate_series(100, 400) n")
        source.publish()
        # Each row comes through the log once, so that the target has the rows from before.
        source.execute("update orders set c1 = c1 + 1")

    def start(self) -> Run:
        self.starts += 1
        pairs = [
            ("dsn", self.source.dsn),
            ("publication", self.source.publication),
            ("slot", self.source.slot),
            ("target_dsn", self.target.dsn),
            ("new_columns", "snapshot"),
            *(("schema_changes", each) for each in ("evolve", "orders.rename=evolve", "orders.drop=evolve")),
        ]
        sets = [word for name, value in pairs for word in ("--set", f"{name}={value}")]
        options = ["--checkpoint-dir", str(self.folder / "checkpoint"), "--master", "local[2,4]"]
        return Run(
            python("penstock.cli.main", "run", "postgres-to-postgresql", *sets, *options), log=self.log
        )

    @property
    def log(self) -> Path:
        return self.folder / f"log-{self.starts}"

    def has(self, key: int) -> bool:
        ((table,),) = self.target.rows("select to_regclass('orders')")
        return table is not None and bool(self.target.rows(f"select from orders where k = {key}"))

    def is_equal(self) -> bool:
        columns = columns_of(self.source.session)
        held = [each for each in columns_of(self.target.session) if not each.startswith("_penstock_")]
        names = ", ".join(["k", *columns])
        return set(held) - {"k"} == set(columns) and self.target.rows(
            f"select {names} from orders where not _penstock_deleted order by k"
        ) == self.source.rows(f"select {names} from orders order by k")


def test_a_replica_follows_random_ddl_with_kills(tmp_path: Path, campaign: Any) -> None:
    rng = campaign.random("changed columns")
    with PostgresServer.start(version=VERSIONS[-1]) as server:
        replica = Replica(tmp_path, Database(server), Database(server))
        run = replica.start()
        try:
            with Writers(replica.source.dsn):
                wait_for_run(run, lambda: replica.has(400), "nothing arrives", replica.log)
                for step in range(campaign.size(6, 40)):
                    old = rng.choice(columns_of(replica.source.session))
                    statements = [
                        f"add column d{step} int default {step}",
                        f"add column n{step} int",
                        f"rename column {old} to r{step}",
                        f"rename column {old} to r{step}",
                        f"alter column {old} type bigint",
                        *([f"drop column {old}"] if step % 3 == 2 else []),
                    ]
                    replica.source.execute(f"alter table orders {rng.choice(statements)}")
                    if step % 2:
                        kill_at(run, After(rng.random()), "after DDL", PATIENCE_SECONDS)
                        run = replica.start()
                    # The log does not tell numbers of columns: a further rename waits until this one was read.
                    replica.source.execute(f"insert into orders (k) values ({1000 + step})")
                    marker = 1000 + step
                    wait_for_run(run, lambda key=marker: replica.has(key), "no change arrives", replica.log)
            wait_for_run(run, replica.is_equal, "the replica is not equal", replica.log)
            run.kill()
            run = replica.start()
            replica.source.execute("insert into orders (k) values (-1)")
            wait_for_run(run, replica.is_equal, "the replica is not equal", replica.log)
        finally:
            run.kill()
