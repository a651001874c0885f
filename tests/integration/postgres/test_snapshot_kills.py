"""Four writers and a snapshot of five tables under SIGKILL of driver, workers and server: the lines replay to the
tables.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.compat import UTC
from penstock.emulators.postgres import PostgresServer
from penstock.io.change_streams.snapshots.signal_folder import write_signal
from penstock.io.postgres import parse_lsn
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.integration.spanner.test_snapshot_kills import RowsPublished
from tests.oracle import kill
from tests.oracle.kill import After, python
from tests.oracle.lines import Line, read_lines

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=70)]

TABLES = 5
ROWS = 3_000


class BenchWriters:
    """Threads that insert, update, delete and move rows of five tables, as pgbench does, until `stop`."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.transactions = 0
        self._dsn, self._stopped = dsn, threading.Event()
        draws = [random.Random(f"{seed}/{number}") for number in range(4)]
        self._threads = [threading.Thread(target=self._run, args=(draw,)) for draw in draws]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, draw: random.Random) -> None:
        while not self._stopped.is_set():
            # The server is killed in between: the transaction fails, and the writer connects again.
            with suppress(psycopg.Error), psycopg.connect(self._dsn) as session:
                while not self._stopped.is_set():
                    try:
                        for _ in range(draw.randrange(1, 4)):
                            self._write(session, draw)
                        session.rollback() if draw.random() < 0.1 else session.commit()
                        self.transactions += 1
                    except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                        session.rollback()
                    self._stopped.wait(0.01)

    def _write(self, session: Any, draw: random.Random) -> None:
        table, id_ = f"t{draw.randrange(TABLES)}", draw.randrange(ROWS + 200)
        kind = draw.random()
        if kind < 0.4:  # the large value does not change and is not sent
            session.execute(f"update {table} set n = n + 1 where id = %s", (id_,))
        elif kind < 0.6:
            session.execute(f"update {table} set n = n + 1, body = %s where id = %s", (large(draw), id_))
        elif kind < 0.75:
            session.execute(
                f"insert into {table} values (%s, 0, %s) on conflict do nothing", (id_, large(draw))
            )
        elif kind < 0.9:
            session.execute(f"delete from {table} where id = %s", (id_,))
        else:
            session.execute(f"update {table} set id = %s where id = %s", (ROWS + draw.randrange(200), id_))


def large(draw: random.Random) -> str:
    return f"{draw.getrandbits(64):x}" * 200


@pytest.mark.campaign
def test_a_snapshot_under_load_and_kills_gives_the_tables(tmp_path: Path, campaign: Any) -> None:
    draw = campaign.random("snapshot kills")
    killed = transactions = rows = 0
    for number in range(campaign.size(1, 10)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with PostgresServer.start(version=VERSIONS[number % len(VERSIONS)]) as server:
            database = Database(server)
            fill(database)
            request = {"data-collections": ["public[.]t[0-9]"], "chunk-size": 200}
            write_signal(folder / "signals", "all", "execute-snapshot", request, 1)
            writers = BenchWriters(database.dsn, campaign.seed + number)
            # The first kill comes while rows are read, the second one while the pipeline starts or catches up.
            moments = [("first", After(6.5 + draw.random())), ("second", After(5 + draw.random()))]
            end = time.time() + 18
            crash = threading.Timer(9 + draw.random(), lambda: (server.kill(), server.restart()))
            stop = threading.Timer(end - 3 - time.time(), writers.stop)
            for timer in (crash, stop):
                timer.start()
            kills = kill.campaign(
                command(database, folder, end),
                moments,
                log=folder / "log",
                seconds=end - time.time() + 150,
                environment={},
            )
            for timer in (crash, stop):
                timer.join()
            lines = list(read_lines(folder / "out"))
            expected = rows_of(database.dsn)
            assert replayed(lines) == expected
            reads = [line for line in lines if line.content["kind"] == "READ"]
            assert len(reads) >= TABLES * ROWS / 2
            assert_every_change_once(lines)
            assert writers.transactions > 100
        killed, transactions, rows = (
            killed + len(kills) + 1,
            transactions + writers.transactions,
            rows + len(reads),
        )
    campaign.record("postgres-snapshot-kills", kills=killed, transactions=transactions, rows=rows)


@pytest.mark.campaign
def test_kills_while_an_initial_snapshot_is_read_keep_each_original_value(
    tmp_path: Path, campaign: Any
) -> None:
    draw = campaign.random("initial snapshot kills")
    killed = transactions = rows = 0
    for number in range(campaign.size(1, 5)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with PostgresServer.start(version=VERSIONS[number % len(VERSIONS)]) as server:
            database = Database(server)
            fill(database)
            writers = BenchWriters(database.dsn, campaign.seed + number)
            shares = sorted(draw.uniform(0.02, 0.8) for _ in range(3))
            end = time.time() + 45
            stop = threading.Timer(end - 3 - time.time(), writers.stop)
            stop.start()
            kills = kill.campaign(
                command(database, folder, end, snapshot="initial", chunk_rows="10"),
                [
                    (f"{share:.2f}", RowsPublished(folder / "out", int(share * TABLES * ROWS)))
                    for share in shares
                ],
                log=folder / "log",
                seconds=end - time.time() + 150,
                environment={},
            )
            stop.join()
            lines = list(read_lines(folder / "out"))
            assert len(kills) == len(shares), "the snapshot was read before its moment"
            assert_original_values_come_first(lines)
            assert replayed(lines) == rows_of(database.dsn)
            assert_every_change_once(lines)
        killed, transactions = killed + len(kills), transactions + writers.transactions
        rows += sum(line.content["kind"] == "READ" for line in lines)
    campaign.record("postgres-initial-snapshot-kills", kills=killed, transactions=transactions, rows=rows)


def fill(database: Database) -> None:
    for table in range(TABLES):
        database.execute(
            f"create table t{table} (id int primary key, n int not null, body text)",
            f"alter table t{table} alter body set storage external",
            f"insert into t{table} select i, 0, repeat(md5(i::text), 90) from generate_series(1, {ROWS}) i",
        )
    database.publish()


def assert_original_values_come_first(lines: list[Line]) -> None:
    """Each row is read once, before its changes; each update continues the value that came before it."""
    seen: dict[tuple[str, str], int | None] = {}
    for line in lines:
        new, old = line.content["new"], line.content["old"]
        key = (line.table, (new or old)["id"])
        match line.content["kind"]:
            case "READ":
                assert key not in seen, "a row is read twice, or after a change of it"
            case "UPDATE" if old is not None and old["id"] != new["id"]:
                assert seen[line.table, old["id"]] == int(new["n"]), "a change is missing before this one"
                seen[line.table, old["id"]] = None
            case "UPDATE":
                assert seen[key] == int(new["n"]) - 1, "a change is missing before this one"
        seen[key] = None if new is None else int(new["n"])


def command(database: Database, folder: Path, end: float, **more: str) -> list[str]:
    given = {
        "dsn": database.dsn,
        "publication": database.publication,
        "slot": database.slot,
        "output": str(folder / "out"),
        **(more or {"signal_folder": str(folder / "signals")}),
        "end": datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "roll_seconds": "1",
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]"]
    return python("penstock.cli.main", "run", "postgres-to-files", *sets, *options)


def assert_every_change_once(lines: list[Line]) -> None:
    places = [
        (parse_lsn(line.content["commit_lsn"]), line.content["sequence"])
        for line in lines
        if line.content["commit_lsn"] is not None
    ]
    assert len(places) == len(set(places)), "a change is in the files twice"


Rows = dict[str, dict[str, dict[str, Any]]]


def replayed(lines: list[Line]) -> Rows:
    """Apply the lines of each table in the order of file names and lines, as a consumer of one shard does."""
    tables: Rows = {f"public.t{number}": {} for number in range(TABLES)}
    for line in lines:
        table, new, old = tables[line.table], line.content["new"], line.content["old"]
        if line.content["kind"] == "DELETE":
            table.pop(old["id"], None)
        elif line.content["kind"] == "UPDATE":
            before = table.pop((old or new)["id"], {})
            table[new["id"]] = {**before, **new}
        else:
            table[new["id"]] = new
    return tables


def rows_of(dsn: str) -> Rows:
    with psycopg.connect(dsn) as session:
        return {
            f"public.t{number}": {
                id_: {"id": id_, "n": n, "body": body}
                for id_, n, body in session.execute(
                    f"select id::text, n::text, body from t{number}"
                ).fetchall()
            }
            for number in range(TABLES)
        }
