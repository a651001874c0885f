"""From the command to its first published change.

    python benchmarks/first_change.py [--rounds 5]

Each round starts `penstock run spanner-to-files` with `roll_seconds=0` and a new checkpoint, while a simulated Spanner
already runs and a writer commits twenty transactions a second. The time of a round is from the start of the process to
the moment when a watcher first sees a published file. Rounds alternate with a peer: a bare PySpark program that starts
Spark and runs one Python job with the same number of tasks.

The phases come from the timeline of the driver (`penstock.timeline`), in seconds after the start of the command:
"JVM", "context" and "workers" happen in a thread, beside the imports and the planning. "received" is the first record
that a worker gets from the service.
"""

from __future__ import annotations

import argparse
import json
import os
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

from measure import Spread, heading, machine, ratio, row, tree_cpu

from penstock.timeline import VARIABLE
from penstock_emulators.simulated_spanner import SimulatedSpanner

PROJECT, INSTANCE, DATABASE, STREAM = "benchmark", "benchmark", "first", "Changes"
DDL = [
    "CREATE TABLE Accounts (Id INT64 NOT NULL, Owner STRING(MAX)) PRIMARY KEY (Id)",
    f"CREATE CHANGE STREAM {STREAM} FOR ALL",
]
PHASES = (
    "read the configuration",
    "JVM",
    "built the pipeline",
    "asked the services",
    "context",
    "planned",
    "got Spark",
    "took over",
    "workers",
    "started",
    "received",
    "committed",
)
PATIENCE_SECONDS = 120.0
PEER = """
import pyspark
context = pyspark.SparkContext("local[2,4]", "peer", conf=pyspark.SparkConf().set("spark.ui.enabled", "false"))
assert context.parallelize(range(2), 2).map(str).collect() == ["0", "1"]
"""


@contextmanager
def writing(database: Any) -> Iterator[None]:
    """Commit twenty transactions a second."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.wait(0.05):
            number += 1
            with database.batch() as batch:
                batch.insert_or_update("Accounts", ["Id", "Owner"], [(number % 100, "owner")])

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def first_change(service: SimulatedSpanner, folder: Path) -> dict[str, float]:
    """Run the command until its first file is published; return when each phase ended, in seconds after its start."""
    given = {
        "project": PROJECT,
        "instance": INSTANCE,
        "database": DATABASE,
        "change_stream": STREAM,
        "output": str(folder / "out"),
        "roll_seconds": "0",
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]", "--progress", "none"]
    timeline = folder / "timeline"
    environment = {**os.environ, **service.environment(), VARIABLE: str(timeline)}
    begun = time.time()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", "run", "spanner-to-files", *sets, *options],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        while not any((folder / "out").glob("Accounts/*/*.jsonl")):
            if process.poll() is not None or time.time() - begun > PATIENCE_SECONDS:
                raise RuntimeError(f"nothing was published; {(folder / 'log').read_text()[-3000:]}")
            time.sleep(0.005)
        published, cpu = time.time(), tree_cpu(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_SECONDS)
    phases: dict[str, float] = {}
    for line in timeline.read_text().splitlines():
        entry = json.loads(line)
        phases.setdefault(entry["phase"], entry["at"] / 1e9 - begun)
    return {**phases, "published": published - begun, "cpu": cpu}


def bare_spark() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", PEER], check=True, capture_output=True)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(machine())
    ours: list[dict[str, float]] = []
    theirs: list[float] = []
    with SimulatedSpanner.start() as service, tempfile.TemporaryDirectory() as folder:
        service.create_database(PROJECT, INSTANCE, DATABASE, DDL)
        os.environ |= service.environment()
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import spanner

        client = spanner.Client(
            project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True
        )
        database = client.instance(INSTANCE).database(DATABASE)
        with writing(database):
            for number in range(given.rounds):
                place = Path(folder, str(number))
                place.mkdir()
                ours.append(first_change(service, place))
                theirs.append(bare_spark())
    total, peer = Spread.of([each["published"] for each in ours]), Spread.of(theirs)
    print(heading("from the command to …", "seconds"))
    for phase in PHASES:
        if times := [each[phase] for each in ours if phase in each]:
            print(row(phase, Spread.of(times).text()))
    print(row("the first published change", total.text()))
    print(row("CPU time of all processes until then", Spread.of([each["cpu"] for each in ours]).text()))
    print(row("one job of bare PySpark, and its end", peer.text()))
    print(f"\nratio {ratio(total, peer)}")


if __name__ == "__main__":
    main()
