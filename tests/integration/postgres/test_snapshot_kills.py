"""Four writers and a snapshot of five tables under SIGKILL of driver, workers and server: the lines replay to the
tables.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.io.change_streams.incremental.signal_folder import write_signal
from penstock.io.postgres import parse_lsn
from penstock_emulators.oracle import kill
from penstock_emulators.oracle.kill import python
from penstock_emulators.oracle.lines import Line, read_lines
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.integration.postgres.test_kills import kill_python_worker
from tests.support.waiting import drain, join, wait_for_run, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=30)]

TABLES = 5
ROWS = 3_000
LAST = 100_000
"""The key of the last row of each table, which the writers do not change. When it is published, its table was read."""
COLUMNS = {"id", "n", "body"}


class BenchWriters:
    """Threads that insert, update, delete and move rows of five tables, as pgbench does, until `stop`."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.transactions = 0
        self._dsn, self._stopped = dsn, threading.Event()
        draws = [random.Random(f"{seed}/{number}") for number in range(4)]
        self._threads = [threading.Thread(target=self._run, args=(draw,), daemon=True) for draw in draws]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> BenchWriters:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        join(*self._threads)

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
            # To another key: an update of no column would look like a repeated change.
            moved = ROWS + (id_ + draw.randrange(1, 200)) % 200
            session.execute(f"update {table} set id = %s where id = %s", (moved, id_))


def large(draw: random.Random) -> str:
    return f"{draw.getrandbits(64):x}" * 200


def test_a_snapshot_under_load_and_kills_gives_the_tables(tmp_path: Path, campaign: Any) -> None:
    """Each round kills the driver, a Python worker and the server: thirty kills in the campaign."""
    draw = campaign.random("snapshot kills")
    killed: Counter[str] = Counter()
    transactions = rows = 0
    for number in range(campaign.size(1, 10)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with PostgresServer.start(version=VERSIONS[number % len(VERSIONS)]) as server:
            database = Database(server)
            fill(database)
            before = rows_of(database.dsn)
            request = {"data-collections": ["public[.]t[0-9]"], "chunk-size": 50}
            write_signal(folder / "signals", "all", "execute-snapshot", request, 1)
            scene = Scene(database, folder, signal_folder=str(folder / "signals"))
            # Early: a loaded machine publishes seldom, and then many rows at once.
            shares = [draw.uniform(0.01, 0.1), draw.uniform(0.1, 0.3)]
            with BenchWriters(database.dsn, campaign.seed + number) as writers:
                (kill_the_driver_first, kill_a_worker_first)[number % 2](scene, writers, shares)
            lines = scene.lines()
            reads = [line for line in lines if line.content["kind"] == "READ"]
            assert replayed(lines) == rows_of(database.dsn)
            assert_rows_follow_only_what_they_see(before, lines)
            assert all(line.content["new"].keys() == COLUMNS for line in reads), "a column is not delivered"
            assert_every_change_once(lines)
            assert len(reads) >= TABLES * ROWS / 2
            assert writers.transactions > 100
        killed += scene.killed
        assert set(killed.values()) == {number + 1}
        transactions, rows = transactions + writers.transactions, rows + len(reads)
    campaign.record("postgres-snapshot-kills", **killed, transactions=transactions, rows=rows)


def kill_the_driver_first(scene: Scene, writers: BenchWriters, shares: list[float]) -> None:
    """Kill the driver between chunks, a worker of the next run at its start, then the server between chunks."""
    with scene.run() as run:
        scene.wait_for_rows(run, shares[0])
        scene.kill_driver(run)
    scene.mark("restart")
    with scene.run() as run:
        scene.kill_worker()
        assert not scene.published.has("restart"), "the worker was not killed while the pipeline started"
        scene.wait_for_rows(run, shares[1])
        scene.crash_server()
        scene.finish(run, writers)


def kill_a_worker_first(scene: Scene, writers: BenchWriters, shares: list[float]) -> None:
    """Kill a worker between chunks, then the server, then the driver before it has caught up with the server."""
    with scene.run() as run:
        scene.wait_for_rows(run, shares[0])
        scene.kill_worker()
        scene.wait_for_rows(run, shares[1])
        scene.crash_server()
        scene.mark("restart")
        scene.kill_driver(run)
        assert not scene.published.has("restart"), "the driver was not killed while it was behind"
    with scene.run() as run:
        scene.finish(run, writers)


def test_a_parallel_initial_load_under_kills_of_a_worker_and_of_the_server_gives_the_tables(
    tmp_path: Path, campaign: Any
) -> None:
    """The server loses the snapshot in the middle of the ranges; what was not read is read between the changes."""
    with PostgresServer.start(version=VERSIONS[0]) as server:
        database = Database(server)
        fill(database)
        # A few rows in each epoch: not all may be read before the next kill.
        scene = Scene(database, tmp_path, ("--epoch-max-records", "300"), snapshot="initial", chunk_rows="5")
        with BenchWriters(database.dsn, campaign.seed) as writers, scene.run() as run:
            scene.wait_for_rows(run, 0.02)
            scene.kill_worker()
            scene.wait_for_rows(run, 0.1)
            scene.crash_server()
            scene.finish(run, writers)
        lines = scene.lines()
        assert replayed(lines) == rows_of(database.dsn)
        assert_every_change_once(lines)
        assert scene.killed == {"worker": 1, "server": 1}
        assert "the server does not hold it any more" in (tmp_path / "log").read_text()


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
            # Few rows in a block: a chunk is at least one block.
            fill(database, fill_factor=10)
            scene = Scene(database, folder, snapshot="initial", chunk_rows="1")
            shares = sorted(draw.uniform(0.02, 0.8) for _ in range(3))
            with BenchWriters(database.dsn, campaign.seed + number) as writers:
                for share in shares:
                    with scene.run() as run:
                        scene.wait_for_rows(run, share)
                        scene.kill_driver(run)
                with scene.run() as run:
                    scene.finish(run, writers)
            lines = scene.lines()
            assert_original_values_come_first(lines)
            assert replayed(lines) == rows_of(database.dsn)
            assert_every_change_once(lines)
        killed, transactions = killed + scene.killed["driver"], transactions + writers.transactions
        rows += sum(line.content["kind"] == "READ" for line in lines)
    campaign.record("postgres-initial-snapshot-kills", kills=killed, transactions=transactions, rows=rows)


class Published:
    """What the published files contain. A file never changes, so each is read once."""

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        self.tables_read: set[str] = set()
        self._folder, self._known = folder, set[Path]()
        self._markers: set[str] = set()

    def look(self) -> Published:
        for path in set(self._folder.glob("[!._]*/*/[!._]*.jsonl")) - self._known:
            self._known.add(path)
            content = path.read_bytes()
            self.rows += content.count(b'"kind":"READ"')
            if b'"kind":"READ","new":{"id":"%d"' % LAST in content:
                self.tables_read.add(path.parent.parent.name)
            self._markers |= {name.decode() for name in re.findall(rb'"new":{"name":"(\w+)"', content)}
        return self

    def has(self, marker: str) -> bool:
        return marker in self.look()._markers


class Scene:
    """A pipeline that is killed and started again, and what it has published. `killed`: how often each was killed."""

    def __init__(
        self, database: Database, folder: Path, options: Sequence[str] = (), **parameters: str
    ) -> None:
        self.killed: Counter[str] = Counter()
        self.published = Published(folder / "out")
        self._database, self._folder, self._log = database, folder, folder / "log"
        self._command = [*command(database, folder, **parameters), *options]

    def run(self) -> kill.Run:
        return kill.Run(self._command, log=self._log)

    def mark(self, name: str) -> None:
        """Commit a row that has a name: when it is published, everything before it has been read."""
        self._database.session = psycopg.connect(self._database.dsn, autocommit=True)
        self._database.execute(f"insert into markers values ('{name}')")

    def wait_for_rows(self, run: kill.Run, share: float) -> None:
        """Return when this share of the rows is published, and not the last row of each table."""
        wanted = int(share * TABLES * ROWS)
        self._wait(run, lambda: self.published.look().rows >= wanted, f"{share:.2f} of the rows")
        assert self._reads_rows(), "all rows were read before the kill"

    def kill_driver(self, run: kill.Run) -> None:
        run.kill()
        self.killed["driver"] += 1

    def kill_worker(self) -> None:
        wait_until(lambda: kill_python_worker(self._folder), "the pipeline has no Python worker")
        self.killed["worker"] += 1

    def crash_server(self) -> None:
        self._database.server.kill()
        assert self._reads_rows(), "all rows were read before the crash of the server"
        self._database.server.restart()
        self.killed["server"] += 1

    def finish(self, run: kill.Run, writers: BenchWriters) -> None:
        """Let the pipeline read all rows and all changes, and drain it."""
        self._wait(run, lambda: not self._reads_rows(), "the last rows")
        writers.stop()
        self.mark("end")
        self._wait(run, lambda: self.published.has("end"), "the last change")
        drain(run, self._folder / "checkpoint", self._log)

    def lines(self) -> list[Line]:
        return [line for line in read_lines(self._folder / "out") if line.table != "public.markers"]

    def _reads_rows(self) -> bool:
        return len(self.published.look().tables_read) < TABLES

    def _wait(self, run: kill.Run, met: Callable[[], bool], what: str) -> None:
        wait_for_run(run, met, what, self._log)


def fill(database: Database, fill_factor: int = 100) -> None:
    for table in range(TABLES):
        database.execute(
            f"create table t{table} (id int primary key, n int not null, body text) "
            f"with (fillfactor = {fill_factor})",
            f"alter table t{table} alter body set storage external",
            f"insert into t{table} select i, 0, repeat(md5(i::text), 90) from generate_series(1, {ROWS}) i",
            f"insert into t{table} values ({LAST}, 0, 'last')",
        )
    database.execute("create table markers (name text primary key)")
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


def command(database: Database, folder: Path, **parameters: str) -> list[str]:
    given = {
        "dsn": database.dsn,
        "publication": database.publication,
        "slot": database.slot,
        "output": str(folder / "out"),
        "roll_seconds": "0",
        **parameters,
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
        apply(tables[line.table], line)
    return tables


def assert_rows_follow_only_what_they_see(tables: Rows, lines: list[Line]) -> None:
    """Each row that is read is what the changes before it have made of the `tables` as they were at the start."""
    for line in lines:
        table, new = tables[line.table], line.content["new"]
        if line.content["kind"] == "READ":
            assert new == table.get(new["id"]), "a row is not as old or as new as the changes before it"
        else:
            apply(table, line)


def apply(table: dict[str, dict[str, Any]], line: Line) -> None:
    new, old = line.content["new"], line.content["old"]
    if line.content["kind"] == "DELETE":
        table.pop(old["id"], None)
    elif line.content["kind"] == "UPDATE":
        before = table.pop((old or new)["id"], {})
        table[new["id"]] = {**before, **new}
    else:
        table[new["id"]] = new


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
