"""The demo of the data sources, and the same program as a client of Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from penstock_emulators.postgres import PostgresServer, installed_servers
from tests.support.oracle.change_feed import replay, rows_of
from tests.support.spark_jvm import jvm_options

pytestmark = pytest.mark.spark


@pytest.mark.slow(seconds=60)
@pytest.mark.campaign
def test_the_demo_of_spark_ends_with_its_proof(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.demo", "spark", "--folder", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Replaying the files gives the table's" in done.stdout
    assert "WRONG" not in done.stdout


# test_auto_cdc.py reads by Spark Connect in each run.
@pytest.mark.long(seconds=45)
def test_a_client_of_spark_connect_reads_the_same_rows(tmp_path: Path) -> None:
    with (
        PostgresServer.start(version=max(installed_servers(), default=18)) as server,
        psycopg.connect(server.dsn(), autocommit=True) as session,
    ):
        session.execute("create table orders (id int primary key, value int)")
        session.execute("alter table orders replica identity full")
        session.execute("create publication changes for all tables")
        session.execute("select pg_create_logical_replication_slot('penstock', 'pgoutput')")
        for number in range(50):
            session.execute(
                "insert into orders values (%s, %s) on conflict (id) do update set value = excluded.value",
                (number % 7, number),
            )
        options = [f"dsn={server.dsn()}", "publication=changes", "slot=penstock", "table=public.orders"]
        program = [sys.executable, "-m", "benchmarks.demo.data_source_job", "penstock-postgres"]
        # With SPARK_TESTING the server takes a free port. Otherwise it is 15002, which another run may have.
        remote = {"SPARK_REMOTE": "local[2]", "SPARK_TESTING": "1", "SPARK_SUBMIT_OPTS": jvm_options()}
        done = subprocess.run(
            [*program, str(tmp_path), "now", *options],
            env={**os.environ, **remote},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        table = dict(session.execute("select id, value from orders").fetchall())
    rows = rows_of(tmp_path / "rows")
    assert len(rows) == 7 + 2 * 43
    assert replay(rows, "id", "value") == table
