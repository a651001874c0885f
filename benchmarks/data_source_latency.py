"""From commit to rows that can be read, at 200 transactions a second: a Spark data source and the Beam pipeline.

    python benchmarks/data_source_latency.py [--rate 200] [--seconds 20] [--only SOURCE …]

For each source there is one service, to which transactions of one row are committed. Each door reads them alone:

- *Beam pipeline*: `penstock run SOURCE-to-files` with `roll_seconds=0`.
- *Data source*: `demo/data_source_job.py` with the columns of the table. A batch begins when the one before it has
  ended, and becomes a folder of Parquet files.

The latency of a transaction is the time when its file is first seen, or when Spark has marked its folder as complete,
minus its commit timestamp. All clocks are this machine's. CPU time is that of the process tree of the door. *Requests*
are what the service counts in the same time, divided by the batches: queries of the change stream (Spanner), sessions
(PostgreSQL). The simulated Spanner has a few partitions, which do not change.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import latency
import postgres_live
import psycopg
import pyarrow.parquet
from measure import Cost, Stopwatch, heading, machine, percentile, row
from measure.live import Watcher, running, wait_for

from penstock.timestamps import format_timestamp, parse_timestamp
from penstock_emulators.oracle.kill import Run
from penstock_emulators.postgres import PostgresServer
from penstock_emulators.simulated_spanner import SimulatedSpanner

PERCENTS = (50, 95, 99)
FIRST, WARM_RATE, WARM_SECONDS, SETTLE_SECONDS = 5, 10.0, 15.0, 3.0
"""Files or batches at the rate WARM_RATE, then seconds until the JVM has compiled what it needs; then seconds at the
full rate before the measurement begins, and after it for the last rows."""


@dataclass(frozen=True, slots=True)
class Live:
    """A service, and how both doors read it.

    settings: of the pipeline. options: of the data source. commit_of: the commit timestamp of a line of the pipeline,
    in nanoseconds. writing: commits transactions of one row at a rate, while it is open. requests: returns how many
    the service has counted.
    """

    source: str
    settings: Mapping[str, str]
    options: Mapping[str, str]
    commit_of: Callable[[dict[str, Any]], int]
    writing: Callable[[float], AbstractContextManager[None]]
    requests: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Measured:
    """Latencies in seconds. `batches` and `requests` of the same time; 0: not counted."""

    ages: list[float]
    cost: Cost
    batches: int = 0
    requests: int = 0


@contextmanager
def postgres() -> Iterator[Live]:
    with (
        PostgresServer.start() as server,
        psycopg.connect(server.dsn("postgres"), autocommit=True) as session,
    ):
        session.execute(postgres_live.TABLE)
        session.execute("create publication live for all tables")
        for slot in ("pipeline", "source"):
            session.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        dsn = server.dsn("postgres")
        stream = {"dsn": dsn, "publication": "live"}

        def sessions() -> int:
            found = session.execute(
                "select sessions from pg_stat_database where datname = 'postgres'"
            ).fetchone()
            assert found is not None
            return int(found[0])

        yield Live(
            "postgres",
            {**stream, "slot": "pipeline", "format": "debezium"},
            {**stream, "slot": "source", "table": "public.orders"},
            postgres_live.commit_of,
            lambda rate: postgres_live.writing(dsn, rate),
            sessions,
        )


@contextmanager
def spanner() -> Iterator[Live]:
    with SimulatedSpanner.start() as service:
        os.environ.update(service.environment())
        service.create_database(latency.PROJECT, latency.INSTANCE, latency.DATABASE, latency.DDL)
        start = time.time_ns()
        settings = latency.settings(Path(), start)
        stream = {name: settings[name] for name in ("project", "instance", "database", "change_stream")}
        own = {"table": "Accounts", "start": format_timestamp(start), "emulator_host": service.host}
        yield Live(
            "spanner",
            settings,
            {**stream, **own},
            lambda line: parse_timestamp(line["commit_timestamp"]),
            _spanner_writing,
            lambda: service.control.stats()["change_queries"],
        )


@contextmanager
def _spanner_writing(rate: float) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")
    pace, (commits, out) = spawn.Value("d", rate), spawn.Pipe(duplex=False)
    writer = spawn.Process(target=latency.write, args=(pace, out), daemon=True)
    writer.start()
    try:
        yield
    finally:
        pace.value = -1.0
        commits.recv()
        writer.join()


SOURCES = {"postgres": postgres, "spanner": spanner}


def pipeline(live: Live, rate: float, seconds: float) -> Measured:
    with tempfile.TemporaryDirectory(prefix="penstock-latency-") as name:
        output = Path(name, "output")
        settings = {**live.settings, "output": str(output), "roll_seconds": "0"}
        with (
            running(f"{live.source}-to-files", Path(name), settings) as root,
            Watcher(output, live.commit_of) as watcher,
        ):
            warm_up(live, lambda: len(watcher.seen))
            since, until, cost, _ = measure(live, rate, seconds, root)
            seen = dict(watcher.published())
        return Measured(ages(seen.items(), since, until), cost)


def data_source(live: Live, rate: float, seconds: float) -> Measured:
    with tempfile.TemporaryDirectory(prefix="penstock-latency-") as name:
        pairs = [f"{key}={value}" for key, value in live.options.items()]
        job = [sys.executable, "-m", "benchmarks.demo.data_source_job", f"penstock-{live.source}"]
        with Run([*job, name, "0 seconds", *pairs], log=Path(name, "log")) as run:

            def batches() -> int:
                if not run.alive():
                    raise SystemExit(f"the data source ended:\n{Path(name, 'log').read_text()[-3000:]}")
                return len(list(Path(name).glob("rows/batch=*/_SUCCESS")))

            warm_up(live, batches)
            since, until, cost, requests = measure(live, rate, seconds, run.process.pid)
        seen = [(mark.stat().st_mtime_ns, mark.parent) for mark in Path(name).glob("rows/batch=*/_SUCCESS")]
        commits = [(commit, at) for at, folder in seen for commit in commits_in(folder)]
        count = sum(since <= at < until for at, _ in seen)
        return Measured(ages(commits, since, until), cost, count, requests)


def warm_up(live: Live, count: Callable[[], int]) -> None:
    with live.writing(WARM_RATE):
        wait_for(lambda: count() >= FIRST, "the first files")
        time.sleep(WARM_SECONDS)


def measure(live: Live, rate: float, seconds: float, root: int) -> tuple[int, int, Cost, int]:
    """Commit transactions; return begin and end of the time that counts in ns, the cost, and the requests in it."""
    with live.writing(rate):
        time.sleep(SETTLE_SECONDS)
        since, watch, before = time.time_ns(), Stopwatch(root), live.requests()
        time.sleep(seconds)
        until, cost, requests = time.time_ns(), watch.stop(), live.requests() - before
    time.sleep(SETTLE_SECONDS)
    return since, until, cost, requests


def ages(seen: Any, since: int, until: int) -> list[float]:
    return [(at - commit) / 1e9 for commit, at in seen if since <= commit < until]


def commits_in(folder: Path) -> Iterator[int]:
    """Yield the commit timestamps of the changes of a batch, in nanoseconds."""
    for file in folder.glob("*.parquet"):
        found = pyarrow.parquet.ParquetFile(file).read(["_commit_timestamp", "_change_type"])
        for each in found.to_pylist():
            if each["_change_type"] != "update_preimage":
                at = each["_commit_timestamp"]
                yield round(at.timestamp() * 1_000_000) * 1000


def tell(name: str, found: Measured, rate: float, seconds: float) -> None:
    if len(found.ages) < rate * seconds * 0.9:
        raise SystemExit(f"{name} has only {len(found.ages)} transactions of about {rate * seconds:g}")
    latencies = (f"{percentile(found.ages, percent) * 1000:,.0f}" for percent in PERCENTS)
    per_batch = (
        (f"{found.batches / found.cost.wall:.1f}", f"{found.requests / found.batches:.1f}")
        if found.batches
        else ("", "")
    )
    print(row(name, *latencies, f"{found.cost.cpu / found.cost.wall:.2f}", *per_batch), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", nargs="+", choices=SOURCES, default=list(SOURCES), metavar="SOURCE")
    options = parser.parse_args()
    print(f"{machine()}; {options.rate:g} transactions a second; load average {os.getloadavg()[0]:.1f}\n")
    columns = [f"p{percent}" for percent in PERCENTS]
    print(heading("commit to seen, ms", *columns, "CPU s per s", "batches per s", "requests per batch"))
    for source in options.only:
        with SOURCES[source]() as live:
            for name, door in (("Beam pipeline", pipeline), ("data source", data_source)):
                found = door(live, options.rate, options.seconds)
                tell(f"{source}, {name}", found, options.rate, options.seconds)


if __name__ == "__main__":
    main()
