"""Mutations per second through the emulator of Bigtable change streams, against Google's cbtemulator alone.

    python benchmarks/bigtable_emulator.py [--bulk 100000] [--singles 4000] [--records 50000] [--rounds 3]

One client sends the same requests to each contender, serialized in advance, with several calls in flight: MutateRows
with 500 rows, and MutateRow. Contenders take turns for several rounds; the median counts.

- *cbtemulator*: Google's emulator alone, which has no change streams;
- *front, stream off*: the front forwards requests without reading them;
- *front, stream on*: the front checks every mutation, forwards it under the lock of its row, and logs it.

Then one client reads the log through an open stream (`records out`). It uses the bare stub and parses nothing. All
processes share the machine, so the figures describe a test on a laptop.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc
from google.cloud.bigtable_admin_v2.types import CreateTableRequest
from google.cloud.bigtable_v2.types import bigtable as api
from measure import Spread, heading, machine, row

from penstock_emulators.bigtable import BigtableEmulator
from penstock_emulators.bigtable.google import started

INSTANCE = "projects/benchmark/instances/benchmark"
DATA = "/google.bigtable.v2.Bigtable/"
ADMIN = "/google.bigtable.admin.v2.BigtableTableAdmin/"
ROWS = 500
OPTIONS = [("grpc.max_receive_message_length", -1)]


@dataclass(frozen=True, slots=True)
class Target:
    """A table to write to: the server's channel and the name of the table."""

    name: str
    host: str
    table: str


async def create(target: Target, stream: bool) -> None:
    table = {"column_families": {"f": {}}}
    if stream:
        table["change_stream_config"] = {"retention_period": {"seconds": 86400}}
    table_id = target.table.rpartition("/")[2]
    request = CreateTableRequest(parent=INSTANCE, table_id=table_id, table=table)
    async with grpc.aio.insecure_channel(target.host) as channel:
        await channel.unary_unary(ADMIN + "CreateTable")(CreateTableRequest.serialize(request))


def bulk_requests(table: str, mutations: int) -> list[bytes]:
    """MutateRows of 500 rows with one cell each, 100 bytes."""
    requests = []
    for number in range(0, mutations, ROWS):
        request = api.MutateRowsRequest.pb()(table_name=table)
        for place in range(number, number + ROWS):
            cell = (
                request.entries.add(row_key=b"row-%07d" % (place * 7919 % 100_003)).mutations.add().set_cell
            )
            cell.family_name, cell.column_qualifier, cell.value = "f", b"q", b"x" * 100
            cell.timestamp_micros = 1000
        requests.append(request.SerializeToString())
    return requests


def single_requests(table: str, mutations: int) -> list[bytes]:
    """MutateRow with one cell of 100 bytes."""
    requests = []
    for place in range(mutations):
        request = api.MutateRowRequest.pb()(table_name=table, row_key=b"row-%07d" % (place * 7919 % 100_003))
        cell = request.mutations.add().set_cell
        cell.family_name, cell.column_qualifier, cell.value = "f", b"q", b"x" * 100
        cell.timestamp_micros = 1000
        requests.append(request.SerializeToString())
    return requests


async def send(host: str, requests: Sequence[bytes], method: str, in_flight: int) -> float:
    """Send all requests, `in_flight` at a time, and return the seconds that this took."""
    async with grpc.aio.insecure_channel(host, options=OPTIONS) as channel:
        queue = iter(requests)

        async def one_after_the_other() -> None:
            for body in queue:
                if method == "MutateRows":
                    async for _ in channel.unary_stream(DATA + method)(body):
                        pass
                else:
                    await channel.unary_unary(DATA + method)(body)

        begun = time.perf_counter()
        await asyncio.gather(*(one_after_the_other() for _ in range(in_flight)))
        return time.perf_counter() - begun


async def drain(target: Target, start_us: int) -> float:
    """Read the stream from `start_us` to now and return records per second."""
    request = api.ReadChangeStreamRequest.pb()(table_name=target.table)
    request.partition.row_range.start_key_closed = b""
    request.start_time.FromMicroseconds(start_us)
    request.end_time.FromMicroseconds(time.time_ns() // 1000)
    async with grpc.aio.insecure_channel(target.host, options=OPTIONS) as channel:
        begun, records = time.perf_counter(), -1  # the close is no record
        async for _ in channel.unary_stream(DATA + "ReadChangeStream")(request.SerializeToString()):
            records += 1
        return records / (time.perf_counter() - begun)


async def compare(targets: Sequence[Target], count: int, rounds: int, method: str, in_flight: int) -> None:
    make: Callable[[str, int], list[bytes]] = bulk_requests if method == "MutateRows" else single_requests
    requests = {target.name: make(target.table, count) for target in targets}
    rates: dict[str, list[float]] = {target.name: [] for target in targets}
    for _ in range(rounds):
        for target in targets:
            seconds = await send(target.host, requests[target.name], method, in_flight)
            rates[target.name].append(count / seconds)
    alone = Spread.of(rates[targets[0].name])
    print(heading(f"mutations per second, {method}", "median (range)", "of cbtemulator"))
    for target in targets:
        spread = Spread.of(rates[target.name])
        print(row(target.name, spread.text(0), f"{spread.median / alone.median:.2f}"))
    print()


async def run(targets: Sequence[Target], arguments: argparse.Namespace) -> None:
    for target in targets:
        await create(target, stream=target.name.endswith("on"))
    await compare(targets, arguments.bulk, arguments.rounds, "MutateRows", 4)
    await compare(targets, arguments.singles, arguments.rounds, "MutateRow", 16)
    last = targets[-1]
    await repeated(
        "records out per second, one stream", arguments.rounds, lambda: filled(last, arguments.records)
    )


async def filled(target: Target, records: int) -> float:
    start_us = time.time_ns() // 1000
    await send(target.host, bulk_requests(target.table, records), "MutateRows", 4)
    return await drain(target, start_us)


async def repeated(name: str, rounds: int, measure: Callable[[], Awaitable[float]]) -> None:
    print(heading(name, "median (range)"))
    print(row("front, stream on", Spread.of([await measure() for _ in range(rounds)]).text(0)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bulk", type=int, default=100_000)
    parser.add_argument("--singles", type=int, default=4_000)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(machine())
    with BigtableEmulator.start() as front, started() as (_, alone):
        targets = (
            Target("cbtemulator", alone, f"{INSTANCE}/tables/alone"),
            Target("front, stream off", front.host, f"{INSTANCE}/tables/off"),
            Target("front, stream on", front.host, f"{INSTANCE}/tables/on"),
        )
        asyncio.run(run(targets, arguments))


if __name__ == "__main__":
    main()
