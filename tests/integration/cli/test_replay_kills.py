"""`penstock dead-letters replay` into a replica, killed again and again: no older change overtakes a newer row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.io.sql.target import SqlTarget
from penstock.io.sql.write import connector_of
from penstock.io.staging.delivery import Delivery
from penstock_emulators.oracle import kill
from penstock_emulators.oracle.kill import Later
from penstock_emulators.postgres import PostgresServer
from tests.support.sinks.databases import InTransaction
from tests.unit.cli.test_replay import SHOP, letter, refused

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=60)]

ROWS = 3000
OLD, NEW = 1_000, 1_000_000
SOURCE = Source("spanner", "my-project/main", "shop", "", "orders", "All")
SCHEMA = TableSchema((Column("id", ColumnType(Kind.INT64), False, 1), Column("n", ColumnType(Kind.INT64))))


def change(op: Op, key: int, order: int) -> ChangeEvent:
    after = None if op is Op.DELETE else {"id": key, "n": order}
    return ChangeEvent(SOURCE, op, order * 1000, {"id": key}, None, after, Version(order + key), SCHEMA)


@pytest.mark.campaign
def test_a_replay_that_is_killed_inserts_each_row_and_replaces_no_newer_one(
    penstock: list[str], tmp_path: Path, campaign: Any
) -> None:
    """Every second row has changed since its letter was written, and every sixth one was deleted."""
    draw = campaign.random("replay")
    with PostgresServer.start() as server:
        newer = [change(Op.DELETE if key % 6 == 0 else Op.UPDATE, key, NEW) for key in range(0, ROWS, 2)]
        sender = connector_of(SqlTarget(server.dsn())).open(skip_refused=False)
        sender.send(Delivery("main pipeline", "job", 0, 1, 1, 1), newer)
        sender.close()
        job = tmp_path / "job.yaml"
        parameters = {**SHOP, "target_dsn": server.dsn(), "dead_letters": str(tmp_path / "dead")}
        runner = {"checkpoint_dir": str(tmp_path / "checkpoint"), "master": "local[2,4]"}
        job.write_text(
            json.dumps({"template": "spanner-to-postgresql", "parameters": parameters, "runner": runner})
        )
        refused(job, "1.jsonl", *(letter(change(Op.CREATE, key, OLD), "Write") for key in range(ROWS)))
        command = [*penstock, "dead-letters", "replay", str(job), "--progress", "line"]
        moments = [
            ("in a transaction", Later(InTransaction(server.dsn()), draw.random() / 10))
            for _ in range(campaign.size(2, 10))
        ]
        kills = kill.campaign(command, moments, log=tmp_path / "log", seconds=300)
        # Once more: all letters are replayed, so nothing is written.
        kill.campaign(command, [], log=tmp_path / "log", seconds=300)
        with psycopg.connect(server.dsn()) as session:
            rows = session.execute("select id, n from orders where not _penstock_deleted").fetchall()
    expected = {key: NEW if key % 2 == 0 else OLD for key in range(ROWS) if key % 6}
    assert dict(rows) == expected
    assert kills
    assert "no dead letters that can be replayed" in (tmp_path / "log").read_text()
    campaign.record("replay-kills", kills=len(kills), letters=ROWS, rows=len(rows))
