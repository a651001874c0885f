"""The cost of an epoch of changes in a table of current rows, by the number of its rows: Iceberg and Delta.

    python benchmarks/table_epochs.py [--rows 100000 1000000] [--changes 1000] [--epochs 10] [--format delta-vectors]
        [--max-index-bytes 0]

The formats are iceberg, delta (MERGE) and delta-vectors (deletion vectors). A table is loaded with the rows of a
snapshot. Then a new process, a driver that starts, publishes epochs of updates whose keys are spread over all
rows. An update has all columns. *median*, *largest*, *CPU*, *MB* and *opened* are of the epochs after the first one, in
which libraries are loaded. The largest may include the upkeep of the table. *MB* is a mean of all that is written into
the folder of the table. *CPU* and *opened*, the data files that are opened, have the median and the largest: a driver
that starts makes its index of keys in its first epochs. *memory* is the most that the process held above what it held
before the first epoch.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake
from measure import heading, machine, row
from sinks import SCHEMA, SOURCE, iceberg_properties, publishing, staged

from penstock.event import ChangeEvent, Op, Version
from penstock.event.replica import encode_version
from penstock.io.columnar.arrow_rows import new_table_schema
from penstock.io.columnar.open_file import OpenFile
from penstock.io.columnar.options import TableSinkOptions

PER_FILE = 1_000_000
"""Rows of a file of the table that is loaded."""

DELTA = ("delta", "delta-vectors")
HEADS = ("rows", "first, s", "median, s", "largest, s", "CPU, s", "opened", "MB", "read, s", "memory, MB")


def target_of(format_: str, folder: Path, **options: Any) -> Any:
    if format_ in DELTA:
        from penstock.io.delta.target import DeltaTarget

        vectors = format_ == "delta-vectors"
        return DeltaTarget(str(folder / "w" / "t"), "current", "evolve", deletion_vectors=vectors, **options)
    from penstock.io.iceberg.target import IcebergTarget

    return IcebergTarget("shop.t", "bench", "current", "evolve", iceberg_properties(folder), **options)


def event(op: Op, key: int, version: int) -> ChangeEvent:
    texts = (f"text {version} {key}" for _ in range(3))
    values = [key, *(key * n + version for n in range(1, 5)), *texts, key / 7, True]
    after = {column.name: value for column, value in zip(SCHEMA, values, strict=True)}
    order = Version(1_000_000_000 + version, f"tx{version}", "00000001", key)
    return ChangeEvent(SOURCE, op, (1_000_000_000 + version) * 1000, {"c0": key}, None, after, order, SCHEMA)


def load(format_: str, folder: Path, rows: int) -> None:
    """Create the table with `rows` rows, as the sink writes them for a snapshot, in files of `PER_FILE` rows."""
    target = target_of(format_, folder)
    if format_ == "iceberg":
        target._create("shop.t", SCHEMA, SOURCE)
    for first in range(0, rows, PER_FILE):
        part = loaded(first, min(first + PER_FILE, rows))
        if format_ in DELTA:
            write_deltalake(target.uri, part, mode="append")
        else:
            target._open("shop.t").append(part)


def loaded(first: int, last: int) -> pa.Table:
    """Return the rows with the keys from `first` (inclusive) to `last` (exclusive)."""
    keys = pa.array(range(first, last))
    texts, numbers = keys.cast(pa.string()), [pc.multiply(keys, n) for n in range(1, 5)]
    text = pc.binary_join_element_wise("text 0", texts, " ")
    version = encode_version(Version(1_000_000_000, "tx0", "00000001")).rpartition(" ")[0]
    shape = new_table_schema(SCHEMA, "current")
    columns = [
        *(
            keys,
            *numbers,
            text,
            text,
            text,
            pc.divide(keys.cast(pa.float64()), 7.0),
            pa.repeat(True, len(keys)),
        ),
        pc.binary_join_element_wise("[", texts, "]", ""),
        pc.binary_join_element_wise(version, pc.utf8_lpad(texts, 10, "0"), " "),
        pa.repeat(1_000_000, len(keys)).cast(shape.field("_penstock_timestamp").type),
        pa.repeat(False, len(keys)),
    ]
    return pa.Table.from_arrays(columns, schema=shape)


def epochs(rows: int, changes: int, count: int) -> Iterator[list[ChangeEvent]]:
    rng = random.Random(rows)
    for number in range(1, count + 1):
        yield [event(Op.UPDATE, key, number) for key in rng.sample(range(rows), changes)]


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in (folder / "w").rglob("*") if path.is_file()}


def peak_mb() -> float:
    """Return the most memory that this process has held. `getrusage` would include the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def seconds_to_read(format_: str, folder: Path) -> float:
    """Return the time in which a reader of the format reads all rows."""
    begun = time.perf_counter()
    if format_ in DELTA:
        from deltalake import DeltaTable, QueryBuilder

        # `to_pyarrow_table` reads no tables with deletion vectors.
        query = QueryBuilder().register("t", DeltaTable(folder / "w" / "t"))
        pa.table(query.execute("select * from t"))
    else:
        from pyiceberg.catalog import load_catalog

        load_catalog("bench", **iceberg_properties(folder)).load_table("shop.t").scan().to_arrow()
    return time.perf_counter() - begun


def count_opened() -> list[int]:
    """Return a list that gets the number of each data file that is opened from now on."""
    opened: list[int] = []
    original = OpenFile.__init__

    def counted(self: OpenFile, *arguments: Any) -> None:
        opened.append(len(opened))
        original(self, *arguments)

    OpenFile.__init__ = counted  # type: ignore[method-assign]
    return opened


def both(values: list[float], digits: int) -> str:
    """Return the median and the largest of some values."""
    return f"{statistics.median(values):.{digits}f} ({max(values):.{digits}f})"


def change(format_: str, folder: Path, rows: int, changes: int, count: int, **options: Any) -> None:
    """Publish epochs of changes, and print a line."""
    publish, first = publishing(target_of(format_, folder, **options)), 1
    held, before, opened = written(folder), peak_mb(), count_opened()
    seconds, cpu, sizes, files = [], [], [], []
    for number, events in enumerate(epochs(rows, changes, count), first):
        batches = staged(events, number)
        opened.clear()
        begun, used = time.perf_counter(), time.process_time()
        publish(batches, number)
        seconds.append(time.perf_counter() - begun)
        cpu.append(time.process_time() - used)
        files.append(len(opened))
        now = written(folder)
        sizes.append(sum(size for path, size in now.items() if path not in held) / 1e6)
        held = now
    memory = peak_mb() - before
    later = seconds[1:]
    figures = (seconds[0], statistics.median(later), max(later))
    read = seconds_to_read(format_, folder)
    mean = f"{statistics.mean(sizes[1:]):.2f}"
    print(
        row(
            f"{rows:,}",
            *(f"{each:.2f}" for each in figures),
            both(cpu[1:], 2),
            both(files[1:], 0),
            mean,
            f"{read:.2f}",
            f"{memory:,.0f}",
        ),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--changes", type=int, default=1_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--format", choices=("iceberg", *DELTA), default="iceberg")
    parser.add_argument("--max-index-bytes", type=int, default=TableSinkOptions.max_index_bytes)
    parser.add_argument("--folder", type=Path, help="of the table that this process changes")
    args = parser.parse_args()
    if args.folder:
        options = {"max_index_bytes": args.max_index_bytes}
        change(args.format, args.folder, args.rows[0], args.changes, args.epochs, **options)
        return
    print(machine())
    print(heading(*HEADS), flush=True)
    for rows in args.rows:
        folder = Path(tempfile.mkdtemp(prefix="penstock-epochs-"))
        load(args.format, folder, rows)
        # Another process, so that its memory is the memory of the changes only.
        command = [sys.executable, __file__, "--folder", str(folder), "--rows", str(rows)]
        more = ["--changes", str(args.changes), "--epochs", str(args.epochs), "--format", args.format]
        index = ["--max-index-bytes", str(args.max_index_bytes)]
        subprocess.run([*command, *more, *index], check=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
