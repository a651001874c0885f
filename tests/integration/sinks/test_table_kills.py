"""`penstock run postgres-to-delta` under SIGKILL: the table of Delta is the table of PostgreSQL, read by DuckDB."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from penstock.compat import UTC
from penstock_emulators.oracle import kill
from penstock_emulators.oracle.kill import After, python
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.integration.postgres.workload import CREATE, Writers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECONDS_A_KILL = 7.0
COLUMNS = {"accounts": ("id", "balance", "note"), "notes": ("part", "id", "body")}
KEYS = {"accounts": ("id",), "notes": ("part", "id")}

Rows = dict[tuple[Any, ...], tuple[Any, ...]]


@pytest.mark.campaign
@pytest.mark.parametrize("vectors", ["true", "false"])
def test_kills_leave_the_current_state_of_the_source(tmp_path: Path, campaign: Any, vectors: str) -> None:
    """Four writers change keys, delete rows, and leave large values as they are, which are not sent then."""
    draw = campaign.random("delta kills")
    killed = transactions = commits = 0
    for number in range(campaign.size(1, 10)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with PostgresServer.start(version=VERSIONS[number % len(VERSIONS)]) as server:
            database = Database(server)
            # A text that compresses well stays in its row otherwise, and is sent with every change of the key.
            database.execute(*CREATE, "alter table notes alter body set storage external")
            before = {table: rows_of(database.dsn, table) for table in KEYS}
            database.publish()
            writers = Writers(database.dsn, campaign.seed + number, pause=0.02)
            moments = [("at random", After(4 + draw.random() * 3)) for _ in range(3)]
            end = time.time() + SECONDS_A_KILL * len(moments)
            timer = threading.Timer(end - 2 - time.time(), writers.stop)
            timer.start()
            kills = kill.campaign(
                command(database, folder, end, deletion_vectors=vectors, partition_by="notes=part"),
                moments,
                log=folder / "log",
                seconds=end - time.time() + 240,
            )
            timer.join()
            for table, keys in KEYS.items():
                found = before[table]
                delta = DeltaTable(folder / "lake" / table)
                commits += delta.version()
                for deleted, *row in read(delta, table):
                    key = tuple(row[COLUMNS[table].index(name)] for name in keys)
                    assert found.pop(key, None) is None or table == "accounts", "a key is in the table twice"
                    if not deleted:
                        found[key] = tuple(row)
                assert found == rows_of(database.dsn, table)
            assert writers.transactions > 100
        killed, transactions = killed + len(kills), transactions + writers.transactions
    assert killed >= 3
    campaign.record(
        "delta-vectors-kills" if vectors == "true" else "delta-kills",
        kills=killed,
        transactions=transactions,
        commits=commits,
    )


@pytest.mark.campaign
def test_kills_leave_each_change_once_in_the_log_and_no_file_without_a_commit(
    tmp_path: Path, campaign: Any
) -> None:
    """The tasks write files for partitions. The number of changes is what another slot of PostgreSQL has."""
    draw = campaign.random("delta log kills")
    killed = changes = files = 0
    for number in range(campaign.size(1, 10)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with PostgresServer.start(version=VERSIONS[number % len(VERSIONS)]) as server:
            database = Database(server)
            database.execute(*CREATE, "alter table notes alter body set storage external")
            before = {table: rows_of(database.dsn, table) for table in KEYS}
            database.publish()
            database.execute("select pg_create_logical_replication_slot('audit', 'pgoutput')")
            writers = Writers(database.dsn, campaign.seed + number, pause=0.02)
            moments = [("at random", After(4 + draw.random() * 3)) for _ in range(4)]
            end = time.time() + SECONDS_A_KILL * len(moments)
            timer = threading.Timer(end - 2 - time.time(), writers.stop)
            timer.start()
            kills = kill.campaign(
                command(database, folder, end, mode="log", partition_by="op"),
                moments,
                log=folder / "log",
                seconds=end - time.time() + 240,
            )
            timer.join()
            found = 0
            for table in KEYS:
                delta = DeltaTable(folder / "lake" / table)
                log = duckdb.from_arrow(delta.to_pyarrow_table())
                versions = log.project("metadata.version").distinct().fetchall()
                assert len(log) == len(versions), "a change is in the log twice"
                found += len(versions)
                replayed = replay(log.order("metadata.version").to_arrow_table(), before[table], table)
                assert replayed == rows_of(database.dsn, table)
                names = {uri.rpartition("/")[2] for uri in delta.file_uris()}
                assert {path.name for path in (folder / "lake" / table).glob("*.parquet")} == names
                files += len(names)
            assert found == audited(database)
        killed, changes = killed + len(kills), changes + found
    assert killed >= 4
    campaign.record("delta-log-kills", kills=killed, changes=changes, files=files)


def audited(database: Database) -> int:
    """Return how many rows were inserted, updated and deleted since the slot `audit` was created."""
    with psycopg.connect(database.dsn) as session:
        (found,) = session.execute(
            "select count(*) from pg_logical_slot_peek_binary_changes('audit', null, null, 'proto_version', '1', "
            "'publication_names', %s) where get_byte(data, 0) in (ascii('I'), ascii('U'), ascii('D'))",
            (database.publication,),
        ).fetchone() or (0,)
    return int(found)


def replay(log: Any, before: Rows, table: str) -> Rows:
    """Apply the changes of a log, in their order, to the rows of a table."""
    rows, columns, keys = dict(before), COLUMNS[table], KEYS[table]
    for change in log.to_pylist():
        key = tuple(change["key"][name] for name in keys)
        if change["op"] == "DELETE":
            del rows[key]
            continue
        old = key
        if change["op"] == "UPDATE" and change["before"] is not None:
            old = tuple(change["before"][name] for name in keys)
        kept = dict(zip(columns, rows.pop(old, (None,) * len(columns)), strict=True))
        sent = {n: v for n, v in change["after"].items() if n not in change["metadata"]["not_sent"]}
        rows[key] = tuple((kept | sent)[name] for name in columns)
    return rows


def command(database: Database, folder: Path, end: float, **more: str) -> list[str]:
    given = {
        "dsn": database.dsn,
        "publication": database.publication,
        "slot": database.slot,
        "uri": f"{folder}/lake/{{table}}",
        "end": datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "roll_seconds": "0",
        **more,
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]"]
    return python("penstock.cli.main", "run", "postgres-to-delta", *sets, *options)


def read(delta: DeltaTable, table: str) -> list[tuple[Any, ...]]:
    """Return the rows, each with its mark for deleted in front."""
    columns = ", ".join(COLUMNS[table])
    query = QueryBuilder().register("t", delta).execute(f"select _penstock_deleted, {columns} from t")
    return duckdb.from_arrow(pa.table(query)).fetchall()


def rows_of(dsn: str, table: str) -> Rows:
    with psycopg.connect(dsn) as session:
        rows = session.execute(f"select {', '.join(COLUMNS[table])} from {table}").fetchall()
    return {tuple(row[COLUMNS[table].index(name)] for name in KEYS[table]): row for row in rows}
