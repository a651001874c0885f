"""The AUTO CDC example of docs/spark-data-source.md, run by Spark, makes the tables of the modes current and history.

AUTO CDC needs a catalog with row-level operations, and no table format has them for this Spark. So the tables are in
the catalog in memory of Spark's own tests. Its jar comes from Maven once. The newest one is a version older than Spark.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet
import pytest

from penstock.event import ChangeEvent, Op
from penstock.event.change_feed import change_feed
from penstock.event.keys import changed_key
from penstock.event.replica import encode_version
from penstock.io.columnar.table_rows import ENDED_BY, VERSION
from penstock.runner.spark.java import find_java
from penstock.spark.postgres import PostgresDataSource
from penstock_emulators.maven import cache, fetch
from penstock_emulators.oracle.kill import Run
from penstock_emulators.postgres import PostgresServer, installed_servers
from penstock_emulators.server_process import free_port
from tests.integration.spark_source.orders import change_a_row
from tests.integration.spark_source.test_page import AUTO_CDC
from tests.support.lake_tables import CurrentTable, HistoryTable
from tests.support.spark_jvm import jvm_options
from tests.support.waiting import end_of, wait_for_run

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=75)]

CATALOG = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"
CATALOG_JAR = "org.apache.spark:spark-catalyst_2.13:4.2.0:tests"
SPEC = """
name: orders
catalog: memory
database: shop
storage: {folder}/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.pipelines.maxFlowRetryAttempts: "40"
  spark.sql.pipelines.execution.watchdog.maxRetryTime: "5"
"""
"""A flow is tried again: Spark waits ten seconds for the process of a Python source, which may start later."""
COLUMNS = (
    "Id int, Value string, _change_type string, _commit_version string, _commit_timestamp timestamp, "
    "_not_sent array<string>"
)
NAMES = {1: "one", 2: "two"}
"""Of the targets, by SCD type."""
ROUNDS, CHANGES = 2, 60
LATE_PART = 0.25
"""Changes that come late, in a file with the changes of the next round."""


class Pipelines:
    """A server of Spark Connect whose catalog `memory` has row-level operations. Its tables live as long as it."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        self._folder, port = folder, free_port()
        self.url = f"sc://127.0.0.1:{port}"
        self._log = folder / "server.log"
        home, jars = Path(pyspark.__file__).parent, cache() / "spark-catalogs-4.2"
        fetch(jars, [CATALOG_JAR])
        settings = {
            "spark.connect.grpc.binding.port": port,
            "spark.sql.catalog.memory": CATALOG,
            "spark.sql.shuffle.partitions": 1,
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
        pairs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        server = [
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "--master",
            "local[2]",
        ]
        self.run = Run(
            [
                str(home / "bin" / "spark-submit"),
                *server,
                *pairs,
                "--driver-class-path",
                f"{jars}/*",
            ],
            log=self._log,
            environment={
                "SPARK_HOME": str(home),
                "JAVA_HOME": find_java().home,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_SUBMIT_OPTS": jvm_options(),
            },
        )

    def wait(self) -> None:
        started = "Spark Connect server started"
        wait_for_run(self.run, lambda: started in self._log.read_text(), "the server", self._log)
        # The sessions of this catalog share their tables and not their namespaces: one exists if it has a table.
        self.sql("create namespace memory.shop", "create table memory.shop.first (id int)")

    def sql(self, *statements: str) -> list[Any]:
        """Run statements; return the rows of the last one."""
        client = [sys.executable, "-m", "tests.integration.spark_source.connect_client"]
        done = subprocess.run(
            [*client, self.url, *statements], capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stderr[-5_000:]
        rows: list[Any] = json.loads(done.stdout)
        return rows

    def update(self) -> None:
        """Run the pipeline of the folder until it has read what there is, as the command spark-pipelines does."""
        command = [sys.executable, "-m", "pyspark.pipelines.cli", "run"]
        done = subprocess.run(
            command,
            cwd=self._folder,
            env={**os.environ, "SPARK_REMOTE": self.url},
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        told = done.stdout + done.stderr
        assert "Run is COMPLETED" in told, told + end_of(self._log)
        # PySpark 4.3.0: its client does not know the metrics that Python sources add to the end of a run.
        assert done.returncode == 0 or "Unknown response: Plan observed(__python_accumulator__" in told, told


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    started = Pipelines(tmp_path)
    with started.run:
        started.wait()
        yield started


def example(dsn: str, name: str, scd_type: int, files: Path, late: Sequence[str]) -> str:
    """Return the example of the page for a table that takes the changes with the versions `late` only from files."""
    code = AUTO_CDC.replace("${file:/run/secrets/shop-dsn}", dsn).replace("shop_changes", "p")
    for old in ("orders_now", "order_changes", "penstock"):
        # Not the names of the package and of its data source.
        code = code.replace(f'"{old}"', f'"{name}_{old}"').replace(f"def {old}(", f"def {name}_{old}(")
    filtered = """.where("_change_type <> 'truncate'")"""
    others = f".where(~changes._commit_version.isin({list(late)!r}))"
    read = f"spark.readStream.schema({COLUMNS!r}).parquet({str(files)!r})"
    assert code.count(filtered) == 1
    return code.replace(filtered, f"{filtered}{others}.unionByName({read})").replace(
        "stored_as_scd_type=1", f"stored_as_scd_type={scd_type}"
    )


def test_auto_cdc_makes_the_tables_of_current_and_history_with_moved_keys_and_late_changes(
    pipelines: Pipelines, tmp_path: Path
) -> None:
    draw, files = random.Random(11), tmp_path / "late"
    for folder in (files, tmp_path / "transformations"):
        folder.mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path.as_uri()))
    current, history = CurrentTable(), HistoryTable()
    late: list[ChangeEvent] = []
    with PostgresServer.start(version=max(installed_servers(), default=18)) as server:
        secret = tmp_path / "dsn"
        secret.write_text(server.dsn())
        session = psycopg.connect(server.dsn(), autocommit=True)
        session.execute('create table orders ("Id" int primary key, "Value" text)')
        session.execute("alter table orders replica identity full")
        session.execute("create publication p for table orders")
        for name in NAMES.values():
            session.execute(f"select pg_create_logical_replication_slot('{name}_penstock', 'pgoutput')")
        options = {"dsn": server.dsn(), "publication": "p", "slot": "one_penstock", "table": "public.orders"}
        stream = PostgresDataSource(options).stream()
        columns = stream.columns()
        assert columns is not None
        before, due = stream.first(None), []
        for number in range(ROUNDS):
            for change in range(CHANGES):
                change_a_row(session, draw, number * CHANGES + change)
            # The flow leaves TRUNCATE out. The rows stay in all tables, and keys that come again are updated.
            session.execute("truncate orders")
            after = stream.last()
            events = [event for event in read(stream, before, after) if event.op is not Op.TRUNCATE]
            before, waiting = after, [event for event in events if draw.random() < LATE_PART]
            late += waiting
            if due:
                pyarrow.parquet.write_table(change_feed(due, columns), files / f"{number}.parquet")
            for scd_type, name in NAMES.items():
                versions = [encode_version(event.version) for event in late]
                code = example("${file:" + str(secret) + "}", name, scd_type, files, versions)
                (tmp_path / "transformations" / f"{name}.py").write_text(code)
            pipelines.update()
            for table in (current, history):
                table.publish([event for event in events if event not in waiting])
                table.publish(due)
            due = waiting
        session.close()
    assert sum(changed_key(event) is not None for event in late if event not in due) > 1
    ours = {(row["Id"], row["Value"]) for row in current.live()}
    theirs = pipelines.sql("select Id, Value from memory.shop.one_orders_now")
    assert sorted(map(tuple, theirs)) == sorted(ours)
    periods = [
        (row["Id"], row["Value"], row[VERSION], row[ENDED_BY])
        for row in history.rows(lambda row: row[VERSION] != row[ENDED_BY])
    ]
    ends = "__START_AT._commit_version, __END_AT._commit_version"
    theirs = pipelines.sql(f"select Id, Value, {ends} from memory.shop.two_orders_now")
    assert sorted(map(tuple, theirs), key=repr) == sorted(periods, key=repr)


def read(stream: Any, before: Any, after: Any) -> list[ChangeEvent]:
    parts = stream.parts(before, after)
    return [event for part in parts for group in stream.read(part) for event in group]
