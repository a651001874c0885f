"""Records per second, and per CPU second of the client: our reader, the bare stub, and the client library.

    python benchmarks/bigtable_reader.py [--records 60000] [--rounds 3]

There are two workloads on the emulator of this package: one small cell per record, and twenty cells per record. The
table has two partitions. All contenders read the same records and take turns for several rounds; the median counts.

- *raw*: receives the bytes of the stream from the bare stub with the library's default settings and finds the end of
  each record. It does not parse mutations, keep an order or track a restriction.
- *penstock*: the DoFn with its tracker and watermark estimator, called as a runner calls it, until `end`. A record
  creates its entries when they are asked for, and here they are not.
- *entries*: the same, and asks each record for its entries.
- *gapic*: `read_change_stream` of google-cloud-bigtable, as its documentation shows it. It touches the row key and each
  mutation.

Then *penstock* and *raw* run once more in one process and in two processes with one partition each. The emulator is
one process and limits the wall time, and on two cores two clients share them with it. So the figure to compare is the
number of records per CPU second of each client process, added up.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from apache_beam.runners.sdf_utils import (
    RestrictionTrackerView,
    ThreadsafeRestrictionTracker,
    ThreadsafeWatermarkEstimator,
)
from google.cloud.bigtable_admin_v2.types import bigtable_table_admin as admin_types
from google.cloud.bigtable_admin_v2.types import table as table_types
from google.cloud.bigtable_v2.types import bigtable as data_types

from penstock.io.bigtable import ChangeStreamMutation, ReadFromBigtableChangeStream
from penstock.io.bigtable.frontier import Frontier, Position
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.query import read_request
from penstock.io.bigtable.read import ReadBigtableFn
from penstock.io.bigtable.source import ChangeStream
from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark
from penstock_emulators.bigtable import BigtableEmulator

PROJECT, INSTANCE, MIDDLE = "benchmark", "benchmark", b"row5"
PARTITIONS = [KeyRange(b"", MIDDLE), KeyRange(MIDDLE, b"")]
HEARTBEAT_MS = 1000


@dataclass(frozen=True, slots=True)
class Workload:
    """A table with changes between `start` and `end` (nanoseconds, both inclusive)."""

    host: str
    table: str
    start: int
    end: int
    records: int

    @property
    def stream(self) -> ChangeStream:
        return ChangeStream(PROJECT, INSTANCE, self.table, self.start, self.end)


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds of one contender for one workload."""

    wall: float
    cpu: float


def prepare(host: str, table: str, records: int, cells: int) -> Workload:
    channel = grpc.insecure_channel(host)
    request = admin_types.CreateTableRequest(
        parent=f"projects/{PROJECT}/instances/{INSTANCE}",
        table_id=table,
        table={
            "column_families": {"f": {}},
            "change_stream_config": {"retention_period": {"seconds": 86400}},
        },
        initial_splits=[{"key": MIDDLE}],
    )
    channel.unary_unary(
        "/google.bigtable.admin.v2.BigtableTableAdmin/CreateTable",
        request_serializer=lambda message: type(message).pb(message).SerializeToString(),
        response_deserializer=table_types.Table.pb().FromString,
    )(request)
    start = time.time_ns()
    path = f"{request.parent}/tables/{table}"
    mutate = channel.unary_stream(
        "/google.bigtable.v2.Bigtable/MutateRows",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=bytes,
    )
    for first in range(0, records, 500):
        batch = data_types.MutateRowsRequest.pb()(table_name=path)
        for number in range(first, first + 500):
            entry = batch.entries.add(row_key=b"row%d%05d" % (number % 10, number % 10_000))
            for cell in range(cells):
                entry.mutations.add().set_cell.CopyFrom(_cell(number, cell))
        list(mutate(batch))
    time.sleep(0.1)
    return Workload(host, table, start, time.time_ns(), records)


def _cell(number: int, cell: int) -> Any:
    from google.cloud.bigtable_v2.types import data

    return data.Mutation.SetCell.pb()(
        family_name="f",
        column_qualifier=b"q%d" % cell,
        timestamp_micros=1000 * number,
        value=b"value of the cell %d" % number,
    )


def side_by_side(partitions: list[KeyRange], read: Callable[[KeyRange], int]) -> int:
    with ThreadPoolExecutor(len(partitions)) as threads:
        return sum(threads.map(read, partitions))


def raw(workload: Workload, partitions: list[KeyRange]) -> int:
    """Read the streams to their end; count the responses that end a record."""
    channel = grpc.insecure_channel(workload.host, options=[("grpc.max_receive_message_length", -1)])
    call = channel.unary_stream(
        "/google.bigtable.v2.Bigtable/ReadChangeStream",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=None,
    )

    def read(partition: KeyRange) -> int:
        position = Position(partition, (), workload.start)
        records = 0
        for data in call(read_request(workload.stream, "default", HEARTBEAT_MS, position)):
            records += data[0] == 10  # the tag of data_change; every record here is one message
        return records

    with channel:
        return side_by_side(partitions, read)


def penstock(
    workload: Workload,
    partitions: list[KeyRange],
    look: Callable[[ChangeStreamMutation], object] = lambda record: None,
) -> int:
    """Read with the DoFn until the end of the restriction, and look at each record."""
    transform = ReadFromBigtableChangeStream(
        project=PROJECT,
        instance=INSTANCE,
        table=workload.table,
        start=workload.start,
        end=workload.end,
        heartbeat_seconds=HEARTBEAT_MS / 1000,
        emulator_host=workload.host,
    )
    fn = ReadBigtableFn(transform._settings)
    whole = Frontier.starting_at(workload.start, PARTITIONS, end=workload.end)
    frontier = next(
        part for part in (whole, *whole.deal(2)) if [segment.range for segment in part.segments] == partitions
    )
    tracker = ThreadsafeRestrictionTracker(fn.create_tracker(frontier))
    estimator = ThreadsafeWatermarkEstimator(FrontierWatermarkEstimator(beam_watermark(frontier.watermark)))
    outputs = fn.process(workload.stream, RestrictionTrackerView(tracker), estimator)
    records = 0
    for output in outputs:
        look(output.value)
        records += 1
    tracker.check_done()
    return records


def entries(workload: Workload, partitions: list[KeyRange]) -> int:
    """Read with the DoFn, and ask each record for its entries."""
    return penstock(workload, partitions, lambda record: record.entries)


def gapic(workload: Workload, partitions: list[KeyRange]) -> int:
    """Read with the client library, as its documentation shows."""
    from google.cloud.bigtable_v2.services.bigtable import BigtableClient
    from google.cloud.bigtable_v2.services.bigtable.transports.grpc import BigtableGrpcTransport
    from google.protobuf.timestamp_pb2 import Timestamp

    client = BigtableClient(transport=BigtableGrpcTransport(channel=grpc.insecure_channel(workload.host)))
    start, end = Timestamp(), Timestamp()
    start.FromNanoseconds(workload.start)
    end.FromNanoseconds(workload.end)

    def read(partition: KeyRange) -> int:
        request = data_types.ReadChangeStreamRequest(
            table_name=workload.stream.table_path,
            partition={"row_range": {"start_key_closed": partition.start, "end_key_open": partition.end}},
            start_time=start,
            end_time=end,
        )
        records = 0
        for response in client.read_change_stream(request):
            if "data_change" in response:
                change = response.data_change
                _ = change.row_key, change.commit_timestamp, [chunk.mutation for chunk in change.chunks]
                records += change.done
        return records

    return side_by_side(partitions, read)


CONTENDERS = {contender.__name__: contender for contender in (raw, penstock, entries, gapic)}


def measured(name: str, workload: Workload) -> Figure:
    wall, cpu = time.perf_counter(), time.process_time()
    records = CONTENDERS[name](workload, PARTITIONS)
    figure = Figure(time.perf_counter() - wall, time.process_time() - cpu)
    if records != workload.records:
        raise SystemExit(f"{name} read {records} records of {workload.records} ({workload.table})")
    return figure


def compare(workload: Workload, rounds: int) -> None:
    figures: dict[str, list[Figure]] = {name: [] for name in CONTENDERS}
    order = list(CONTENDERS)
    for name in order:
        measured(name, workload)  # connections, imports
    for number in range(rounds):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            figures[name].append(measured(name, workload))
    print(f"\n{workload.table}: {workload.records:,} records, median of {rounds} (lowest to highest)")
    print(
        f"{'':12} {'records/s':>10} {'records per client CPU s':>32} {'of raw (CPU)':>13} {'of gapic (CPU)':>15}"
    )
    cpus = {name: statistics.median(figure.cpu for figure in some) for name, some in figures.items()}
    for name, some in figures.items():
        rates = sorted(workload.records / figure.cpu for figure in some)
        wall = statistics.median(figure.wall for figure in some)
        spread = f"{workload.records / cpus[name]:,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})"
        print(
            f"{name:12} {workload.records / wall:>10,.0f} {spread:>32} "
            f"{cpus['raw'] / cpus[name]:>13.2f} {cpus['gapic'] / cpus[name]:>15.2f}"
        )


def in_processes(workload: Workload, name: str, groups: list[list[int]]) -> tuple[float, float]:
    """Read with one process for each group of partitions; return two rates of all processes together.

    The first is records per wall second, from the start signal to the last record. The second is the sum of each
    process's records per CPU second: the rate with one core per process and a server that is fast enough.
    """
    command = [sys.executable, __file__, "--child", name, workload.host, workload.table]
    command += [str(workload.start), str(workload.end)]
    children = [
        subprocess.Popen(
            [*command, *map(str, group)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for group in groups
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    started = time.perf_counter()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    read: list[tuple[int, float]] = []
    for child in children:
        assert child.stdout is not None
        records, cpu = child.stdout.readline().split()
        read.append((int(records), float(cpu)))
    seconds = time.perf_counter() - started
    for child in children:
        child.communicate()
    total = sum(records for records, _ in read)
    if total != workload.records:
        raise SystemExit(f"{name} in {len(groups)} processes read {total} records of {workload.records}")
    return total / seconds, sum(records / cpu for records, cpu in read)


def child(arguments: list[str]) -> None:
    name, host, table, start, end, *numbers = arguments
    workload = Workload(host, table, int(start), int(end), 0)
    idle = Workload(host, table, int(end), int(end), 0)
    partitions = [PARTITIONS[int(number)] for number in numbers]
    CONTENDERS[name](idle, partitions)  # connections, imports
    print("ready", flush=True)
    sys.stdin.readline()
    cpu = time.process_time()
    records = CONTENDERS[name](workload, partitions)
    print(records, time.process_time() - cpu, flush=True)


def scaling(workload: Workload, rounds: int) -> None:
    print(
        f"\n{workload.table}: one process and two, median of {rounds}; {os.cpu_count()} cores, "
        "of which the emulator takes one"
    )
    print(f"{'':12} {'records/s of the clock':>32} {'records/s with a core each (CPU)':>40}")
    for name in ("raw", "penstock"):
        ones, twos = [], []
        for _ in range(rounds):  # in turn, so that other load meets both
            ones.append(in_processes(workload, name, [[0, 1]]))
            twos.append(in_processes(workload, name, [[0], [1]]))
        columns = []
        for measure, width in ((0, 32), (1, 40)):
            one, two = (statistics.median(each[measure] for each in some) for some in (ones, twos))
            columns.append(f"{f'{one:,.0f} and {two:,.0f}: {two / one:.2f} times':>{width}}")
        print(f"{name:12} {' '.join(columns)}")


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=60_000, help="records of one cell")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with BigtableEmulator.start() as emulator:
        os.environ.update(emulator.environment())
        for name, records, cells in (
            ("one-cell", options.records, 1),
            ("twenty-cells", options.records // 5, 20),
        ):
            workload = prepare(emulator.host, name, records, cells)
            compare(workload, options.rounds)
        scaling(prepare(emulator.host, "scaling", options.records, 1), options.rounds)


if __name__ == "__main__":
    main()
