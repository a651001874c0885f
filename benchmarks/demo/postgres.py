"""`make run ARGS=postgres`: a shop on a real PostgreSQL server, a snapshot while it is busy, a kill, and a proof.

The tables are full before the pipeline starts, so its log has only a part of their rows. `penstock snapshot` asks for
the others while writers change them, and SIGKILL comes in the middle. At the end, replaying the files must give the
tables, column by column. The checker uses psycopg and the published files, and no code of Penstock.

A run takes about a minute. The exit status is 0 if the proof holds, 1 if it does not (the differences are printed), 3
if the machine lacks something (the remedy is printed).
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from penstock.launch.run import ExitCode
from penstock_emulators.demo.waiting import PATIENCE_SECONDS, wait_for
from penstock_emulators.gcloud import EmulatorNotFoundError
from penstock_emulators.oracle.kill import Run
from penstock_emulators.oracle.lines import read_lines, visible_files
from penstock_emulators.postgres import PostgresServer
from penstock_emulators.server_process import EmulatorStartError

ACCOUNTS, ORDERS, TOTAL = 500, 12_000, 500 * 1000
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
COLUMNS = {
    "public.accounts": ("id", "balance"),
    "public.orders": ("id", "customer", "quantity", "price", "placed_at", "tags", "document"),
}
DDL = (
    "create table accounts (id int primary key, balance bigint not null)",
    "create table orders (id int primary key, customer text, quantity int not null, price numeric, "
    "placed_at timestamptz, tags text[], document text)",
    # The document is stored outside of the row. The server does not send it with a change that leaves it as it is.
    "alter table orders alter document set storage external",
    f"insert into accounts select i, 1000 from generate_series(1, {ACCOUNTS}) i",
    "insert into orders select i, 'customer ' || i % 97, i % 10, i / 7.0, "
    "timestamptz '2026-01-01' + i * interval '1 minute', array['new', 'order ' || i], "
    f"case when i % 3 = 0 then repeat(md5(i::text), 80) end from generate_series(1, {ORDERS}) i",
    "create publication shop for all tables",
    "select pg_create_logical_replication_slot('demo', 'pgoutput')",
)


def announce(text: str) -> None:
    """Print the next step between the pipeline's own lines."""
    print(f"\n==> {text}", flush=True)


class Writers:
    """Four threads that move money and change orders."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.transactions = 0
        self._dsn, self._stopped = dsn, threading.Event()
        draws = [random.Random(f"{seed}/{number}") for number in range(4)]
        self._threads = [threading.Thread(target=self._run, args=(draw,), daemon=True) for draw in draws]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, draw: random.Random) -> None:
        with psycopg.connect(self._dsn) as session:
            while not self._stopped.wait(0.05):
                try:
                    self._transaction(session, draw)
                    session.commit()
                    self.transactions += 1
                except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                    session.rollback()

    def _transaction(self, session: Any, draw: random.Random) -> None:
        payer, payee = draw.sample(range(1, ACCOUNTS + 1), 2)
        amount = draw.randrange(1, 50)
        session.execute("update accounts set balance = balance - %s where id = %s", (amount, payer))
        session.execute("update accounts set balance = balance + %s where id = %s", (amount, payee))
        order = draw.randrange(1, ORDERS + 500)
        match draw.randrange(4):
            case 0:
                session.execute("update orders set quantity = quantity + 1 where id = %s", (order,))
            case 1:
                session.execute("delete from orders where id = %s", (order,))
            case 2:
                session.execute(
                    "insert into orders values (%s, 'new customer', 1, 9.99, now(), '{}', %s) on conflict do nothing",
                    (order, f"{draw.getrandbits(64):x}" * 150),
                )
            case 3:  # the key changes, the document does not
                session.execute(
                    "update orders set id = %s where id = %s", (ORDERS + draw.randrange(500), order)
                )


class Pipeline:
    """`penstock run postgres-to-files`, each time with the same command."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.output, self.signals = folder / "output", folder / "signals"
        settings = {
            "dsn": dsn,
            "publication": "shop",
            "slot": "demo",
            "output": str(self.output),
            "signal_folder": str(self.signals),
            "chunk_rows": "500",
            "roll_seconds": "1",
        }
        self._command = [PENSTOCK, "run", "postgres-to-files"]
        self._command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self._command += ["--checkpoint-dir", str(folder / "checkpoint"), "--progress", "line"]
        # Longer than the default of 0.5 s: on a busy machine, short epochs have little but their own cost.
        self._command += ["--epoch-seconds", "1"]

    def start(self) -> Run:
        """Start it, or continue it from its checkpoint."""
        return Run(self._command)

    def request_snapshot(self) -> None:
        """Ask for all rows of all tables, as a user does."""
        subprocess.run([PENSTOCK, "snapshot", str(self.signals), "--table", r"public\..*"], check=True)

    def rows_read(self) -> int:
        """Return how many rows of snapshots are published."""
        return sum(path.read_bytes().count(b'"kind":"READ"') for path in visible_files(self.output))

    def once_per_file(self, met: Any) -> Any:
        """Return `met`, but do not ask again until a file is published: a replay takes the time of the pipeline."""
        seen = [0]

        def asked() -> bool:
            files = len(visible_files(self.output))
            if files == seen[0]:
                return False
            seen[0] = files
            return bool(met())

        return asked

    def wait(self, run: Run, met: Any, what: str) -> None:
        """Wait until `met` returns True; see `wait_for`."""
        wait_for(run, self.output, met, what)


Rows = dict[str, dict[str, dict[str, Any]]]


def replay(output: Path) -> tuple[Rows, dict[str, int]]:
    """Return the tables that the files give, and how many lines of each kind there are."""
    tables: Rows = {name: {} for name in COLUMNS}
    kinds: dict[str, int] = {}
    for line in read_lines(output):
        kind, new, old = line.content["kind"], line.content["new"], line.content["old"]
        kinds[kind] = kinds.get(kind, 0) + 1
        rows = tables[line.table]
        before = rows.pop((old or new)["id"], {}) if kind in ("UPDATE", "DELETE") else {}
        if new is not None:
            rows[new["id"]] = {**before, **new}
    return tables, kinds


def real_tables(dsn: str) -> Rows:
    """Return the tables as they are, values as text."""
    tables: Rows = {}
    with psycopg.connect(dsn, options="-c timezone=UTC") as session:
        for name, columns in COLUMNS.items():
            selected = ", ".join(f"{column}::text" for column in columns)
            rows = session.execute(f"select {selected} from {name}").fetchall()  # type: ignore[arg-type, unused-ignore]
            tables[name] = {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
    return tables


def differences(found: Rows, expected: Rows) -> Iterator[str]:
    """Yield what differs, without values."""
    for name, rows in expected.items():
        if missing := rows.keys() - found[name].keys():
            yield f"{len(missing)} rows of {name} are missing"
        if foreign := found[name].keys() - rows.keys():
            yield f"{len(foreign)} rows of {name} do not exist"
        both = rows.keys() & found[name].keys()
        for column in COLUMNS[name]:
            wrong = sum(found[name][key].get(column, "not sent") != rows[key][column] for key in both)
            if wrong:
                yield f"{wrong} values of {name}.{column} differ"


def agrees(pipeline: Pipeline, expected: Rows) -> bool:
    """Return whether replaying the files gives the tables."""
    return not list(differences(replay(pipeline.output)[0], expected))


def prove(pipeline: Pipeline, dsn: str, seconds: float) -> int:
    """Compare the files with the tables; print the result and return the exit status."""
    found, kinds = replay(pipeline.output)
    expected = real_tables(dsn)
    wrong = list(differences(found, expected))
    money = sum(int(row["balance"]) for row in found["public.accounts"].values())
    if money != TOTAL:
        wrong.append("the accounts do not add up")
    counted = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    announce(f"{counted} in {len(visible_files(pipeline.output))} files, after {seconds:.0f} seconds")
    for sentence in wrong:
        print(f"    WRONG: {sentence}")
    if wrong:
        print(f"    Files and checkpoint: {pipeline.output.parent}")
        return 1
    rows = sum(map(len, expected.values()))
    print(f"    Replaying the files gives the tables' {rows:,} rows, column by column,")
    print("    also the large values that no change contains, and the accounts add up.")
    print(f"    Files: {pipeline.output}")
    return 0


@contextmanager
def a_shop() -> Iterator[str]:
    """Run a server with full tables; yield its connection string."""
    with PostgresServer.start() as server:
        with psycopg.connect(server.dsn(), autocommit=True) as session:
            session.execute("create database shop")
        dsn = server.dsn("shop")
        with psycopg.connect(dsn, autocommit=True) as session:
            # Without a limit, Penstock warns that the log of a stopped pipeline can fill the disk.
            session.execute("alter system set max_slot_wal_keep_size = '1GB'")
            session.execute("select pg_reload_conf()")
            for statement in DDL:
                session.execute(statement)  # type: ignore[arg-type, unused-ignore]
        yield dsn


@contextmanager
def writing(dsn: str, seed: int) -> Iterator[Writers]:
    """Write until the caller stops it, or fails."""
    writers = Writers(dsn, seed)
    try:
        yield writers
    finally:
        writers.stop()


def demo(folder: Path, seed: int) -> int:
    """Run all steps; return the exit status."""
    began = time.monotonic()
    announce(f"Starting PostgreSQL, with {ACCOUNTS + ORDERS:,} rows in two tables, and four writers")
    with a_shop() as dsn, writing(dsn, seed) as writers:
        pipeline = Pipeline(folder, dsn)
        announce("Running postgres-to-files on Spark: it reads what changes from now on")
        with pipeline.start() as run:
            pipeline.wait(run, lambda: visible_files(pipeline.output), "the first file")
            announce("Asking for an incremental snapshot of all tables, while the writers go on")
            pipeline.request_snapshot()
            pipeline.wait(run, lambda: pipeline.rows_read() > 0, "the first row of the snapshot")
            died = run.kill()
        announce(
            f"SIGKILL in the middle of the snapshot: the driver, its JVM and all workers, {died} processes. "
            "Starting the same command again."
        )
        with pipeline.start() as run:
            before = pipeline.rows_read()
            pipeline.wait(run, lambda: pipeline.rows_read() > before, "the rest of the snapshot")
            time.sleep(2)
            writers.stop()
            expected = real_tables(dsn)
            announce(f"The writers stopped after {writers.transactions:,} transactions; catching up")
            pipeline.wait(
                run, pipeline.once_per_file(lambda: agrees(pipeline, expected)), "the last change or row"
            )
            run.send(signal.SIGINT)
            if (status := run.wait(PATIENCE_SECONDS)) != 130:
                raise RuntimeError(f"after Ctrl-C the pipeline ended with status {status}, not 130")
        announce("Comparing the files with the tables, by a checker that shares no code with Penstock")
        return prove(pipeline, dsn, time.monotonic() - began)


def main(arguments: list[str]) -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(prog="make run ARGS=postgres", description=__doc__)
    parser.add_argument("--folder", help="where output and checkpoint go; default: a new temporary folder")
    parser.add_argument("--seed", type=int, default=1, help="seed of the generated data")
    given = parser.parse_args(arguments)
    try:
        return demo(Path(given.folder or tempfile.mkdtemp(prefix="penstock-demo-")).resolve(), given.seed)
    except (EmulatorNotFoundError, EmulatorStartError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return ExitCode.PREFLIGHT
    except RuntimeError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
