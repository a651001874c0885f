"""`penstock run --limit --print` on a real server and real Spark: it shows changes and leaves no trace."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock_emulators.postgres import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=20)]

SLOTS = "select slot_name, confirmed_flush_lsn, restart_lsn from pg_replication_slots"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.start() as running, psycopg.connect(running.dsn(), autocommit=True) as client:
        client.execute("create table orders (id int primary key, state text, email text)")
        client.execute("create publication shop for table orders")
        client.execute("select pg_create_logical_replication_slot('penstock', 'pgoutput')")
        client.execute(
            "insert into orders select n, 'open', n || '@example.com' from generate_series(1, 5) n"
        )
        client.execute("update orders set state = 'paid' where id = 1")
        yield running


def preview(server: PostgresServer, penstock: list[str], folder: Path, *options: str) -> Any:
    command = [*penstock, "run", "postgres-to-delta", "--set", "slot=penstock", "--set", "publication=shop"]
    command += ["--set", f"dsn={server.dsn()} password=secret-word", "--set", f"uri={folder}/lake/{{table}}"]
    command += ["--checkpoint-dir", str(folder / "checkpoint"), "--limit", "10", "--print"]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=180, cwd=folder)


def slots(server: PostgresServer) -> list[Any]:
    with psycopg.connect(server.dsn()) as client:
        return client.execute(SLOTS).fetchall()


@pytest.mark.long(seconds=10)
def test_a_preview_shows_masked_rows_and_leaves_no_trace(
    server: PostgresServer, penstock: list[str], tmp_path: Path
) -> None:
    before = slots(server)
    done = preview(server, penstock, tmp_path, "--set", "mask_columns.email=redact")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line)["row"] for line in done.stdout.splitlines()]
    # Several epochs: a pipeline that runs moves its slot with each of them.
    assert [(row["id"], row["state"]) for row in rows] == [*((n, "open") for n in range(1, 6)), (1, "paid")]
    assert {row["email"] for row in rows} == {"***"}
    assert "6 changes; no more at hand; nothing was written" in done.stderr
    assert "secret-word" not in done.stdout + done.stderr
    assert slots(server) == before
    assert list(tmp_path.iterdir()) == []
