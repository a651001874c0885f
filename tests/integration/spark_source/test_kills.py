"""Real Spark queries over the data sources under SIGKILL: the query continues, and its rows make the table.

Killed are, in turn, all processes of a query, one of its Python workers, and its driver alone. All queries have the
columns of the table (the option `table`, or YDB's layout *table*). The queries that are killed run in a process of
their own. The last one, which reads to the end, runs in the session of the tests. `PENSTOCK_SOURCE_KILLS` is the number
of kills of a campaign.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks.demo.data_source_job import save_changes
from penstock_emulators.oracle.kill import Run
from penstock_emulators.postgres import PostgresServer, installed_servers
from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.ydb import YdbEmulator
from tests.integration.sinks.disturbances import ALL, DRIVER, WORKER, ProcessRuns
from tests.support.oracle.change_feed import complete_batches, replay, rows_of, written
from tests.support.spark_jvm import jvm_options
from tests.support.waiting import join

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=90)]

KEYS = 40
KILLS = int(os.environ.get("PENSTOCK_SOURCE_KILLS", "50"))
KINDS = (ALL, WORKER, DRIVER)
WORKERS = ("-m pyspark.daemon", "python_streaming_source_runner")
"""Parts of the command lines of Spark's Python processes: of the tasks, and of the source on the driver."""
PATIENCE_SECONDS = 900


class Writer(threading.Thread):
    """Changes rows of a table until it is told to stop, and counts its changes."""

    def __init__(self, change: Any) -> None:
        super().__init__(daemon=True)
        self._change, self.written, self._stopped = change, Counter[str](), threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stopped.wait(0.01):
            key = number * 7 % KEYS
            kind = "delete" if number % 11 == 10 else "write"
            self._change(key, number, kind)
            self.written[kind] += 1
            number += 1

    def stop(self) -> None:
        self._stopped.set()
        join(self)


def query(folder: Path, format_: str, trigger: str, options: dict[str, str]) -> Run:
    pairs = [f"{name}={value}" for name, value in options.items()]
    program = [sys.executable, "-m", "benchmarks.demo.data_source_job"]
    environment = {"SPARK_SUBMIT_OPTS": jvm_options()}
    return Run([*program, format_, str(folder), trigger, *pairs], environment=environment)


def wait_for_batches(run: Run, folder: Path, count: int, *, or_end: bool = False) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(complete_batches(folder / "rows")) < count:
        if or_end and not run.alive():
            return
        assert run.alive(), "the query ended on its own"
        assert time.monotonic() < deadline, "no batch came"
        time.sleep(0.02)


class Kills:
    """A query that is killed again and again, while a batch is written or read, and started again."""

    def __init__(self, folder: Path, format_: str, options: dict[str, str], rng: random.Random) -> None:
        self._folder, self._query, self._rng = folder, (format_, "200 milliseconds", options), rng
        self.done = Counter[str]()
        self.survived = 0
        """Kills of a worker after which the same query has written a batch: Spark has tried the task again."""

    def perform(self, count: int) -> None:
        with ExitStack() as runs:
            for number in range(count):
                run = runs.enter_context(query(self._folder, *self._query))
                self._wait(run, 2 - number % 2)
                kind = KINDS[number % len(KINDS)]
                if kind == ALL:
                    run.kill()
                elif kind == DRIVER:
                    # Its JVM and workers end when they notice it, beside the next query.
                    run.send(signal.SIGKILL)
                else:
                    self._kill_worker(run)
                self.done[kind] += 1

    def figures(self, writer: Writer) -> dict[str, Any]:
        """Return what a campaign records: kills, changes that were written, and batches that make the table."""
        return {
            **self.done,
            "kills": self.done.total(),
            "killed workers that the query survived": self.survived,
            "changes": writer.written.total(),
            "batches": len(complete_batches(self._folder / "rows")),
        }

    def _wait(self, run: Run, more: int, **options: bool) -> None:
        wait_for_batches(run, self._folder, len(complete_batches(self._folder / "rows")) + more, **options)

    def _kill_worker(self, run: Run) -> None:
        """Kill a Python process of Spark. Without the source's process the query fails, and is started again."""
        moment = ProcessRuns(run.process.pid, self._rng.choice(WORKERS))
        while not moment.is_now():
            assert run.alive(), f"the query ended before it had a process {moment.part}"
        os.kill(self._rng.choice(moment.found), signal.SIGKILL)
        self._wait(run, 1, or_end=True)
        self.survived += run.alive()
        run.kill()


@pytest.fixture
def spanner(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedSpanner]:
    with SimulatedSpanner.start(churn_seconds=1, seed=5) as service:
        for name, value in service.environment().items():
            monkeypatch.setenv(name, value)
        yield service


def test_a_killed_query_over_spanner_with_churn_gives_the_table(
    spanner: SimulatedSpanner, spark: Any, tmp_path: Path, campaign: Any
) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.spanner import Client, KeySet

    spanner.create_database(
        "penstock-test",
        "main",
        "shop",
        [
            "CREATE TABLE Orders (Id INT64 NOT NULL, Value INT64) PRIMARY KEY (Id)",
            "CREATE CHANGE STREAM S FOR ALL OPTIONS (value_capture_type = 'OLD_AND_NEW_VALUES')",
        ],
    )
    client = Client(project="penstock-test", credentials=AnonymousCredentials(), disable_builtin_metrics=True)
    database = client.instance("main").database("shop")

    def change(key: int, number: int, kind: str) -> None:
        with database.batch() as batch:
            if kind == "delete":
                batch.delete("Orders", KeySet(keys=[[key]]))
            else:
                batch.insert_or_update("Orders", ["Id", "Value"], [[key, number]])

    with database.snapshot() as snapshot:
        ((now,),) = snapshot.execute_sql("SELECT CURRENT_TIMESTAMP")
    options = {"project": "penstock-test", "instance": "main", "database": "shop", "change_stream": "S"}
    options |= {"table": "Orders", "start": now.rfc3339(), "emulator_host": spanner.host}
    writer = Writer(change)
    writer.start()
    kills = Kills(tmp_path, "penstock-spanner", options, campaign.random("spanner"))
    kills.perform(campaign.size(3, KILLS))
    writer.stop()
    save_changes(spark, "penstock-spanner", str(tmp_path), "now", options)
    rows = rows_of(tmp_path / "rows")
    assert written(rows) == writer.written["write"]
    with database.snapshot() as snapshot:
        table = dict(snapshot.read("Orders", ["Id", "Value"], KeySet(all_=True)))
    assert replay(rows, "Id", "Value") == table
    campaign.record("data-source-kills-spanner", **kills.figures(writer))


@pytest.mark.campaign
def test_a_killed_query_over_postgres_gives_the_table(spark: Any, tmp_path: Path, campaign: Any) -> None:
    with PostgresServer.start(version=max(installed_servers(), default=18)) as server:
        dsn = server.dsn()
        with psycopg.connect(dsn, autocommit=True) as session:
            session.execute("create table orders (id int primary key, value int)")
            session.execute("alter table orders replica identity full")
            session.execute("create publication changes for all tables")
            session.execute("select pg_create_logical_replication_slot('penstock', 'pgoutput')")

            def change(key: int, number: int, kind: str) -> None:
                if kind == "delete":
                    session.execute("delete from orders where id = %s", (key,))
                else:
                    session.execute(
                        "insert into orders values (%s, %s) on conflict (id) do update set value = excluded.value",
                        (key, number),
                    )

            writer = Writer(change)
            writer.start()
            options = {"dsn": dsn, "publication": "changes", "slot": "penstock", "table": "public.orders"}
            kills = Kills(tmp_path, "penstock-postgres", options, campaign.random("postgres"))
            kills.perform(campaign.size(3, KILLS))
            writer.stop()
            save_changes(spark, "penstock-postgres", str(tmp_path), "now", options)
            table = dict(session.execute("select id, value from orders").fetchall())
    rows = rows_of(tmp_path / "rows")
    assert written(rows) == writer.written["write"]
    assert replay(rows, "id", "value") == table
    campaign.record("data-source-kills-postgres", **kills.figures(writer))


def test_available_now_after_a_crash_reads_also_what_came_after_the_interrupted_batch(
    spark: Any, tmp_path: Path
) -> None:
    with PostgresServer.start(version=max(installed_servers(), default=18)) as server:
        options = {
            "dsn": server.dsn(),
            "publication": "changes",
            "slot": "penstock",
            "table": "public.orders",
        }
        with psycopg.connect(server.dsn(), autocommit=True) as session:
            session.execute("create table orders (id int primary key, value int)")
            session.execute("create publication changes for all tables")
            session.execute("select pg_create_logical_replication_slot('penstock', 'pgoutput')")
            for number in range(2):
                session.execute("insert into orders values (%s, 0)", (number,))
                save_changes(spark, "penstock-postgres", str(tmp_path), "now", options)
                # As a query leaves it that is killed before Spark has written that the batch is complete.
                (commit,) = (tmp_path / "checkpoint" / "commits").glob(f"{number}")
                commit.unlink()
                commit.with_name(f".{number}.crc").unlink()
            session.execute("insert into orders values (2, 0)")
            save_changes(spark, "penstock-postgres", str(tmp_path), "now", options)
    assert sorted(row["id"] for row in rows_of(tmp_path / "rows")) == [0, 1, 2]


@pytest.mark.campaign
def test_a_killed_query_over_ydb_gives_the_table(spark: Any, tmp_path: Path, campaign: Any) -> None:
    with YdbEmulator.start() as service:
        control = service.control
        control.create_table("orders", {"id": "Int64", "value": "Int64"}, ["id"], shards=2)
        images = {"mode": "NEW_AND_OLD_IMAGES", "virtual_timestamps": True, "barrier_seconds": 0.1}
        control.add_changefeed("orders", "feed", partitions=2, **images)
        partitions = [0, 1]

        def change(key: int, number: int, kind: str) -> None:
            row = ["orders", [key]] if kind == "delete" else ["orders", [key], {"value": number}]
            control.commit([["erase" if kind == "delete" else "upsert", *row]])
            if number % 600 == 599:
                # The oldest one, because a partition can be halved only so often.
                partitions[:] = [*partitions[1:], *control.split("orders/feed", partitions[0])]

        writer = Writer(change)
        writer.start()
        options = {
            "endpoint": service.endpoint,
            "database": "/local",
            "table": "orders",
            "changefeed": "feed",
        }
        limit = {"maxRowsPerTrigger": "1000"}
        kills = Kills(tmp_path, "penstock-ydb", options | limit, campaign.random("ydb"))
        kills.perform(campaign.size(3, KILLS))
        writer.stop()
        # Without the limit, because the writer is far ahead after many kills.
        save_changes(spark, "penstock-ydb", str(tmp_path), "now", options)
        table = {key: row["value"] for (key,), row in control.rows("orders")}
    # An erase of a row that is not there is a record too.
    rows = [
        row
        for row in rows_of(tmp_path / "rows")
        if row["_change_type"] != "delete" or row["value"] is not None
    ]
    assert written(rows) == writer.written["write"]
    assert replay(rows, "id", "value") == table
    campaign.record("data-source-kills-ydb", **kills.figures(writer))
