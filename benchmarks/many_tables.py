"""What tables that do not change cost: a publication of 20 and of 2,000 tables, in one run.

    python benchmarks/many_tables.py [--tables 20 2000] [--changes 40000] [--rounds 1] [--sinks files delta]

Each run is `penstock run postgres-to-SINK` with `new_tables=snapshot`, from its start to its exit. In each database the
same 20 tables have `--changes` changes that were committed before, 20 in a transaction. All other tables do not change.

- *start*: seconds and CPU seconds of the command that finds nothing to read.
- *snapshot*: the same with `snapshot=initial`: all rows of the 20 tables, and none of the others.
- *pace*: changes in a second, and in a second of CPU, above that command.
- *memory*: the highest sum of the proportional set sizes of all processes of the command, JVM included.
- *record*: size of the largest file of the checkpoint, in kilobytes.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import psycopg
from measure import Cost, ProgramStopwatch, Spread, heading, machine, row, tree
from measure.live import memory

from penstock_emulators.postgres import PostgresServer

CHANGING, ROWS = 20, 20
"""Tables that change, and changes in a transaction."""
_LOOK_SECONDS = 0.25
_SLOTS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Run:
    """Cost of a command, its memory, and the size of the largest file of its checkpoint; bytes."""

    cost: Cost
    memory: int
    record: int


@contextmanager
def peak_memory(root: int) -> Iterator[list[int]]:
    """Yield a list whose only entry is the highest memory so far of a process and its descendants, in bytes."""
    peak, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_SECONDS):
            peak[0] = max(peak[0], sum(map(memory, tree(root))))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def make_database(server: PostgresServer, tables: int, changes: int) -> str:
    """Create a database with tables and changes; return its connection string. The slot `unread` is before them."""
    name = f"tables_{tables}"
    with psycopg.connect(server.dsn(), autocommit=True) as session:
        session.execute(f"create database {name}")
    with psycopg.connect(server.dsn(name), autocommit=True) as session:
        for number in range(tables):
            session.execute(
                f"create table table_{number} (id bigint primary key, name text, note text, amount numeric(12,2), "
                "at timestamptz, paid boolean, rate float8, account bigint)"
            )
        session.execute("create publication benchmark for all tables")
        session.execute(f"select pg_create_logical_replication_slot('unread_{tables}', 'pgoutput')")
        for first in range(0, changes, ROWS):
            session.execute(
                f"insert into table_{first // ROWS % CHANGING} select i, 'name ' || i, repeat('x', 60), i + 0.25, "
                f"clock_timestamp(), true, i / 3.0, i from generate_series({first}, {first + ROWS - 1}) i"
            )
    return server.dsn(name)


def run(dsn: str, tables: int, sink: str, folder: Path, *, empty: bool, snapshot: str = "never") -> Run:
    """Run the command to its end. `empty`: from the end of the log. `snapshot`: the option of the source."""
    slot = f"run_{next(_SLOTS)}"
    with psycopg.connect(dsn, autocommit=True) as session:
        if empty:
            session.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        else:
            session.execute("select pg_copy_logical_replication_slot(%s, %s)", (f"unread_{tables}", slot))
    given = {
        "dsn": dsn,
        "publication": "benchmark",
        "slot": slot,
        "new_tables": "snapshot",
        "snapshot": snapshot,
        "end": datetime.now(timezone.utc).isoformat(),
        "roll_seconds": "0",
        **(
            {"output": str(folder / "out"), "format": "debezium"}
            if sink == "files"
            else {"uri": f"{folder}/out/{{table}}"}
        ),
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]", "--progress", "none"]
    command = [sys.executable, "-m", "penstock.cli.main", "run", f"postgres-to-{sink}", *sets, *options]
    folder.mkdir(parents=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        with peak_memory(process.pid) as peak:
            stopwatch = ProgramStopwatch(process.pid)
            code = process.wait()
            cost = stopwatch.stop()
    if code:
        raise RuntimeError(f"exit code {code}: {(folder / 'log').read_text()[-3000:]}")
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("select pg_drop_replication_slot(%s)", (slot,))
    files = [path.stat().st_size for path in (folder / "checkpoint").rglob("*") if path.is_file()]
    return Run(cost, peak[0], max(files, default=0))


@dataclass(slots=True)
class Figures:
    """The runs of one sink with one number of tables."""

    empty: list[Run] = field(default_factory=list)
    full: list[Run] = field(default_factory=list)
    initial: list[Run] = field(default_factory=list)

    def cells(self, changes: int) -> list[str]:
        """Return the cells of a row, in the order of `COLUMNS`."""
        wall, cpu = self._median("wall"), self._median("cpu")
        pace = Spread.of([changes / (each.cost.wall - wall) for each in self.full])
        pace_cpu = Spread.of([changes / (each.cost.cpu - cpu) for each in self.full])
        return [
            Spread.of([each.cost.wall for each in self.empty]).text(1),
            Spread.of([each.cost.cpu for each in self.empty]).text(1),
            Spread.of([each.cost.wall for each in self.initial]).text(1),
            Spread.of([each.cost.cpu for each in self.initial]).text(1),
            pace.text(0),
            pace_cpu.text(0),
            f"{max(each.memory for each in self.full) / 1e6:.0f}",
            f"{max(each.record for each in self.full) / 1e3:.0f}",
        ]

    def _median(self, name: str) -> float:
        return Spread.of([getattr(each.cost, name) for each in self.empty]).median


COLUMNS = (
    "start s", "start CPU s", "snapshot s", "snapshot CPU s", "changes/s", "changes/CPU s", "memory MB", "file kB",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, nargs="+", default=[20, 2000])
    parser.add_argument("--changes", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sinks", nargs="+", default=["files", "delta"], choices=["files", "delta"])
    given = parser.parse_args()
    print(machine())
    print(heading("sink", "tables", *COLUMNS))
    settings = {"max_wal_size": "8GB", "max_replication_slots": "20", "max_locks_per_transaction": "256"}
    with PostgresServer.start(settings=settings) as server, tempfile.TemporaryDirectory() as place:
        sources = {tables: make_database(server, tables, given.changes) for tables in given.tables}
        folders = (Path(place, str(number)) for number in itertools.count())
        for sink in given.sinks:
            found = {tables: Figures() for tables in sources}
            # The numbers of tables take turns, so that a busy minute of the machine concerns all of them.
            for _ in range(given.rounds):
                for tables, dsn in sources.items():
                    of = partial(run, dsn, tables, sink)
                    found[tables].empty.append(of(next(folders), empty=True))
                    found[tables].full.append(of(next(folders), empty=False))
                    found[tables].initial.append(of(next(folders), empty=True, snapshot="initial"))
            for tables, figures in found.items():
                print(row(sink, tables, *figures.cells(given.changes)), flush=True)


if __name__ == "__main__":
    main()
