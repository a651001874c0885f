"""`penstock run postgres-to-…`, while DDL changes the columns of a table that is written, with kills.

Columns are renamed and dropped in the target too, and the rows of a table with a new column are read again.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from penstock_emulators.oracle.kill import After, Run, kill_at, python
from penstock_emulators.oracle.lines import read_lines
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.support.schema_lines import SHARDS, told_columns
from tests.support.waiting import PATIENCE_SECONDS, wait_for_run
from tests.support.writers import WriterThreads

pytestmark = pytest.mark.spark

KEYS = 50
OLD_ROWS = range(100, 401)
"""Keys of rows that nobody writes after the first start."""


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
    """A table, its replica in a target, and the job between them."""

    template = "postgres-to-postgresql"
    reads_again: ClassVar[dict[str, str]] = {"new_columns": "snapshot", "chunk_rows": "20"}
    """Parameters with which the rows of a table with a new column are read again."""

    def __init__(self, folder: Path, server: PostgresServer, *schema_changes: str) -> None:
        self.folder, self.source, self.schema_changes = folder, Database(server), schema_changes
        self.target = Database(server)
        self.starts = 0
        self.source.execute("create table orders (k int primary key, c0 int, c1 int)")
        self.source.execute(
            f"insert into orders select n, n, n from generate_series({OLD_ROWS[0]}, {OLD_ROWS[-1]}) n"
        )
        self.source.publish()
        # Each row comes through the log once, so that the target has the rows from before.
        self.source.execute("update orders set c1 = c1 + 1")

    def start(self) -> Run:
        self.starts += 1
        pairs = [
            ("dsn", self.source.dsn),
            ("publication", self.source.publication),
            ("slot", self.source.slot),
            *self.reads_again.items(),
            *(("schema_changes", each) for each in self.schema_changes),
            *self.target_options().items(),
        ]
        sets = [word for name, value in pairs for word in ("--set", f"{name}={value}")]
        options = ["--checkpoint-dir", str(self.folder / "checkpoint"), "--master", "local[2,4]"]
        return Run(python("penstock.cli.main", "run", self.template, *sets, *options), log=self.log)

    def target_options(self) -> dict[str, str]:
        return {"target_dsn": self.target.dsn}

    @property
    def log(self) -> Path:
        return self.folder / f"log-{self.starts}"

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the target; none if there is no table yet."""
        ((table,),) = self.target.rows("select to_regclass('orders')")
        if table is None:
            return []
        # One value of one type for each row: DDL may come at any moment.
        return [row for (row,) in self.target.rows("select to_jsonb(each) from orders each")]

    def live(self) -> dict[int, dict[str, Any]]:
        """Return the rows that are not deleted by key, with the columns of the source."""
        rows = self.rows()
        found = {
            row["k"]: {name: value for name, value in row.items() if not name.startswith("_penstock")}
            for row in rows
            if not row["_penstock_deleted"]
        }
        assert len({row["k"] for row in rows}) == len(rows), "a key is in the table twice"
        return found

    def old_rows_with(self, column: str, value: int) -> int:
        """Return how many of the rows that nobody writes have a value."""
        live = self.live()
        return sum(live[key].get(column) == value for key in OLD_ROWS)

    def has_old_rows(self) -> bool:
        return self.live().keys() >= set(OLD_ROWS)

    def has(self, key: int) -> bool:
        return key in self.live()

    def is_equal(self) -> bool:
        names = ["k", *columns_of(self.source.session)]
        rows = self.source.rows(f"select {', '.join(names)} from orders")
        return self.live() == {row[0]: dict(zip(names, row, strict=True)) for row in rows}


class DeltaReplica(Replica):
    """The same with a Delta table."""

    template = "postgres-to-delta"

    def target_options(self) -> dict[str, str]:
        return {"uri": f"{self.folder}/lake/{{table}}", "roll_seconds": "0"}

    def rows(self) -> list[dict[str, Any]]:
        table = self.folder / "lake/orders"
        if not DeltaTable.is_deltatable(str(table)):
            return []
        # `to_pyarrow_table` in a loop ends the process now and then (delta-rs 1.6, pyarrow 25).
        return pa.table(
            QueryBuilder().register("t", DeltaTable(table)).execute("select * from t")
        ).to_pylist()


class Log(Replica):
    """Files with the changes, and with records that tell the columns."""

    template = "postgres-to-files"
    reads_again: ClassVar[dict[str, str]] = {}

    def target_options(self) -> dict[str, str]:
        told = {"format": "change_feed", "schema_events": "true"}
        return {"output": str(self.output), "shards": str(SHARDS), "roll_seconds": "0", **told}

    @property
    def output(self) -> Path:
        return self.folder / "log"

    def has(self, key: int) -> bool:
        return any(line.content.get("k") == key for line in read_lines(self.output))


# `tests/integration/sql/test_renames.py` and `postgres/test_new_columns.py` show the parts in each run.
@pytest.mark.campaign
@pytest.mark.slow(seconds=120)
def test_a_replica_follows_random_ddl_with_kills(tmp_path: Path, campaign: Any) -> None:
    rng = campaign.random("changed columns")
    with PostgresServer.start(version=VERSIONS[-1]) as server:
        replica = Replica(tmp_path, server, "evolve", "orders.rename=evolve", "orders.drop=evolve")
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
                        moment = After(rng.random())
                        moment.arm()
                        kill_at(run, moment, "after DDL", PATIENCE_SECONDS)
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


@pytest.mark.long(seconds=60)
@pytest.mark.parametrize("kind", [Replica, DeltaReplica], ids=["postgresql", "delta"])
def test_a_new_column_has_the_values_of_old_rows_through_kills(tmp_path: Path, kind: type[Replica]) -> None:
    """The log has no value of the columns in rows that nobody writes after the DDL."""
    with PostgresServer.start(version=VERSIONS[-1]) as server:
        replica = kind(tmp_path, server, "evolve")
        run = replica.start()
        try:
            with Writers(replica.source.dsn):
                # Shards of one transaction become visible one after the other.
                wait_for_run(run, replica.has_old_rows, "old rows are missing", replica.log)
                for step in range(2):
                    replica.source.execute(f"alter table orders add column d{step} int default {step + 5}")
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
    statements = [
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
        log = Log(tmp_path, server)
        run = log.start()
        try:
            with Writers(log.source.dsn):
                wait_for_run(run, lambda: log.has(OLD_ROWS[-1]), "nothing arrives", log.log)
                for step, statement in enumerate(statements):
                    log.source.execute(f"alter table orders {statement}")
                    if step % 2:
                        run.kill()
                        run = log.start()
                    marker = 1000 + step
                    log.source.execute(f"insert into orders (k) values ({marker})")
                    wait_for_run(run, lambda key=marker: log.has(key), "no change arrives", log.log)
        finally:
            run.kill()
    assert told_columns(log.output) == {"00-of-02": columns, "01-of-02": columns}
