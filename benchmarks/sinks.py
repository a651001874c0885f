"""Events per second of every sink against the plain client or writer of the same target, and the time from a commit of
the source until readers of the target see the change.

    python benchmarks/sinks.py [--events 20000] [--epoch 2000] [--rounds 3] [--seconds 12] [--only sql,kafka]

**Throughput.** A contender writes the same rows of 10 columns. *Penstock* starts from staged events (encoded, as the
commit record names them), so decoding is part of it, and so are the ledger and, for current rows, versions. *plain*
starts from the rows and calls the library once for each epoch, without a ledger, versions or order. Emulators get a
fifth of the events.

*publish, ms* is the time of one epoch of `--epoch` events from the call after the commit until readers see them.

**Latency.** One pipeline for each sink runs on Spark (`local[2]`, one JVM) for `--seconds` after its first change is
visible. Four writers make 12 changes a second each. A reader asks the target again and again for its newest change.
The time is from the writer's commit until the reader has it, so it includes the wait for the epoch, the commit of the
checkpoint, the publication and the query of the reader. Sinks of files and tables roll with every epoch.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from deltalake import DeltaTable, write_deltalake
from measure import Spread, heading, machine, percentile, row
from pyiceberg.catalog import load_catalog

# The latency is measured with the pipelines of the kill campaigns, which are below tests.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sink_clients.latency import READERS, latencies
from sink_clients.rows import EMULATORS, row_contenders

from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.event.change_rows import change_rows
from penstock.event.coder import encode_event
from penstock.io.columnar.data_files import manifest
from penstock.io.columnar.parquet import ParquetRows
from penstock.io.delta.target import DeltaTarget
from penstock.io.iceberg.target import IcebergTarget
from penstock.io.staging import Delivery, StagedBatch
from penstock.io.staging.batch import EventBlocks, StagedEvents
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.formatted_run import decode_staged

KINDS = [Kind.INT64] * 5 + [Kind.STRING] * 3 + [Kind.FLOAT64, Kind.BOOL]
SCHEMA = TableSchema(
    tuple(Column(f"c{n}", ColumnType(kind), None, 1 if n == 0 else None) for n, kind in enumerate(KINDS))
)
SOURCE = Source("spanner", "p/i", "shop", "", "orders", "All")

Epochs = list[list[ChangeEvent]]


def event(round_: int, number: int) -> ChangeEvent:
    """Return an update of one of 5,000 rows. The versions of a later round are newer."""
    values = [
        number % 5000,
        *(number * n for n in range(1, 5)),
        *(f"text {number}" for _ in range(3)),
        number / 7,
        True,
    ]
    after = {column.name: value for column, value in zip(SCHEMA, values, strict=True)}
    version = Version(round_ * 1_000_000 + number + 1, f"tx{number}", "00000001")
    return ChangeEvent(SOURCE, Op.UPDATE, number * 1000, {"c0": after["c0"]}, None, after, version, SCHEMA)


def staged(events: Sequence[ChangeEvent], epoch: int) -> list[StagedBatch]:
    """Return what a commit record names for an epoch."""
    block = RecordBlock.of([(0, encode_event(each)) for each in events])
    content = b"".join(EventBlocks(RecordBlockCoder().encode).content([block]))
    return [StagedBatch(Delivery("s", "j", 0, 1, 1, epoch), len(events), len(content), 0, content=content)]


def latest(events: Sequence[ChangeEvent]) -> pa.Table:
    """Return the last row of each key as a flat table."""
    rows = {each.key["c0"]: each.after for each in events if each.key and each.after}
    return pa.Table.from_pylist(list(rows.values()))


def publishing(target: Any) -> Callable[[Any, int], None]:
    """Return the function that publishes staged batches as the epoch of a number."""
    return lambda batches, number: target.publish(EpochDelivery("s", "j", 1, number), batches)


def writing_files(target: Any) -> Callable[[Any, int], None]:
    """Return the function that does the work of tasks and driver: files of staged batches, and their commit."""

    def write(batches: Sequence[StagedBatch], number: int) -> None:
        events = StagedEvents(batches[0], RecordBlockCoder().decode, decode_staged)
        content = manifest("", map(target.write_file, target.plan_files(events, str(number))))
        publishing(target)([StagedBatch(batches[0].delivery, len(events), 0, 0, content=content)], number)

    return write


def iceberg_properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}


def plain_iceberg(folder: Path) -> Callable[[Any, int], None]:
    """Return a function that appends a table."""
    catalog = load_catalog("plain", **iceberg_properties(folder))
    catalog.create_namespace_if_not_exists("shop")

    def append(table: pa.Table, number: int) -> None:
        catalog.create_table_if_not_exists("shop.t", schema=table.schema).append(table)

    return append


def plain_merge(folder: Path) -> Callable[[Any, int], None]:
    """Return a function that merges a table by its key."""

    def merge(table: pa.Table, number: int) -> None:
        DeltaTable.create(folder / "t", table.schema, mode="ignore")
        delta = DeltaTable(folder / "t")
        merging = delta.merge(table, "t.c0 = s.c0", source_alias="s", target_alias="t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    return merge


def parquet(content: Any, number: int) -> None:
    b"".join(ParquetRows().content(content))


def plain_parquet(table: Any, number: int) -> None:
    pyarrow.parquet.write_table(table, io.BytesIO(), compression="zstd")


def contenders(folder: Path) -> dict[str, tuple[Callable[[Any, int], None], Callable[[Any], Any]]]:
    """Return by name the function that writes an epoch, and the function that prepares its input."""

    def rows(events: Sequence[ChangeEvent]) -> pa.Table:
        return change_rows(events, SCHEMA)

    def blocks(events: Sequence[ChangeEvent]) -> list[RecordBlock]:
        return [RecordBlock.of([(0, encode_event(each)) for each in events])]

    made = {name: folder / name for name in ("log", "plainlog", "current", "plaincurrent", "ice", "plainice")}
    for each in made.values():
        each.mkdir()
    delta = {mode: DeltaTarget(str(made[mode] / "t"), mode, "evolve") for mode in ("log", "current")}  # type: ignore[arg-type]
    iceberg = IcebergTarget("shop.t", "bench", "log", "evolve", iceberg_properties(made["ice"]))
    return {
        "Parquet file": (parquet, blocks),
        "Parquet file, plain": (plain_parquet, rows),
        "Delta log": (writing_files(delta["log"]), lambda events: events),
        "Delta log, plain": (lambda t, _: write_deltalake(made["plainlog"] / "t", t, mode="append"), rows),
        "Delta current": (publishing(delta["current"]), lambda events: events),
        "Delta current, plain": (plain_merge(made["plaincurrent"]), latest),
        "Iceberg log": (publishing(iceberg), lambda events: events),
        "Iceberg log, plain": (plain_iceberg(made["plainice"]), rows),
    }


def measure(contenders: dict[str, Any], epochs: Epochs, first: int, seconds: dict[str, list[float]]) -> None:
    """Write all epochs with each contender, and add the time of each epoch to `seconds`."""
    for name, (write, prepare) in contenders.items():
        some = epochs[: max(1, len(epochs) // 5)] if name.removesuffix(", plain") in EMULATORS else epochs
        inputs = [prepare(events) for events in some]
        if isinstance(inputs[0], list) and isinstance(inputs[0][0], ChangeEvent):
            inputs = [staged(events, number) for number, events in enumerate(some, first)]
        for number, each in enumerate(inputs, first):
            begun = time.perf_counter()
            write(each, number)
            # Not the first epoch of a round, in which tables are created and connections begin.
            if number > first or len(inputs) == 1:
                seconds.setdefault(name, []).append(time.perf_counter() - begun)


def throughput(epochs: Epochs, rounds: int) -> dict[str, list[float]]:
    """Return the times of the epochs of each contender."""
    seconds: dict[str, list[float]] = {}
    with row_contenders() as rows:
        for round_ in range(rounds):
            folder = Path(tempfile.mkdtemp(prefix="penstock-sinks-"))
            measure(contenders(folder), epochs, 2, seconds)
            shutil.rmtree(folder)
            # Other versions in each round, because a replica does not write a row whose version is not newer.
            newer = [[event(round_, number) for number in numbers_of(events)] for events in epochs]
            measure(rows, newer, 2 + round_ * len(epochs), seconds)
    return seconds


def numbers_of(events: Sequence[ChangeEvent]) -> list[int]:
    return [each.timestamp // 1000 for each in events]


def main() -> None:
    """Print a table of throughput with ratios to the plain writer, and a table of latencies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--epoch", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each latency measurement; 0: none")
    parser.add_argument("--only", default=",".join(READERS), help="the sinks whose latency is measured")
    arguments = parser.parse_args()
    print(machine())
    epochs: Epochs = [
        [event(0, number) for number in range(start, start + arguments.epoch)]
        for start in range(0, arguments.events, arguments.epoch)
    ]
    if arguments.rounds:
        seconds = throughput(epochs, arguments.rounds)
        print(heading("writer", "events/s", "publish, ms", "ratio of time"))
        for name, times in seconds.items():
            spread, plain = Spread.of(times), seconds.get(f"{name}, plain")
            ratio = f"{spread.median / Spread.of(plain).median:.2f}" if plain else ""
            print(row(name, f"{arguments.epoch / spread.median:,.0f}", spread.text(0, 1e-3), ratio))
    if arguments.seconds:
        print(heading("sink", "commit to visible, p50 ms", "p95 ms", "max ms", "changes"))
        for name in arguments.only.split(","):
            found = latencies(name, arguments.seconds)
            figures = [f"{1000 * percentile(found, each):,.0f}" for each in (50, 95, 100)]
            print(row(name, *figures, str(len(found))), flush=True)


if __name__ == "__main__":
    main()
