"""`penstock run` with one of many tables refused: it is parked, and exact after its resume.

The driver is killed while the table is parked, and while it is resuming. The table of Delta cannot take the new type of
a column of the source, and the table of PostgreSQL loses a right. Then a person corrects the table, and runs
`penstock tables … resume`.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from penstock.runner import RemoteJob
from penstock_emulators.oracle.kill import After, Run, kill_at, python
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.support.waiting import PATIENCE_SECONDS, wait_for_run, wait_until
from tests.support.writers import WriterThreads

# Simulations and the runner in this process show the same in each run.
pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=60), pytest.mark.campaign]

BAD = "t0"


class Writers(WriterThreads):
    """Inserts, updates and deletes rows of one table after the other."""

    def __init__(self, dsn: str, tables: int, pause: float) -> None:
        super().__init__(1, pause)
        self._dsn, self._tables, self.statements = dsn, tables, 0

    def write(self, rng: random.Random, seed: int, number: int) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as session:
            for _ in range(10):
                table, key = f"t{self.statements % self._tables}", rng.randrange(50)
                if rng.random() < 0.2:
                    session.execute(f"delete from {table} where id = {key}")
                else:
                    # A literal has the type of its column, also after that has changed.
                    row = f"({key}, '{self.statements}')"
                    session.execute(
                        f"insert into {table} values {row} on conflict (id) do update set v = excluded.v"
                    )
                self.statements += 1


class Lake:
    """Tables of Delta, as the target of a `Shop`."""

    template, reason = "postgres-to-delta", "column v of table"

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._folder = folder / "lake"
        self.sets = {"uri": f"{self._folder}/{{table}}", "roll_seconds": "0"}

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self._read(table).to_pylist() if DeltaTable.is_deltatable(str(self._folder / table)) else []

    def _read(self, table: str) -> pa.Table:
        # `to_pyarrow_table` in a loop ends the process now and then (delta-rs 1.6, pyarrow 25).
        return pa.table(
            QueryBuilder().register("t", DeltaTable(self._folder / table)).execute("select * from t")
        )

    def refuse(self, table: str, source: Database) -> None:
        source.execute(f"alter table {table} alter v type text")

    def correct(self, table: str) -> None:
        delta = DeltaTable(self._folder / table)
        held = self._read(table)
        as_text = held.set_column(held.schema.get_field_index("v"), "v", held["v"].cast("string"))
        write_deltalake(delta, as_text, mode="overwrite", schema_mode="overwrite")

    def commits(self, tables: int) -> int:
        return sum(DeltaTable(self._folder / f"t{n}").version() for n in range(tables))


class Copy:
    """Tables of another database, as the target of a `Shop`."""

    template, reason = "postgres-to-postgresql", "lacks a right"

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._database = Database(server)
        self.sets = {"target_dsn": self._database.dsn}

    def rows(self, table: str) -> list[dict[str, Any]]:
        if self._database.rows(f"select to_regclass('{table}')") == [(None,)]:
            return []
        found = self._database.rows(f"select id, v, _penstock_deleted from {table}")
        return [dict(zip(("id", "v", "_penstock_deleted"), row, strict=True)) for row in found]

    def refuse(self, table: str, source: Database) -> None:
        # A superuser has every right.
        self._database.execute(
            "create function refuse() returns trigger language plpgsql as "
            "$$ begin raise exception 'no' using errcode = '42501'; end $$",
            f"create trigger refuse before insert on {table} for each statement execute function refuse()",
        )

    def correct(self, table: str) -> None:
        self._database.execute(f"drop trigger refuse on {table}")

    def commits(self, tables: int) -> int:
        return 0


class Shop:
    """The tables of PostgreSQL and of a target, and the job between them."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        tables: int,
        target: Lake | Copy,
        publication: str = "for all tables",
        **options: str,
    ) -> None:
        self.options = options
        self.folder, self.database, self.tables = folder, database, tables
        self.target, self.checkpoint = target, folder / "checkpoint"
        database.execute(*(f"create table t{n} (id int primary key, v int)" for n in range(tables)))
        database.publish(publication)
        self.starts = 0

    def start(self) -> Run:
        self.starts += 1
        given = {
            "dsn": self.database.dsn,
            "publication": self.database.publication,
            "slot": self.database.slot,
            **self.target.sets,
            **self.options,
        }
        sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        options = ["--checkpoint-dir", str(self.checkpoint), "--master", "local[2,4]"]
        command = python("penstock.cli.main", "run", self.target.template, *sets, *options)
        return Run(command, log=self.log)

    @property
    def log(self) -> Path:
        """The output of the current run."""
        return self.folder / f"log-{self.starts}"

    def rows(self, table: str) -> dict[int, str]:
        return {key: str(value) for key, value in self.database.rows(f"select id, v from {table}")}

    def copied(self, table: str) -> dict[int, str]:
        """Return the rows of the target."""
        rows = self.target.rows(table)
        found = {row["id"]: str(row["v"]) for row in rows if not row["_penstock_deleted"]}
        assert len({row["id"] for row in rows}) == len(rows), "a key is in the table twice"
        return found

    def parked(self) -> dict[str, Any]:
        """Return the parked table by its name, with the words of `penstock tables --json`."""
        return {each.source: each for each in RemoteJob.open(str(self.checkpoint)).parked()}

    def is_equal(self) -> bool:
        return all(self.copied(f"t{n}") == self.rows(f"t{n}") for n in range(self.tables))

    def penstock(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = python("penstock.cli.main", *arguments)
        return subprocess.run(command, capture_output=True, text=True, timeout=180)


def latencies(shop: Shop, probes: int, key: int) -> list[float]:
    """Return how long rows take to the target, in seconds, for tables that are not refused; `key` is new."""
    found = []
    for number in range(probes):
        table, key = f"t{1 + number % (shop.tables - 1)}", key + 1
        began = time.monotonic()
        shop.database.execute(f"insert into {table} values ({key}, 0)")
        wait_until(lambda table=table, key=key: key in shop.copied(table), "a row does not arrive")
        found.append(time.monotonic() - began)
    return found


@pytest.mark.parametrize("tables", [5, 50])
@pytest.mark.parametrize("target", [Lake, Copy])
def test_one_refused_table_is_exact_after_its_resume_and_the_others_all_the_time(
    target: type[Lake | Copy], tables: int, tmp_path: Path, campaign: Any
) -> None:
    probes = 60 if tables > 5 else 3
    with PostgresServer.start(version=VERSIONS[-1]) as server:
        database = Database(server)
        shop = Shop(tmp_path, database, tables, target(tmp_path, server), on_refused_table="park")
        run = shop.start()
        writers = Writers(shop.database.dsn, tables, pause=1.0 if tables > 5 else 0.2)
        try:
            with writers:
                wait_for_run(run, lambda: bool(shop.copied(BAD)), "nothing arrives", shop.log)
                before = latencies(shop, probes, 1_000)
                shop.target.refuse(BAD, shop.database)
                wait_for_run(run, shop.parked, "nothing is parked", shop.log)
                run.kill()
                first = shop.parked()[f"public.{BAD}"]
                run = shop.start()
                wait_for_run(
                    run,
                    lambda: shop.parked()[f"public.{BAD}"].changes > first.changes,
                    "no more changes are parked",
                    shop.log,
                )
                parked = latencies(shop, probes, 2_000)
                shown = json.loads(shop.penstock("tables", str(shop.checkpoint), "--json").stdout)
                assert [each["source"] for each in shown] == [f"public.{BAD}"]
                assert shop.target.reason in shown[0]["reason"]
                shop.target.correct(BAD)
                asked = shop.penstock(
                    "tables", str(shop.checkpoint), "resume", f"public.{BAD}", "--wait", "0"
                )
                assert asked.returncode == 0, asked.stderr
                # In the middle of the resume, or just before or after it.
                moment = After(campaign.random(f"parked {tables}").random())
                kill_at(run, moment, "in the resume", PATIENCE_SECONDS)
                run = shop.start()
                wait_for_run(run, lambda: not shop.parked(), "the table does not go on", shop.log)
            wait_for_run(run, shop.is_equal, "the tables are not equal", shop.log)
        finally:
            run.kill()
        if tables > 5:
            campaign.record(
                "parked-tables" if target is Lake else "parked-tables-sql",
                tables=tables,
                kills=2,
                statements=writers.statements,
                commits=shop.target.commits(tables),
                seconds_of_others_before=percentiles(before),
                seconds_of_others_while_parked=percentiles(parked),
            )


def percentiles(seconds: list[float]) -> dict[str, float]:
    cuts = quantiles(seconds, n=100)
    return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3), "max": round(max(seconds), 3)}
