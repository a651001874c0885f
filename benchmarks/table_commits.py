"""The cost of an epoch with one change in each of many tables: Delta and Iceberg.

    python benchmarks/table_commits.py [--tables 5 500] [--format delta-vectors] [--at-once 8] [--epochs 5]

Each epoch changes one row of each table, and one row of three is the same as in the epoch before. *CPU* is of the
process that commits, in milliseconds for a commit: the median of the epochs after the first one, which creates the
tables. *seconds* is the median of the clock for an epoch; `--at-once 1` has one commit after another.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from measure import heading, machine, row
from sinks import SOURCE, publishing, staged
from table_epochs import DELTA, event, target_of

from penstock.event import ChangeEvent, Op
from penstock.io.columnar import replica


def of_all_tables(format_: str, folder: Path) -> Any:
    """Return a target with a table for each table of the source."""
    target = target_of(format_, folder)
    if format_ in DELTA:
        return replace(target, uri=str(folder / "w" / "{table}"))
    return replace(target, table="shop.{table}")


def changes(tables: int, number: int) -> list[ChangeEvent]:
    change = event(Op.UPDATE, number % 3, number)
    sources = [msgspec.structs.replace(SOURCE, table=f"t{table}") for table in range(tables)]
    return [msgspec.structs.replace(change, source=source) for source in sources]


def measure(format_: str, tables: int, epochs: int) -> tuple[float, float]:
    """Return the CPU milliseconds of a commit and the seconds of an epoch."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-commits-"))
    publish = publishing(of_all_tables(format_, folder))
    cpu, seconds = [], []
    for number in range(1, epochs + 2):
        batches = staged(changes(tables, number), number)
        begun, used = time.perf_counter(), time.process_time()
        publish(batches, number)
        seconds.append(time.perf_counter() - begun)
        cpu.append(1000 * (time.process_time() - used) / tables)
    shutil.rmtree(folder)
    return statistics.median(cpu[1:]), statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, nargs="+", default=[5, 500])
    parser.add_argument("--format", choices=("iceberg", *DELTA), default="delta-vectors")
    parser.add_argument("--at-once", type=int, default=replica.COMMITS_AT_ONCE)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    replica.COMMITS_AT_ONCE = args.at_once
    print(machine())
    print(heading("tables", "at once", "CPU of a commit, ms", "seconds"))
    for tables in args.tables:
        cpu, seconds = measure(args.format, tables, args.epochs)
        print(row(tables, args.at_once, f"{cpu:.1f}", f"{seconds:.2f}"), flush=True)


if __name__ == "__main__":
    main()
