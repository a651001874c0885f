"""A table of current rows that a running pipeline changes: lag, memory of the driver, files and log, minute by minute.

    python benchmarks/table_live.py [--rows 2000000] [--rate 200] [--minutes 5] [--sinks delta iceberg]

`penstock run postgres-to-SINK` loads a table of `--rows` rows, with `roll_seconds=5`, `mark_complete` and
`version_seconds=60`. Then transactions of one row update rows of the whole table at `--rate` a second.

- *load*: seconds from the start of the command until all rows are in the table.
- *behind*: how far the mark of the table is behind the clock, looked at ten times a second: median and largest of the
  minute. With `roll_seconds=5` the least that is possible goes from 0 to 5 s.
- *driver* and *all*: proportional set size of the driver, and of the whole process tree, at the end of the minute.
- *data*: Parquet files of the table's folder, also those that no reader needs any more. *metadata*: its other files.
- *CPU*: of the process tree, in a second; *commits*: changes of the mark.

There is no peer: the figures are to stay flat from the first minute to the last.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psycopg
from measure import Stopwatch, heading, machine, percentile, row, tree
from measure.live import memory, running, wait_for
from measure.postgres import committing

from penstock_emulators.postgres import PostgresServer

TABLE = (
    "create table orders (id bigint primary key, name text, note text, amount numeric(12,2), at timestamptz, "
    "paid boolean, rate float8)"
)
INSERT = (
    "insert into orders select i, 'name ' || i, repeat('x', 60), i + 0.25, clock_timestamp(), i %% 2 = 0, i / 3.0 "
    "from generate_series(%s::int8, %s::int8) i"
)
UPDATE = "update orders set amount = amount + 1, at = clock_timestamp() where id = %s"
_LOOK_SECONDS = 0.1
_LOAD_SECONDS = 900.0
_WARM_SECONDS = 20.0
"""Until the changes after the initial load have moved the mark."""
HEADS = (
    "minute",
    "commits",
    "behind, s",
    "largest",
    "driver, MB",
    "all, MB",
    "data files",
    "MB",
    "metadata",
    "MB",
    "CPU",
)

Marks = Callable[[], Mapping[str, datetime]]


@dataclass(slots=True)
class Ages:
    """How far a mark was behind at each look, in seconds, and how often it moved."""

    seconds: list[float] = field(default_factory=list)
    moves: int = 0

    def take(self) -> tuple[list[float], int]:
        """Return the looks and moves since the last call."""
        taken = self.seconds, self.moves
        self.seconds, self.moves = [], 0
        return taken


@contextmanager
def watching(marks: Marks) -> Iterator[Ages]:
    """Look at the mark of a table in a thread."""
    ages, over = Ages(), threading.Event()

    def look() -> None:
        last = None
        while not over.wait(_LOOK_SECONDS):
            mark = min(marks().values(), default=None)
            if mark is None:
                continue  # the initial scan is not marked before its end
            ages.seconds.append(time.time() - mark.timestamp())
            ages.moves += mark != last
            last = mark

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield ages
    finally:
        over.set()
        thread.join()


def updating(dsn: str, rows: int, rate: float) -> AbstractContextManager[None]:
    """Update rows of the whole table at a rate, in a thread."""
    rng = random.Random(1)
    return committing(dsn, UPDATE, ((rng.randrange(rows),) for _ in itertools.count()), rate)


def delta(folder: Path) -> tuple[dict[str, str], Marks, Callable[[], int]]:
    """Return the parameters of the sink, its marks, and the number of its rows."""
    from deltalake import DeltaTable, QueryBuilder

    from penstock.io.delta import complete_until

    def rows() -> int:
        if not (folder / "lake" / "orders" / "_delta_log").exists():
            return 0
        query = QueryBuilder().register("t", DeltaTable(folder / "lake" / "orders"))
        return int(query.execute("select count(*) as n from t").read_all()["n"][0].as_py())

    settings = {"uri": str(folder / "lake" / "{table}"), "deletion_vectors": "true"}
    return settings, lambda: complete_until(str(folder / "lake" / "orders")), rows


def iceberg(folder: Path) -> tuple[dict[str, str], Marks, Callable[[], int]]:
    """As `delta`."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NoSuchTableError

    from penstock.io.iceberg import complete_until

    (folder / "lake").mkdir()
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/lake",
    }
    catalog = {f"catalog_properties.{name}": value for name, value in properties.items()}

    def rows() -> int:
        try:
            table = SqlCatalog("default", **properties).load_table("live.orders")
        except NoSuchTableError:
            return 0
        return len(table.scan(selected_fields=("id",)).to_arrow())

    def marks() -> Mapping[str, datetime]:
        return complete_until("live.orders", catalog="default", catalog_properties=properties)

    return {"target_table": "live.{table}", **catalog}, marks, rows


SINKS = {"delta": delta, "iceberg": iceberg}


def sizes(folder: Path) -> Iterator[object]:
    """Yield number and megabytes of the Parquet files of a folder, and of its other files."""
    files = [
        (path.suffix == ".parquet", path.stat().st_size)
        for path in (folder / "lake").rglob("*")
        if path.is_file()
    ]
    for data in (True, False):
        mine = [size for is_data, size in files if is_data == data]
        yield len(mine)
        yield f"{sum(mine) / 1e6:.0f}"


def measure(sink: str, server: PostgresServer, rows: int, rate: float, minutes: int) -> None:
    """Run one pipeline, and print a line for each minute."""
    with tempfile.TemporaryDirectory(prefix="penstock-table-live-") as name:
        folder = Path(name)
        settings, marks, count = SINKS[sink](folder)
        source = {
            "dsn": server.dsn(),
            "publication": "live",
            "slot": sink,
            "create_slot": "true",
            "snapshot": "initial",
        }
        options = {
            "mode": "current",
            "roll_seconds": "5",
            "mark_complete": "true",
            "mark_complete_seconds": "5",
            "version_seconds": "60",
        }
        begun = time.perf_counter()
        with running(f"postgres-to-{sink}", folder, {**source, **settings, **options}) as root:
            wait_for(lambda: count() >= rows, "the rows", _LOAD_SECONDS)
            print(f"\n{sink}: load {time.perf_counter() - begun:.0f} s\n")
            print(heading(*HEADS), flush=True)
            with updating(server.dsn(), rows, rate), watching(marks) as ages:
                time.sleep(_WARM_SECONDS)
                ages.take()
                for minute in range(1, minutes + 1):
                    print(one_minute(minute, root, folder, ages), flush=True)


def one_minute(minute: int, root: int, folder: Path, ages: Ages) -> str:
    watch = Stopwatch(root)
    time.sleep(60)
    cost, (seconds, moves) = watch.stop(), ages.take()
    used = (memory(root), sum(map(memory, tree(root))))
    megabytes = (f"{part / 1e6:.0f}" for part in used)
    behind = (f"{percentile(seconds, 50):.1f}", f"{max(seconds):.1f}")
    return row(minute, moves, *behind, *megabytes, *sizes(folder), f"{cost.cpu / cost.wall:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--minutes", type=int, default=5)
    parser.add_argument("--sinks", nargs="+", choices=SINKS, default=list(SINKS), metavar="SINK")
    options = parser.parse_args()
    print(f"{machine()}; {options.rows:,} rows, {options.rate:g} updates a second", flush=True)
    with PostgresServer.start(settings={"max_wal_size": "8GB"}) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as session:
            session.execute(TABLE)
            session.execute(INSERT, (0, options.rows - 1))
            session.execute("vacuum analyze orders")
            session.execute("create publication live for all tables")
        for sink in options.sinks:
            measure(sink, server, options.rows, options.rate, options.minutes)


if __name__ == "__main__":
    main()
