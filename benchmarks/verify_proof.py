"""Whether `penstock verify` finds seven kinds of planted differences in a large table that changes, and no others.

    python benchmarks/verify_proof.py [--rows 1000000] [--runs 1] [--changes 200] [--sinks delta postgresql]
        [--rows-per-second N]

A job of `penstock run postgres-to-SINK` has read all rows. A writer makes `--changes` changes a second, each in a
transaction, in all rows but those of the differences. `penstock verify` must find nothing (*before*). Then, in each
run:

1. The differences are planted in the target, at random keys: a missing row, an extra one, an old value, a NULL as if a
   column was not sent, a value of another type, two rows with exchanged values, and a tombstone of a row that exists.
2. *repair*: `penstock verify --repair` must find exactly them, and repair all but the extra row, which is then deleted
   in the target, as the page on verify says.

At the end `penstock verify` must find nothing (*after*).

The script fails at the first difference that is invented, and at the first that is missed. Of each command it prints:

- *wall*, *CPU*: of the command, in seconds. *memory*: the highest sum of the proportional set sizes of its processes.
- *source CPU*: CPU seconds of the sessions that the command has in the source's server.
- *changes*: how many the writer made meanwhile.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from measure import ProgramStopwatch, heading, machine, row, tree, tree_cpu
from measure.live import memory

from penstock_emulators.postgres import PostgresServer

PLANTED = 40
"""Rows of which differences are made; the writer leaves them alone."""
_TICK_SECONDS, _LOOK_SECONDS = 0.02, 0.5
_DATA = ("customer", "total", "paid", "at", "tags", "more")
_ROW = (
    "select n, 'customer ' || n, n % 100000 + 0.50, n % 2 = 0, timestamptz '2026-01-31' + n * interval '1 s', "
    """array['a', null], jsonb_build_object('n', n, 'zero', 1.0) from generate_series({}, {}) n"""
)


class Writer:
    """Makes changes at an even pace in a thread. Rows of `spared` are left alone."""

    def __init__(self, dsn: str, rows: int, per_second: int, spared: set[int]) -> None:
        self.changes = 0
        self._dsn, self._rows, self._per_second, self._spared = dsn, rows, per_second, spared
        self._ended, self._paused = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Make no changes in the block: another writer of a Delta table loses against a job that commits."""
        self._paused.set()
        yield
        self._paused.clear()

    def _run(self) -> None:
        rng, due = random.Random(1), time.monotonic()
        with psycopg.connect(self._dsn, autocommit=True) as session:
            while not self._ended.wait(_TICK_SECONDS):
                if self._paused.is_set():
                    due = time.monotonic()
                while due < time.monotonic() and not (self._ended.is_set() or self._paused.is_set()):
                    self._change(session, rng)
                    self.changes += 1
                    due += 1 / self._per_second

    def _change(self, session: Any, rng: random.Random) -> None:
        id_ = rng.randrange(1, self._rows + 1)
        while id_ in self._spared:
            id_ = rng.randrange(1, self._rows + 1)
        statement = rng.choice(
            (
                "update orders set paid = not paid where id = %s",
                "update orders set total = total + 1 where id = %s",
                "delete from orders where id = %s",
                "insert into orders values (%s, 'new', 1, true) on conflict do nothing",
            )
        )
        session.execute(statement, (id_,))


@dataclass(frozen=True, slots=True)
class Differences:
    """Keys of the planted differences. `extra` is no key of the source."""

    missing: int
    old: int
    null: int
    wrong_type: int
    swapped: tuple[int, int]
    tombstone: int
    extra: int

    @classmethod
    def drawn(cls, rng: random.Random, spared: list[int], rows: int) -> Differences:
        """Return differences at random keys of `spared`."""
        missing, old, null, wrong_type, one, other, tombstone = rng.sample(spared, 7)
        return cls(missing, old, null, wrong_type, (one, other), tombstone, rows + rng.randrange(1, 1000))

    @property
    def found(self) -> set[tuple[str, str, tuple[str, ...]]]:
        """What the command is to print: kind, key, and columns."""
        one, other = self.swapped
        return {
            ("missing", f"[{self.missing}]", ()),
            ("different", f"[{self.old}]", ("total",)),
            ("different", f"[{self.null}]", ("customer",)),
            ("different", f"[{self.wrong_type}]", ("more",)),
            ("different", f"[{one}]", ("customer",)),
            ("different", f"[{other}]", ("customer",)),
            ("missing", f"[{self.tombstone}]", ()),
            ("extra", f"[{self.extra}]", ()),
        }


class SqlTarget:
    """A replica in a server of its own."""

    def __init__(self, folder: Path) -> None:
        self.server = PostgresServer.start(settings={"max_wal_size": "4GB"})
        self.parameters = {"target_dsn": self.server.dsn()}

    def plant(self, faults: Differences) -> None:
        one, other = faults.swapped
        number_as_text = f'{{"n": "{faults.wrong_type}", "zero": 1.0}}'
        empty = ", ".join(f"{name} = null" for name in _DATA)
        self._execute(
            f"delete from orders where id = {faults.missing}",
            f"update orders set total = total - 1 where id = {faults.old}",
            f"update orders set customer = null where id = {faults.null}",
            f"update orders set more = '{number_as_text}' where id = {faults.wrong_type}",
            "update orders set customer = (select customer from orders other where other.id = "
            f"{one + other} - orders.id) where id in ({one}, {other})",
            f"update orders set {empty}, _penstock_deleted = true where id = {faults.tombstone}",
            f"insert into orders select {faults.extra}, {', '.join(_DATA)}, _penstock_version, false, now() "
            f"from orders where id = {faults.old}",
        )

    def delete_extra(self, faults: Differences) -> None:
        self._execute(f"delete from orders where id = {faults.extra}")

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self.server.dsn(), autocommit=True) as session:
            for statement in statements:
                session.execute(statement)

    def close(self) -> None:
        self.server.stop()


class DeltaTarget:
    """A table in a folder. The job does not commit while differences are planted."""

    def __init__(self, folder: Path) -> None:
        self._uri = f"{folder}/lake/orders"
        self.parameters = {"uri": f"{folder}/lake/{{table}}"}

    def plant(self, faults: Differences) -> None:
        one, other = faults.swapped
        rows = self._rows(one, other, faults.old)
        self._table.delete(f"id = {faults.missing}")
        self._update(faults.old, total="total - 1")
        self._update(faults.null, customer="null")
        self._update(faults.wrong_type, more=f"""'{{"n": "{faults.wrong_type}", "zero": 1.0}}'""")
        self._update(one, customer=f"'{rows[other]['customer']}'")
        self._update(other, customer=f"'{rows[one]['customer']}'")
        self._update(faults.tombstone, _penstock_deleted="true", **dict.fromkeys(_DATA, "null"))
        extra = self._arrow(faults.old).to_pylist()
        extra[0] |= {"id": faults.extra, "_penstock_key": f"[{faults.extra}]"}
        table = self._arrow(faults.old)
        write_deltalake(self._table, type(table).from_pylist(extra, table.schema), mode="append")

    def delete_extra(self, faults: Differences) -> None:
        self._table.delete(f"id = {faults.extra}")

    @property
    def _table(self) -> DeltaTable:
        return DeltaTable(self._uri)

    def _update(self, id_: int, **updates: str) -> None:
        self._table.update(predicate=f"id = {id_}", updates=updates)

    def _arrow(self, *ids: int) -> Any:
        import pyarrow as pa

        query = f"select * from t where id in ({', '.join(map(str, ids))})"
        return pa.table(QueryBuilder().register("t", self._table).execute(query).read_all())

    def _rows(self, *ids: int) -> dict[int, dict[str, Any]]:
        return {each["id"]: each for each in self._arrow(*ids).to_pylist()}

    def close(self) -> None:
        pass


TARGETS = {"delta": DeltaTarget, "postgresql": SqlTarget}


@contextmanager
def running(job: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job in the block, and end it."""
    command = [sys.executable, "-m", "penstock.cli.main", "run", str(job), "--progress", "none"]
    with (job.parent / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


class Proof:
    """The job of one sink, the writer, and the commands."""

    def __init__(self, job: Path, server: PostgresServer, writer: Writer, process: Any) -> None:
        self.job, self.server, self.writer, self.process = job, server, writer, process

    def verify(self, name: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
        """Run the command and print its costs; return its exit code, and the results."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the job has ended: {(self.job.parent / 'log').read_text()[-3000:]}")
        words = ["verify", str(self.job), "--json", "--show-values", "--timeout", "1h", *options]
        changes, sessions = self.writer.changes, Sessions(self.server)
        command = [sys.executable, "-m", "penstock.cli.main", *words]
        with tempfile.TemporaryFile() as out:
            process = subprocess.Popen(command, stdout=out)
            watch, peak = ProgramStopwatch(process.pid), 0
            while process.poll() is None:
                peak = max(peak, sum(map(memory, tree(process.pid))))
                sessions.look()
                time.sleep(_LOOK_SECONDS)
            cost = watch.stop()
            out.seek(0)
            results = json.loads(out.read() or b"[]")
        of_source = sum(sessions.cpu.values())
        cells = (f"{cost.wall:.0f}", f"{cost.cpu:.1f}", f"{peak / 1e6:.0f}", f"{of_source:.1f}")
        rows = sum(each["rows"] for each in results)
        print(row(name, f"{rows:,}", *cells, self.writer.changes - changes, _counted(results)), flush=True)
        return process.returncode, results


class Sessions:
    """The CPU seconds of the sessions of a server that begin after the construction, by their process."""

    def __init__(self, server: PostgresServer) -> None:
        self.cpu: dict[int, float] = {}
        self._session = psycopg.connect(server.dsn(), autocommit=True)
        self._before = self._processes()

    def look(self) -> None:
        """Read what they have used until now. What a session uses after the last look is lost."""
        for process in self._processes() - self._before:
            self.cpu[process] = max(self.cpu.get(process, 0.0), tree_cpu(process))

    def _processes(self) -> set[int]:
        query = "select pid from pg_stat_activity where backend_type = 'client backend'"
        return {process for (process,) in self._session.execute(query)}


def _counted(results: list[dict[str, Any]]) -> str:
    found = sum(len(each["differences"]) for each in results)
    repaired = sum(len(each.get("repaired", ())) for each in results)
    return f"{found} found, {repaired} repaired"


def differences(results: list[dict[str, Any]], field: str = "differences") -> set[Any]:
    """Return kind, key and columns of each difference."""
    return {
        (each["kind"], each["key"], tuple(column["column"] for column in each["columns"]))
        for result in results
        for each in result.get(field, ())
    }


def check(what: str, found: Any, wanted: Any) -> None:
    """End the script if something else was found than wanted."""
    if found != wanted:
        sys.exit(f"{what}: found {found}, wanted {wanted}")


def prove(proof: Proof, target: Any, faults: Differences, *options: str) -> None:
    """One run: all planted differences and no others, and all but the extra row are repaired."""
    with proof.writer.paused():
        # The job has what it has read before the first difference is made.
        wait_for_changes(proof.job)
        target.plant(faults)
    code, results = proof.verify("repair", "--repair", *options)
    check("planted", (code, differences(results)), (1, faults.found))
    extra = {each for each in faults.found if each[0] == "extra"}
    check("repaired", differences(results, "repaired"), faults.found - extra)
    with proof.writer.paused():
        wait_for_changes(proof.job)
        target.delete_extra(faults)


def prove_equal(proof: Proof, name: str, *options: str) -> None:
    """Nothing is found where nothing was planted."""
    code, results = proof.verify(name, *options)
    check(name, (code, differences(results)), (0, set()))


def make_source(server: PostgresServer, rows: int) -> None:
    """Create the table with its rows, its publication and its slot."""
    with psycopg.connect(server.dsn(), autocommit=True) as session:
        session.execute(
            "create table orders (id int primary key, customer text, total numeric(10,2), paid boolean, "
            "at timestamptz, tags text[], more jsonb)"
        )
        for first in range(1, rows + 1, 100_000):
            session.execute(f"insert into orders {_ROW.format(first, min(first + 99_999, rows))}")
        session.execute("vacuum analyze orders")
        session.execute("create publication proof for table orders")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--changes", type=int, default=200, help="changes a second")
    parser.add_argument("--sinks", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--rows-per-second", type=int, help="the option of penstock verify")
    given = parser.parse_args()
    options = ["--rows-per-second", str(given.rows_per_second)] if given.rows_per_second else []
    print(machine())
    rng = random.Random(7)
    settings = {"max_wal_size": "8GB", "max_replication_slots": "10"}
    with PostgresServer.start(settings=settings) as server, tempfile.TemporaryDirectory() as place:
        make_source(server, given.rows)
        spared = sorted(rng.sample(range(1, given.rows + 1), PLANTED))
        for sink in given.sinks:
            folder = Path(place, sink)
            folder.mkdir()
            target = TARGETS[sink](folder)
            job = folder / "job.yaml"
            source = {"dsn": server.dsn(), "publication": "proof", "slot": sink, "create_slot": "true"}
            more = {"snapshot": "initial", "roll_seconds": "5", "signal_folder": str(folder / "signals")}
            content = {
                "template": f"postgres-to-{sink}",
                "parameters": {**source, **more, **target.parameters},
                "runner": {"checkpoint_dir": str(folder / "checkpoint"), "master": "local[2,4]"},
            }
            job.write_text(json.dumps(content))
            begun = time.monotonic()
            with (
                running(job) as process,
                Writer(server.dsn(), given.rows, given.changes, set(spared)) as writer,
            ):
                wait_for_rows(job, process)
                print(
                    f"{sink}: all rows are in the target after {time.monotonic() - begun:.0f} s", flush=True
                )
                proof = Proof(job, server, writer, process)
                columns = ("rows", "wall s", "CPU s", "memory MB", "source CPU s", "changes", "differences")
                print(heading(sink, *columns))
                prove_equal(proof, "before", *options)
                for _ in range(given.runs):
                    prove(proof, target, Differences.drawn(rng, spared, given.rows), *options)
                prove_equal(proof, "after", *options)
            target.close()
            with psycopg.connect(server.dsn(), autocommit=True) as session:
                session.execute("select pg_drop_replication_slot(%s)", (sink,))
    print("all planted differences were found, and no others")


def wait_for_rows(job: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the target has the rows of the initial snapshot."""
    # They count at the time at which the job began. So the second time is after it.
    for _ in range(2):
        while not is_complete(job):
            if process.poll() is not None:
                raise RuntimeError(f"the job has ended: {(job.parent / 'log').read_text()[-3000:]}")
            time.sleep(1)


def wait_for_changes(job: Path) -> None:
    """Wait until the target has all changes until now."""
    if not is_complete(job, "10m"):
        raise RuntimeError("the target did not become complete")


def is_complete(job: Path, timeout: str = "30s") -> bool:
    """Return whether the target has all changes until now, after at most a time."""
    words = ["wait", str(job), "--until", "now", "--timeout", timeout]
    command = [sys.executable, "-m", "penstock.cli.main", *words]
    return not subprocess.run(command, capture_output=True).returncode


if __name__ == "__main__":
    main()
