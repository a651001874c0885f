"""Rows of a snapshot per second, and per CPU second of the client: our reader, the bare read, and the client library.

    python benchmarks/spanner_snapshot.py [--rows 200000] [--rounds 3] [--google]

One table with rows of about 190 bytes, on the simulated service (or Google's emulator with `--google`). The contenders
take turns for several rounds; the median counts.

- *raw*: receives the messages of one StreamingRead of the whole table from the bare stub, and decodes nothing.
- *penstock*: the DoFn of `ReadFromSpannerTable` with its tracker, called as a runner calls it, in epochs of 0.5 s.
- *library*: `snapshot.read` of google-cloud-spanner, which makes a list of Python values of each row.

The service shares the machine, so CPU time of the client process is the figure to compare. Peak memory is measured for
the whole process after all rounds.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.io.change_streams.tracker import Poll
from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark
from penstock.io.spanner import ReadFromSpannerTable
from penstock.io.spanner.client import Client
from penstock.io.spanner.initial_scan.client import ScanClient
from penstock.io.spanner.initial_scan.frontier import KeyRange, Table
from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.spanner import SpannerEmulator

PROJECT, INSTANCE, DATABASE = "benchmark", "benchmark", "benchmark"
COLUMNS = ("Id", "Name", "Total", "Created", "Rate")
DDL = (
    "CREATE TABLE Accounts (Id INT64 NOT NULL, Name STRING(MAX), Total INT64, Created TIMESTAMP, Rate FLOAT64) "
    "PRIMARY KEY (Id)"
)
EPOCH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds of one contender in one round."""

    wall: float
    cpu: float


def fill(emulator: Any, rows: int) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner

    emulator.create_database(PROJECT, INSTANCE, DATABASE, [DDL])
    client = spanner.Client(project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True)
    database = client.instance(INSTANCE).database(DATABASE)
    for start in range(0, rows, 4000):
        with database.batch() as batch:
            batch.insert("Accounts", COLUMNS, [_row(key) for key in range(start, min(rows, start + 4000))])
    return database


def _row(key: int) -> tuple[Any, ...]:
    return key, "x" * 130, key * 7, "2026-01-31T12:00:00.123456Z", key / 3


def read_with_penstock(transform: ReadFromSpannerTable) -> int:
    """Read the table in epochs, each a `process` call that is split; return the number of rows."""
    from apache_beam.runners.sdf_utils import (
        RestrictionTrackerView,
        ThreadsafeRestrictionTracker,
        ThreadsafeWatermarkEstimator,
    )

    fn = transform.bounded_fn(transform._settings)
    frontier = fn.initial_restriction(transform.stream)
    residuals = [(frontier, beam_watermark(frontier.watermark))]
    rows = 0
    while residuals:
        ((frontier, state),) = fn.rebalance(transform.stream, residuals, 1)
        tracker = ThreadsafeRestrictionTracker(fn.create_tracker(frontier))
        estimator = ThreadsafeWatermarkEstimator(FrontierWatermarkEstimator(state))
        until, residuals = time.monotonic() + EPOCH_SECONDS, []
        for output in fn.process(transform.stream, RestrictionTrackerView(tracker), estimator):
            rows += len(output.value.mods)
            if not residuals and time.monotonic() > until and tracker.try_claim(Poll()):
                split = tracker.try_split(0)
                residuals = [(split[1], state)] if split else []
    return rows


def read_raw(client: ScanClient) -> int:
    """Receive all messages of one read; return their number of bytes."""
    table = Table("Accounts", COLUMNS, (1, 2, 3, 4, 5), 1)
    return sum(map(len, client.read(table, KeyRange(0), client.begin(None).timestamp)))


def read_with_library(database: Any) -> int:
    from google.cloud.spanner import KeySet

    with database.snapshot() as snapshot:
        return sum(1 for _ in snapshot.read("Accounts", COLUMNS, KeySet(all_=True)))


def measure(contender: Callable[[], int]) -> Figure:
    wall, cpu = time.perf_counter(), time.process_time()
    contender()
    return Figure(time.perf_counter() - wall, time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--google", action="store_true", help="Google's emulator in place of the simulated service"
    )
    options = parser.parse_args()
    with SpannerEmulator.start() if options.google else SimulatedSpanner.start() as emulator:
        os.environ |= emulator.environment()
        database = fill(emulator, options.rows)
        transform = ReadFromSpannerTable(
            project=PROJECT,
            instance=INSTANCE,
            database=DATABASE,
            tables="Accounts",
            max_ranges=16,
            emulator_host=emulator.host,
        )
        client = ScanClient(Client(transform.stream, transform._settings.connection))
        contenders: dict[str, Callable[[], int]] = {
            "raw": lambda: read_raw(client),
            "penstock": lambda: read_with_penstock(transform),
            "library": lambda: read_with_library(database),
        }
        figures: dict[str, list[Figure]] = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name, contender in contenders.items():
                figures[name].append(measure(contender))
    print(f"{options.rows:,} rows, median of {options.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    for name, found in figures.items():
        wall = statistics.median(figure.wall for figure in found)
        cpu = statistics.median(figure.cpu for figure in found)
        print(
            f"{name:10} {options.rows / wall:>10,.0f} rows/s {options.rows / cpu:>10,.0f} rows per client CPU second"
        )
    print(f"peak memory of the client: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
