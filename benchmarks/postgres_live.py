"""A pipeline from PostgreSQL that runs: without changes, at several rates, and beside busy processes.

    python benchmarks/postgres_live.py [--rate 200] [--few 0.5 1 5] [--seconds 20] [--idle 60] [--busy 2]
        [--busy-rate 1000] [--busy-seconds 180]

One server and one `penstock run postgres-to-files` with Debezium's records and `roll_seconds=0`. First nothing changes
for `--idle` seconds. Then transactions of one row are committed at the rates of `--few`, and then at `--rate`. Each one
is looked for in the files that appear. At last `--busy` processes take all the CPU time that they get, and the
transactions come at `--busy-rate`: the pipeline keeps up with them if the age of the changes does not grow from the
first third of the time to the last.

The peer is a *bare consumer*: a process that receives the same log with its own slot, without decoding it, and writes
nothing. The latency of a transaction is the time when it is first seen minus its commit timestamp; both clocks are this
machine's. CPU time and memory (PSS) are those of the pipeline's process tree.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from measure import Cost, Stopwatch, heading, machine, percentile, row, tree
from measure.live import Watcher, memory, running, wait_for
from measure.postgres import committing
from measure.tree import part_of

from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock.io.postgres.client import Client
from penstock.io.postgres.record import nanoseconds
from penstock_emulators.postgres import PostgresServer

TABLE = "create table orders (id bigint primary key, name text, amount numeric(12,2), at timestamptz)"
INSERT = "insert into orders values (%s, 'name', 12.25, clock_timestamp())"
PUBLICATION = "live"
PERCENTS = (50, 95, 99)
_COMMIT = ord("C")
_SETTLE_SECONDS = 3.0
_WARM_SECONDS = 30.0
"""After the first files the JVM compiles its code for a while, which is a part of the start."""


def commit_of(line: dict[str, Any]) -> int:
    """Return the commit timestamp of a record of Debezium, in nanoseconds."""
    return int(line["source"]["ts_us"]) * 1000


def writing(dsn: str, rate: float) -> AbstractContextManager[None]:
    """Commit transactions of one new row at a rate, in a thread."""
    with psycopg.connect(dsn, autocommit=True) as session:
        row = session.execute("select coalesce(max(id), 0) from orders").fetchone()
    first = 1 + (row[0] if row else 0)
    return committing(dsn, INSERT, ((number,) for number in itertools.count(first)), rate)


def consume(dsn: str, slot: str, ready: Any, over: Any, out: Any) -> None:
    """Receive the log of a slot from when `ready` is set until `over` is; send {commit timestamp: when it was seen}."""
    source = ReadFromPostgresChangeStream(dsn=dsn, publication=PUBLICATION, slot=slot)
    seen: dict[int, int] = {}
    with Client(source.stream, source._settings.connection) as client:
        client.take_slot()
        log = client.open_stream(0)
        ready.set()
        while not over.is_set():
            for _, payload in log.receive(0.1, 256, 1 << 20):
                if payload and payload[0] == _COMMIT:
                    # A commit ends with its time, in µs since 2000.
                    seen.setdefault(nanoseconds(int.from_bytes(payload[18:26], "big")), time.time_ns())
        log.close()
    out.send(seen)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run processes that take all the CPU time that they get."""
    children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def watermark_lag(checkpoint: Path) -> float:
    """Return how many seconds the pipeline's watermark is behind, as `penstock status` says."""
    command = [str(Path(sys.executable).with_name("penstock")), "status", "--json", str(checkpoint)]
    status = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return float(status["watermark_lag_seconds"])


def latencies(published: dict[int, int], since: int, until: int) -> list[float]:
    """Return the seconds from commit to file of the transactions that were committed in a time."""
    return [(seen - commit) / 1e9 for commit, seen in published.items() if since <= commit < until]


def measure(dsn: str, rate: float, seconds: float, root: int) -> tuple[int, int, Cost]:
    """Commit transactions at a rate. Return begin and end of the time that counts, and what the pipeline cost in it."""
    with writing(dsn, rate):
        time.sleep(_SETTLE_SECONDS)
        since, watch = time.time_ns(), Stopwatch(root)
        time.sleep(seconds)
        return since, time.time_ns(), watch.stop()


def tell(name: str, ages: list[float], cost: Cost | None = None) -> None:
    """Print percentiles in milliseconds, and the CPU time of the pipeline in each second."""
    cpu = "" if cost is None else f"{cost.cpu / cost.wall:.2f}"
    print(row(name, *(f"{percentile(ages, percent) * 1000:.0f}" for percent in PERCENTS), cpu), flush=True)


def memory_by_part(root: int) -> Counter[str]:
    """Return the bytes (PSS) of the processes of a pipeline, by what they are."""
    sizes = Counter[str]()
    for process in tree(root):
        sizes[part_of(process, root)] += memory(process)
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--few", type=float, nargs="*", default=[0.5, 1.0, 5.0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--busy-rate", type=float, default=1000.0)
    parser.add_argument("--busy-seconds", type=float, default=180.0)
    options = parser.parse_args()
    print(f"{machine()}; load average {os.getloadavg()[0]:.1f}\n", flush=True)
    spawn = multiprocessing.get_context("spawn")
    with (
        PostgresServer.start() as server,
        tempfile.TemporaryDirectory(prefix="penstock-live-") as name,
    ):
        folder, dsn = Path(name), server.dsn("postgres")
        with psycopg.connect(dsn, autocommit=True) as session:
            session.execute(TABLE)
            session.execute(f"create publication {PUBLICATION} for all tables")
            for slot in ("ours", "theirs"):
                session.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        settings = {
            "dsn": dsn,
            "publication": PUBLICATION,
            "slot": "ours",
            "format": "debezium",
            "output": str(folder / "output"),
            "roll_seconds": "0",
        }
        ready, over = spawn.Event(), spawn.Event()
        seen_in, seen_out = spawn.Pipe(duplex=False)
        peer = spawn.Process(target=consume, args=(dsn, "theirs", ready, over, seen_out), daemon=True)
        with (
            running("postgres-to-files", folder, settings) as root,
            Watcher(folder / "output", commit_of) as watcher,
        ):
            with writing(dsn, 10):
                wait_for(lambda: len(watcher.seen) >= 5, "the first files")
            time.sleep(_WARM_SECONDS)
            watch = Stopwatch(root)
            time.sleep(options.idle)
            cost = watch.stop()
            bytes_used = memory_by_part(root)
            print(heading("without changes", "figure"))
            print(row("CPU, s per second", f"{cost.cpu / cost.wall:.3f}"))
            print(row("memory (PSS), MB", f"{sum(bytes_used.values()) / 1e6:.0f}"))
            for part, size in bytes_used.most_common():
                print(row(f"of it {part}", f"{size / 1e6:.0f}"))
            print(row("watermark behind, s", f"{watermark_lag(folder / 'checkpoint'):.1f}"), flush=True)
            print(
                "\n"
                + heading("commit to seen, ms", *(f"p{percent}" for percent in PERCENTS), "CPU, s per second")
            )
            for rate in options.few:
                since, until, cost = measure(dsn, rate, options.seconds, root)
                time.sleep(_SETTLE_SECONDS)  # for the last files
                tell(f"published, {rate:g} a second", latencies(watcher.published(), since, until), cost)
            peer.start()
            ready.wait()
            since, until, cost = measure(dsn, options.rate, options.seconds, root)
            over.set()
            theirs: dict[int, int] = seen_in.recv()
            wait_for(lambda: watcher.published().keys() >= theirs.keys(), "the last files")
            tell(f"published, {options.rate:g} a second", latencies(watcher.published(), since, until), cost)
            tell("bare consumer", latencies(theirs, since, until))
            if options.busy:
                with busy(options.busy), writing(dsn, options.busy_rate):
                    began = time.time_ns()
                    time.sleep(options.busy_seconds)
                    ended = time.time_ns()
                time.sleep(_SETTLE_SECONDS)
                third = (ended - began) // 3
                for part, first in (("first", began), ("last", ended - third)):
                    ages = latencies(watcher.published(), first, first + third)
                    tell(
                        f"{options.busy} busy processes, {len(ages) / third * 1e9:.0f} a second, {part} third",
                        ages,
                    )


if __name__ == "__main__":
    main()
