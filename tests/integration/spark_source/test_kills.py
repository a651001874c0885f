"""Real Spark queries over the data sources: the driver is killed, the query continues, and the rows are the table.

The queries that are killed run in a process of their own. The last one, which reads to the end, runs in the session of
the tests.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks.demo.data_source_job import save_changes
from penstock_emulators.oracle.kill import Run
from penstock_emulators.postgres import PostgresServer, installed_servers
from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.ydb import YdbEmulator
from tests.support.oracle.change_feed import complete_batches, replay, rows_of, written
from tests.support.spark_jvm import jvm_options
from tests.support.waiting import join

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=90)]

KEYS = 40
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


def wait_for_batches(run: Run, folder: Path, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(complete_batches(folder / "rows")) < count:
        assert run.process.poll() is None, "the query ended on its own"
        assert time.monotonic() < deadline, "no batch came"
        time.sleep(0.02)


def killed_and_continued(folder: Path, format_: str, options: dict[str, str], kills: int) -> None:
    """Run a query that is killed again and again, while a batch is written or read."""
    for number in range(kills):
        with query(folder, format_, "200 milliseconds", options) as run:
            wait_for_batches(run, folder, len(complete_batches(folder / "rows")) + 2 - number % 2)
            run.kill()


def figures(kills: int, writer: Writer, folder: Path) -> dict[str, int]:
    """Return what a campaign records: changes that were written, and batches that make the table."""
    return {
        "kills": kills,
        "changes": writer.written.total(),
        "batches": len(complete_batches(folder / "rows")),
    }


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
    kills = campaign.size(1, 20)
    killed_and_continued(tmp_path, "penstock-spanner", options, kills)
    writer.stop()
    save_changes(spark, "penstock-spanner", str(tmp_path), "now", options)
    rows = rows_of(tmp_path / "rows")
    assert written(rows) == writer.written["write"]
    with database.snapshot() as snapshot:
        table = dict(snapshot.read("Orders", ["Id", "Value"], KeySet(all_=True)))
    assert replay(rows, "Id", "Value") == table
    campaign.record("data-source-kills-spanner", **figures(kills, writer, tmp_path))


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
            kills = campaign.size(1, 20)
            killed_and_continued(tmp_path, "penstock-postgres", options, kills)
            writer.stop()
            save_changes(spark, "penstock-postgres", str(tmp_path), "now", options)
            table = dict(session.execute("select id, value from orders").fetchall())
    rows = rows_of(tmp_path / "rows")
    assert written(rows) == writer.written["write"]
    assert replay(rows, "id", "value") == table
    campaign.record("data-source-kills-postgres", **figures(kills, writer, tmp_path))


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
        kills = campaign.size(1, 50)
        killed_and_continued(tmp_path, "penstock-ydb", options | limit, kills)
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
    campaign.record("data-source-kills-ydb", **figures(kills, writer, tmp_path))
