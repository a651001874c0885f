"""Rows of snapshots per second: incremental and initial, of a PostgreSQL server and of the simulated Spanner.

    python benchmarks/snapshots.py [--rows 300000] [--chunk-rows 10240] [--only postgres|spanner] [--profile]

One table with rows of about 190 bytes. The DoFn of the source runs as a runner calls it, in epochs of 0.5 s, in one
process. An incremental snapshot begins with a signal while the stream is read, and ends with the report COMPLETED. An
initial one begins with the pipeline. The server shares the machine.

Debezium's connector for PostgreSQL on the same kind of machine: 37,000 rows per second initial, 10,500 incremental with
chunks of 10,240.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import resource
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from apache_beam.pvalue import TaggedOutput
from apache_beam.runners.sdf_utils import (
    RestrictionTrackerView,
    ThreadsafeRestrictionTracker,
    ThreadsafeWatermarkEstimator,
)

from penstock.io.change_streams.incremental.signal_folder import write_signal
from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark
from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock_emulators.postgres import PostgresServer
from penstock_emulators.simulated_spanner import SimulatedSpanner

PROJECT, INSTANCE, DATABASE = "benchmark", "benchmark", "benchmark"
EPOCH_SECONDS = 0.5
COLUMNS = ("Id", "Name", "Total", "Created", "Rate")
SPANNER_DDL = [
    "CREATE TABLE Accounts (Id INT64 NOT NULL, Name STRING(MAX), Total INT64, Created TIMESTAMP, Rate FLOAT64) "
    "PRIMARY KEY (Id)",
    "CREATE CHANGE STREAM Changes FOR ALL",
]
POSTGRES_DDL = (
    "create table accounts (id bigint primary key, name text, total bigint, created timestamptz, rate float8)"
)


class Run:
    """One read of a source, in epochs, until `rows` rows were emitted and a snapshot was reported as completed."""

    def __init__(self, transform: Any, rows: int) -> None:
        self._transform = transform.with_notifications(lambda reports: reports)
        self._rows, self.found, self._completed = rows, 0, False

    def seconds(self) -> float:
        """Run; return the seconds from the first request of a row to the last row."""
        stream = self._transform.stream
        fn = self._transform.bounded_fn(self._transform._settings)
        frontier = fn.initial_restriction(stream)
        residuals = [(frontier, beam_watermark(frontier.watermark))]
        start = time.perf_counter()
        while self.found < self._rows or not self._completed:
            ((frontier, state),) = fn.rebalance(stream, residuals, 1)
            residuals = [self._epoch(fn, stream, frontier, state)]
        return time.perf_counter() - start

    def _epoch(self, fn: Any, stream: Any, frontier: Any, state: Any) -> Any:
        tracker = ThreadsafeRestrictionTracker(fn.create_tracker(frontier))
        estimator = ThreadsafeWatermarkEstimator(FrontierWatermarkEstimator(state))
        ended, split = threading.Event(), []

        def cut() -> None:
            ended.wait(EPOCH_SECONDS)
            while not ended.is_set() and not split:
                found = tracker.try_split(0)
                split.extend([found[1]] if found else [])
                ended.wait(0.02)

        cutter = threading.Thread(target=cut)
        cutter.start()
        for output in fn.process(stream, RestrictionTrackerView(tracker), estimator):
            self._count(output)
        ended.set()
        cutter.join()
        deferred = tracker.deferred_status()
        rest = split[0] if split else deferred[0] if deferred else tracker.current_restriction()
        return rest, estimator.current_watermark()

    def _count(self, output: Any) -> None:
        if isinstance(output, TaggedOutput):
            self._completed = self._completed or output.value.value["type"] == "COMPLETED"
        else:
            self.found += 1


class SpannerRun(Run):
    def __init__(self, transform: Any, rows: int, *, initial: bool) -> None:
        super().__init__(transform, rows)
        self._initial = initial

    def _count(self, output: Any) -> None:
        if isinstance(output, TaggedOutput):
            super()._count(output)
            return
        self.found += len(output.value.mods)
        # Spanner's initial snapshot makes no reports.
        self._completed = self._completed or (self._initial and self.found >= self._rows)


def postgres(rows: int, chunk_rows: int, stack: ExitStack) -> dict[str, Run]:
    server = stack.enter_context(PostgresServer.start())
    import psycopg

    with psycopg.connect(server.dsn(), autocommit=True) as session:
        session.execute(POSTGRES_DDL)
        session.execute(
            "insert into accounts select i, repeat('x', 130), i * 7, now(), i / 3.0 from generate_series(1, %s) i",
            (rows,),
        )
        session.execute("create publication benchmark for all tables")

    def read(name: str, snapshot: str) -> Run:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if snapshot == "never":
            write_signal(folder, name, "execute-snapshot", {"data-collections": [".*"]}, 1)
        return Run(
            ReadFromPostgresChangeStream(
                dsn=server.dsn(),
                publication="benchmark",
                slot=name,
                create_slot=True,
                snapshot=snapshot,
                signal_folder=str(folder),
                chunk_rows=chunk_rows,
            ),
            rows,
        )

    return {
        "postgres incremental": read("incremental", "never"),
        "postgres initial": read("initial", "initial"),
    }


def spanner(rows: int, chunk_rows: int, stack: ExitStack) -> dict[str, Run]:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner as library

    service = stack.enter_context(SimulatedSpanner.start())
    os.environ |= service.environment()
    service.create_database(PROJECT, INSTANCE, DATABASE, SPANNER_DDL)
    client = library.Client(project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True)
    database = client.instance(INSTANCE).database(DATABASE)
    for start in range(0, rows, 4000):
        keys = range(start, min(rows, start + 4000))
        with database.batch() as batch:
            batch.insert(
                "Accounts",
                COLUMNS,
                [(key, "x" * 130, key * 7, "2026-01-31T12:00:00.123456Z", key / 3) for key in keys],
            )

    def read(snapshot: str) -> Run:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if snapshot == "never":
            write_signal(folder, snapshot, "execute-snapshot", {"data-collections": [".*"]}, 1)
        transform = ReadFromSpannerChangeStream(
            project=PROJECT,
            instance=INSTANCE,
            database=DATABASE,
            change_stream="Changes",
            snapshot=snapshot,  # type: ignore[arg-type]
            signal_folder=str(folder),
            chunk_rows=chunk_rows,
            emulator_host=service.host,
        )
        return SpannerRun(transform, rows, initial=snapshot == "initial")

    return {"spanner incremental": read("never"), "spanner initial": read("initial")}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--chunk-rows", type=int, default=10_240)
    parser.add_argument("--only", choices=("postgres", "spanner"))
    parser.add_argument(
        "--profile", action="store_true", help="show where the bundle's thread spends its time"
    )
    options = parser.parse_args(words)
    sources = {"postgres": postgres, "spanner": spanner}
    print(f"{options.rows:,} rows, chunks of {options.chunk_rows:,}, load {os.getloadavg()[0]:.1f}")
    for name, make in sources.items():
        if options.only not in (None, name):
            continue
        with ExitStack() as stack:
            for kind, run in make(options.rows, options.chunk_rows, stack).items():
                profile, cpu = cProfile.Profile(), time.process_time()
                seconds = profile.runcall(run.seconds) if options.profile else run.seconds()
                cpu = time.process_time() - cpu
                per_second, per_cpu = run.found / seconds, run.found / cpu
                print(f"{kind:22} {per_second:>10,.0f} rows/s {per_cpu:>10,.0f} rows per client CPU second")
                if options.profile:
                    pstats.Stats(profile).sort_stats("tottime").print_stats(18)
    print(f"peak memory of the client: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
