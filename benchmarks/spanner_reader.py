"""Mods per second, and per CPU second of the client: our reader, the bare query, and `execute_sql`.

    python benchmarks/spanner_reader.py [--mods 150000] [--singles 4000] [--rounds 3]

There are two workloads on the emulator with the same data in the same run: transactions of 500 rows, and transactions
of one row. All contenders read the same window of the same partitions and take turns for several rounds; the median
counts.

- *raw*: receives the results of the query from the bare stub and touches the three texts of each mod. It makes no
  records, keeps no order and tracks no restriction. This is the most that a Python client can do.
- *penstock*: the DoFn with its tracker and watermark estimator, called as a runner calls it, until `end`.
- *execute_sql*: the client of google-cloud-spanner; touches the three texts of each mod.

The emulator limits the wall time, so CPU time of the client process is the figure to compare.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from apache_beam.runners.sdf_utils import (
    RestrictionTrackerView,
    ThreadsafeRestrictionTracker,
    ThreadsafeWatermarkEstimator,
)
from google.cloud.spanner_v1.types import result_set

from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark
from penstock.io.spanner import ReadFromSpannerChangeStream, format_timestamp
from penstock.io.spanner.client import Client
from penstock.io.spanner.decode import Decoder, merge_chunk
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.query import ROOT, change_stream_query
from penstock.io.spanner.read import ReadSpannerFn
from penstock.io.spanner.source import ChangeStream, Connection
from penstock_emulators.spanner import SpannerEmulator

PartialResultSet = result_set.PartialResultSet.pb()
PROJECT, INSTANCE = "benchmark", "benchmark"
DDL = [
    "CREATE TABLE Accounts (Id INT64 NOT NULL, Owner STRING(MAX), Balance INT64) PRIMARY KEY (Id)",
    "CREATE CHANGE STREAM Changes FOR ALL OPTIONS (value_capture_type = 'OLD_AND_NEW_VALUES')",
]


@dataclass(frozen=True, eq=False)
class Workload:
    """A database with changes between `start` and `end` (nanoseconds, both inclusive)."""

    name: str
    stream: ChangeStream
    database: Any
    emulator: SpannerEmulator
    mods: int


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds of one contender for one workload."""

    wall: float
    cpu: float


def prepare(emulator: SpannerEmulator, name: str, transactions: int, rows: int) -> Workload:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner

    emulator.create_database(PROJECT, INSTANCE, name, DDL)
    client = spanner.Client(project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True)
    database = client.instance(INSTANCE).database(name)
    start = time.time_ns()
    for number in range(transactions):
        with database.batch() as batch:
            batch.insert_or_update(
                "Accounts",
                ["Id", "Owner", "Balance"],
                [((number * rows + row) % 100_000, f"owner {row}", number) for row in range(rows)],
            )
    time.sleep(0.1)
    stream = ChangeStream(PROJECT, INSTANCE, name, "Changes", start, time.time_ns())
    return Workload(name, stream, database, emulator, transactions * rows)


def in_every_partition(
    workload: Workload, read: Callable[[str, int], tuple[int, list[tuple[str, int]]]]
) -> int:
    """Run `read(token, start)` for each partition, side by side by generation; return the mods in all.

    `read` returns the mods of the partition and its children as (token, start).
    """
    todo, known, mods = [(ROOT, workload.stream.start)], set(), 0
    while todo:
        with ThreadPoolExecutor(len(todo)) as threads:
            results = list(threads.map(read, *zip(*todo, strict=True)))
        mods += sum(count for count, _ in results)
        known |= {token for token, _ in todo}
        todo = [child for child in {c for _, children in results for c in children} if child[0] not in known]
    return mods


@cache
def raw_client(workload: Workload) -> Client:
    """Return one client with one session for all rounds, as the others have."""
    return Client(workload.stream, Connection(emulator_host=workload.emulator.host))


def raw(workload: Workload) -> int:
    """Read the query to its end; touch every mod."""
    client = raw_client(workload)

    def read(token: str, start: int) -> tuple[int, list[tuple[str, int]]]:
        query = change_stream_query("READ_Changes", token, start, workload.stream.end or 0, 1000)
        mods, children, pending = 0, [], None
        for message in map(PartialResultSet.FromString, client.open(query, "benchmark", 60)):
            rows = list(message.values)
            if pending is not None and rows:
                merge_chunk(pending, rows[0])
                rows[0], pending = pending, None
            if message.chunked_value:
                pending = rows.pop()
            for row in rows:
                for struct in row.list_value.values:
                    data, _, child = struct.list_value.values
                    for entry in data.list_value.values:
                        for mod in entry.list_value.values[6].list_value.values:
                            sides = mod.list_value.values
                            _ = sides[0].string_value, sides[1].string_value, sides[2].string_value
                            mods += 1
                    if child.list_value.values:
                        children += _children(message, row)
        return mods, children

    return in_every_partition(workload, read)


def _children(message: Any, row: Any) -> list[tuple[str, int]]:
    single = type(message)()
    single.values.add().CopyFrom(row)
    return [
        (child.token, record.start_timestamp)
        for record in Decoder().feed(single.SerializeToString())
        for child in getattr(record, "child_partitions", ())
    ]


@cache
def prepared(workload: Workload) -> tuple[ReadSpannerFn, Frontier]:
    """Return the DoFn and its initial restriction: checks that a pipeline makes once."""
    stream = workload.stream
    transform = ReadFromSpannerChangeStream(
        project=stream.project,
        instance=stream.instance,
        database=stream.database,
        change_stream=stream.change_stream,
        start=stream.start,
        end=stream.end,
        emulator_host=workload.emulator.host,
    )
    fn = ReadSpannerFn(transform._settings)
    return fn, fn.initial_restriction(transform.stream)


def penstock(workload: Workload) -> int:
    """Read with the DoFn until the end of the restriction."""
    fn, frontier = prepared(workload)
    tracker = ThreadsafeRestrictionTracker(fn.create_tracker(frontier))
    estimator = ThreadsafeWatermarkEstimator(FrontierWatermarkEstimator(beam_watermark(frontier.watermark)))
    outputs = fn.process(workload.stream, RestrictionTrackerView(tracker), estimator)
    mods = sum(len(output.value.mods) for output in outputs)
    tracker.check_done()
    return mods


def execute_sql(workload: Workload) -> int:
    """Read with the client library, as its documentation shows."""
    from google.cloud.spanner_v1 import param_types as types

    kinds = {"s": types.TIMESTAMP, "e": types.TIMESTAMP, "t": types.STRING, "h": types.INT64}
    sql = (
        "SELECT ChangeRecord FROM READ_Changes(start_timestamp => @s, end_timestamp => @e, "
        "partition_token => @t, heartbeat_milliseconds => @h, read_options => NULL)"
    )

    def read(token: str, start: int) -> tuple[int, list[tuple[str, int]]]:
        params = {
            "s": format_timestamp(start),
            "e": format_timestamp(workload.stream.end or 0),
            "t": token or None,
            "h": 1000,
        }
        mods, children = 0, []
        with workload.database.snapshot() as snapshot:
            for row in snapshot.execute_sql(sql, params=params, param_types=kinds):
                for data, _, child in row[0]:
                    for record in data:
                        for keys, new, old in record[6]:
                            _ = keys, new, old
                            mods += 1
                    for begins, _, partitions in child:
                        nanos = int(begins.timestamp()) * 1_000_000_000 + begins.nanosecond
                        children += [(partition[0], nanos) for partition in partitions]
        return mods, children

    return in_every_partition(workload, read)


def measured(contender: Callable[[Workload], int], workload: Workload) -> Figure:
    wall, cpu = time.perf_counter(), time.process_time()
    mods = contender(workload)
    figure = Figure(time.perf_counter() - wall, time.process_time() - cpu)
    if mods != workload.mods:
        raise SystemExit(f"{contender.__name__} read {mods} mods of {workload.mods} ({workload.name})")
    return figure


def compare(workload: Workload, rounds: int) -> None:
    contenders = [raw, penstock, execute_sql]
    figures: dict[str, list[Figure]] = {contender.__name__: [] for contender in contenders}
    for contender in contenders:
        measured(contender, workload)  # connections, imports
    # As the workers of PySparkRunner do: otherwise a full collection looks at all of Beam's modules, which takes as
    # long as a round.
    gc.collect()
    gc.freeze()
    for number in range(rounds):
        for contender in contenders[number % 3 :] + contenders[: number % 3]:
            figures[contender.__name__].append(measured(contender, workload))
    print(f"\n{workload.name}: {workload.mods:,} mods, median of {rounds} (lowest to highest)")
    print(f"{'':12} {'mods/s':>10} {'mods per client CPU s':>32} {'of raw (CPU)':>13} {'of raw (wall)':>14}")
    base = figures["raw"]
    for name, some in figures.items():
        rates = sorted(workload.mods / figure.cpu for figure in some)
        wall = statistics.median(figure.wall for figure in some)
        cpu = statistics.median(figure.cpu for figure in some)
        spread = f"{workload.mods / cpu:,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})"
        of_cpu = statistics.median(figure.cpu for figure in base) / cpu
        of_wall = statistics.median(figure.wall for figure in base) / wall
        print(f"{name:12} {workload.mods / wall:>10,.0f} {spread:>32} {of_cpu:>13.2f} {of_wall:>14.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mods", type=int, default=150_000, help="mods in transactions of 500")
    parser.add_argument("--singles", type=int, default=4_000, help="transactions of one mod")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with SpannerEmulator.start() as emulator:
        os.environ.update(emulator.environment())
        for name, transactions, rows in (
            ("transactions-of-500", options.mods // 500, 500),
            ("transactions-of-1", options.singles, 1),
        ):
            compare(prepare(emulator, name, transactions, rows), options.rounds)


if __name__ == "__main__":
    main()
