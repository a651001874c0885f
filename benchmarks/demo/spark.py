"""`make run ARGS=spark`: a Spark program reads the simulated Spanner as a data source, is killed, and continues.

The program (`data_source_job`) uses public APIs of Spark only. A writer changes a table all the time, and its change
stream splits, merges and moves partitions. At the end, replaying the Parquet files must give the table, and each change
must be there once. The checker uses pyarrow and no code of Penstock.

A run takes about a minute. The exit status is 0 if the proof holds, 1 if
it does not, 3 if the machine lacks something (the remedy is printed).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from penstock.launch.run import ExitCode
from penstock_emulators.demo.waiting import PATIENCE_SECONDS, PipelineEndedError, wait_for
from penstock_emulators.demo.writers import connect
from penstock_emulators.oracle.kill import Run
from penstock_emulators.server_process import EmulatorStartError
from penstock_emulators.simulated_spanner import SimulatedSpanner
from tests.support.oracle.change_feed import NotCompleteError, complete_batches, replay, rows_of, written

PROJECT, INSTANCE, DATABASE, KEYS = "penstock-demo", "demo", "shop", 200
DDL = [
    "CREATE TABLE Orders (Id INT64 NOT NULL, Quantity INT64) PRIMARY KEY (Id)",
    "CREATE CHANGE STREAM Orders FOR Orders OPTIONS (value_capture_type = 'OLD_AND_NEW_VALUES')",
]


def announce(text: str) -> None:
    """Print the next step."""
    print(f"\n==> {text}", flush=True)


class Writer(threading.Thread):
    """Changes rows until it is told to stop; `written` counts them."""

    def __init__(self, database: Any) -> None:
        super().__init__(daemon=True)
        self._database, self._stopped = database, threading.Event()
        self.written = 0

    def run(self) -> None:
        from google.cloud.spanner import KeySet

        number = 0
        while not self._stopped.wait(0.005):
            key = number * 7 % KEYS
            with self._database.batch() as batch:
                if number % 11 == 10:
                    batch.delete("Orders", KeySet(keys=[[key]]))
                else:
                    batch.insert_or_update("Orders", ["Id", "Quantity"], [[key, number]])
                    self.written += 1
            number += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def main(arguments: list[str]) -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(prog="make run ARGS=spark", description=__doc__)
    parser.add_argument("--folder", help="where files and checkpoint go; default: a new temporary folder")
    parser.add_argument("--seed", type=int, default=1, help="seed of the splits, merges and moves")
    given = parser.parse_args(arguments)
    folder = Path(given.folder or tempfile.mkdtemp(prefix="penstock-demo-")).resolve()
    try:
        return _demo(folder, given.seed)
    except EmulatorStartError as error:
        print(f"Error: {error}", file=sys.stderr)
        return ExitCode.PREFLIGHT
    except PipelineEndedError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.status or 1


def _demo(folder: Path, seed: int) -> int:
    announce("Starting the simulated Spanner, whose partitions change every second, and a writer")
    with SimulatedSpanner.start(churn_seconds=1, seed=seed) as service:
        service.create_database(PROJECT, INSTANCE, DATABASE, DDL)
        os.environ.update(service.environment())
        database = connect(PROJECT, INSTANCE, DATABASE)
        with database.snapshot() as snapshot:
            ((start,),) = snapshot.execute_sql("SELECT CURRENT_TIMESTAMP")
        command = _command(folder, start.rfc3339())
        writer = Writer(database)
        writer.start()
        rows = folder / "rows"
        announce(
            'A Spark program reads spark.readStream.format("penstock-spanner"); SIGKILL after three batches'
        )
        with Run([*command[:5], "500 milliseconds", *command[5:]]) as run:
            wait_for(run, folder, lambda: len(complete_batches(rows)) >= 3, "batch 3")
            died = run.kill()
        announce(
            f"SIGKILL: the driver, its JVM and all workers, {died} processes. The writer goes on for two seconds"
        )
        time.sleep(2)
        writer.stop()
        announce("The same query again, with availableNow: it continues from Spark's checkpoint and ends")
        with Run([*command[:5], "now", *command[5:]]) as run:
            if status := run.wait(PATIENCE_SECONDS):
                raise PipelineEndedError(status)
        return _report(folder, database, writer.written)


def _command(folder: Path, start: str) -> list[str]:
    options = {
        "project": PROJECT,
        "instance": INSTANCE,
        "database": DATABASE,
        "change_stream": "Orders",
        "table": "Orders",
        "start": start,
    }
    program = [sys.executable, "-m", "benchmarks.demo.data_source_job", "penstock-spanner", str(folder)]
    return [*program, *(f"{name}={value}" for name, value in options.items())]


def _report(folder: Path, database: Any, count: int) -> int:
    """Print what was proved, or the difference; return the exit status."""
    from google.cloud.spanner import KeySet

    with database.snapshot() as snapshot:
        table = dict(snapshot.read("Orders", ["Id", "Quantity"], KeySet(all_=True)))
    rows_folder = folder / "rows"
    try:
        rows = rows_of(rows_folder)
        found = written(rows)
        wrong = (
            [] if found == count else [f"the files have {found:,} written rows, the writer made {count:,}"]
        )
        if replay(rows, "Id", "Quantity") != table:
            wrong.append("replaying the files does not give the table")
    except NotCompleteError as error:
        wrong = [str(error)]
    for sentence in wrong:
        print(f"    WRONG: {sentence}")
    if wrong:
        print(f"    Files and checkpoint: {folder}")
        return 1
    announce(f"{found:,} written rows in {len(complete_batches(rows_folder))} batches")
    print(
        f"    Replaying the files gives the table's {len(table):,} rows; no change is missing or duplicated."
    )
    print(f"    Files: {rows_folder}")
    return 0
