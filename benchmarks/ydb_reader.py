"""Records per second, and per CPU second of the client: our reader, the bare stub, and the SDK's reader.

    python benchmarks/ydb_reader.py [--records 40000] [--rounds 3]

The changefeed has two partitions, mode NEW_AND_OLD_IMAGES, format JSON and virtual timestamps; a record has some 250
bytes. It is on the test service of this package, which sends up to 1000 messages in one response, each with its own
write time. All contenders read the same records and take turns for several rounds; the median counts.

- *raw*: the bare stub with one stream for each partition. It parses the protobuf messages and counts the records. It
  decodes no JSON, keeps no order and tracks no restriction.
- *penstock*: the DoFn with its tracker and watermark estimator, called as a runner calls it, until `end`.
- *events*: the same, and converts each record to a `ChangeEvent` with typed values.
- *sdk*: the SDK's reader with `receive_batch`, and `json.loads` of each message.

The test service is one process and limits the wall time, so the figure to compare is the one per client CPU second.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import ydb
from apache_beam.runners.sdf_utils import (
    RestrictionTrackerView,
    ThreadsafeRestrictionTracker,
    ThreadsafeWatermarkEstimator,
)
from ydb._grpc.common import ydb_topic_v1_pb2_grpc
from ydb._grpc.common.protos import ydb_topic_pb2

from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark
from penstock.io.ydb import ReadFromYdbChangefeed
from penstock.io.ydb.read import ReadYdbFn
from penstock.transforms.formats.ydb_events import EventConverter
from penstock_emulators.ydb import YdbEmulator

TABLE, FEED, PARTITIONS = "orders", "feed", (0, 1)
BUFFER_BYTES = 32 << 20
Read = ydb_topic_pb2.StreamReadMessage


@dataclass(frozen=True, slots=True)
class Workload:
    """A changefeed with `records` changes up to `end` (nanoseconds, inclusive)."""

    service: YdbEmulator
    end: int
    records: int

    @property
    def topic(self) -> str:
        return f"/local/{TABLE}/{FEED}"


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds of one contender."""

    wall: float
    cpu: float


def prepare(service: YdbEmulator, records: int) -> Workload:
    control = service.control
    control.create_table(TABLE, {"id": "Uint64", "state": "Utf8", "amount": "Int64", "note": "Utf8"}, ["id"])
    control.add_changefeed(
        TABLE, FEED, mode="NEW_AND_OLD_IMAGES", virtual_timestamps=True, partitions=len(PARTITIONS)
    )
    step = 0
    for first in range(0, records, 500):
        row = {"state": f"state {first}", "amount": first, "note": "a note of some length"}
        step, _ = control.commit(
            [["upsert", TABLE, [key % 10_000], row] for key in range(first, first + 500)]
        )
    return Workload(service, step * 1_000_000, records)


def raw(workload: Workload) -> int:
    """Read both partitions with the bare stub; count the messages."""

    def read(partition: int) -> int:
        outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        settings = Read.InitRequest.TopicReadSettings(path=workload.topic, partition_ids=[partition])
        init = Read.InitRequest(topics_read_settings=[settings], auto_partitioning_support=True)
        outgoing.put(Read.FromClient(init_request=init))
        call = stub.StreamRead(iter(outgoing.get, None), metadata=[("x-ydb-database", "/local")])
        records = end = 0
        for message in call:
            if message.HasField("start_partition_session_request"):
                end = message.start_partition_session_request.partition_offsets.end
                start = Read.StartPartitionSessionResponse(partition_session_id=1, read_offset=0)
                outgoing.put(Read.FromClient(start_partition_session_response=start))
                outgoing.put(Read.FromClient(read_request=Read.ReadRequest(bytes_size=BUFFER_BYTES)))
            for data in message.read_response.partition_data:
                records += sum(len(batch.message_data) for batch in data.batches)
                size = message.read_response.bytes_size
                outgoing.put(Read.FromClient(read_request=Read.ReadRequest(bytes_size=size)))
            if end and records >= end:
                break
        outgoing.put(None)
        call.cancel()
        return records

    with grpc.insecure_channel(
        workload.service.host, options=[("grpc.max_receive_message_length", -1)]
    ) as channel:
        stub = ydb_topic_v1_pb2_grpc.TopicServiceStub(channel)
        with ThreadPoolExecutor(len(PARTITIONS)) as threads:
            return sum(threads.map(read, PARTITIONS))


def penstock(workload: Workload, look: Callable[[Any], object] = lambda record: None) -> int:
    """Read with the DoFn until the end of the restriction, and look at each record."""
    transform = ReadFromYdbChangefeed(
        endpoint=workload.service.endpoint,
        database="/local",
        table=TABLE,
        changefeed=FEED,
        end=workload.end,
        delivery_seconds=0.2,
        heartbeat_seconds=0.05,
        buffer_bytes=BUFFER_BYTES,
    )
    fn = ReadYdbFn(transform._settings)
    frontier = fn.initial_restriction(transform.stream)
    tracker = ThreadsafeRestrictionTracker(fn.create_tracker(frontier))
    estimator = ThreadsafeWatermarkEstimator(FrontierWatermarkEstimator(beam_watermark(frontier.watermark)))
    records = 0
    for output in fn.process(transform.stream, RestrictionTrackerView(tracker), estimator):
        look(output.value)
        records += 1
    tracker.check_done()
    return records


def events(workload: Workload) -> int:
    """Read with the DoFn, and convert each record to an event."""
    return penstock(workload, EventConverter(database="/local"))


class _FromTheStart(ydb.TopicReaderEvents.EventHandler):
    """Lets the SDK's reader begin at the first message: without a consumer it must be told."""

    def on_partition_get_start_offset(self, event: Any) -> Any:
        return ydb.TopicReaderEvents.OnPartitionGetStartOffsetResponse(0)


def sdk(workload: Workload) -> int:
    """Drain the SDK's reader with `json.loads`."""
    records = 0
    with ydb.Driver(endpoint=workload.service.endpoint, database="/local") as driver:
        driver.wait(10)
        selector = ydb.TopicReaderSelector(workload.topic, partitions=list(PARTITIONS))
        handler = _FromTheStart()
        with driver.topic_client.reader(
            selector, None, buffer_size_bytes=BUFFER_BYTES, event_handler=handler
        ) as reader:
            while records < workload.records:
                for message in reader.receive_batch(timeout=20).messages:
                    json.loads(message.data)
                    records += 1
    return records


CONTENDERS = {contender.__name__: contender for contender in (raw, penstock, events, sdk)}


def measured(name: str, workload: Workload) -> Figure:
    wall, cpu = time.perf_counter(), time.process_time()
    records = CONTENDERS[name](workload)
    figure = Figure(time.perf_counter() - wall, time.process_time() - cpu)
    if records != workload.records:
        raise SystemExit(f"{name} read {records} records of {workload.records}")
    return figure


def compare(workload: Workload, rounds: int) -> None:
    figures: dict[str, list[Figure]] = {name: [] for name in CONTENDERS}
    order = list(CONTENDERS)
    for name in order:
        measured(name, workload)  # connections, imports
    for number in range(rounds):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            figures[name].append(measured(name, workload))
    cpus = {name: statistics.median(figure.cpu for figure in some) for name, some in figures.items()}
    print(f"{workload.records:,} records, median of {rounds} (lowest to highest)\n")
    print("| | records/s | records per client CPU s | times the SDK's reader (CPU) |")
    print("| --- | --: | --: | --: |")
    for name, some in figures.items():
        rates = sorted(workload.records / figure.cpu for figure in some)
        wall = statistics.median(figure.wall for figure in some)
        spread = f"{workload.records / cpus[name]:,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})"
        print(f"| {name} | {workload.records / wall:,.0f} | {spread} | {cpus['sdk'] / cpus[name]:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with YdbEmulator.start() as service:
        compare(prepare(service, options.records), options.rounds)


if __name__ == "__main__":
    main()
