"""The watermark of an idle Bigtable table, for varied parts, slots, epochs and heartbeats."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.io.bigtable import ReadFromBigtableChangeStream, pool, stream
from penstock.io.bigtable.frontier import Frontier, Position
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.pool import StreamPool
from penstock.io.bigtable.read import ReadBigtableFn
from penstock.io.change_streams import partition_pool, partition_prefetch, prefetch, stream_reader, turn
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.status import UnreachableError
from tests.simulation.idle.runner import Configuration, Idle
from tests.simulation.virtual_time import VirtualTime
from tests.unit.bigtable.conftest import Response

MICROS = 1_000_000


class Heartbeats:
    """A stream of an idle partition: only heartbeats, the first one an interval after the stream was opened."""

    def __init__(self, world: VirtualTime, position: Position, seconds: float) -> None:
        self._world = world
        self._partition = position.partition
        self._seconds = seconds
        self._cancelled = False
        self._changed = world.Condition()

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        self._world.sleep(self._world.rng.uniform(0.005, 0.1))  # to open it takes as long
        while not self._cancelled:
            self._changed.wait(self._seconds)
            if not self._cancelled:
                message = self._heartbeat()
                yield message.ByteSize(), message
        raise UnreachableError("cancelled")

    def cancel(self) -> None:
        self._cancelled = True
        self._changed.notify_all()

    def _heartbeat(self) -> Any:
        message = Response()
        continuation = message.heartbeat.continuation_token
        continuation.token = f"{self._world.now:.6f}"
        row_range = continuation.partition.row_range
        row_range.start_key_closed, row_range.end_key_open = self._partition
        message.heartbeat.estimated_low_watermark.FromMicroseconds(round(self._world.time() * MICROS))
        return message


class Service:
    """Opens such streams."""

    def __init__(self, world: VirtualTime, heartbeat: float, refused: KeyRange | None) -> None:
        self.backoff = Backoff("Bigtable", UnreachableError, clock=world.monotonic)
        self._world = world
        self._heartbeat = heartbeat
        self._refused = refused

    def open(self, position: Position) -> Heartbeats:
        if position.partition == self._refused:
            raise UnreachableError("ABORTED: try again")
        return Heartbeats(self._world, position, self._heartbeat)

    def refused_close(self, position: Position, close: Any) -> Exception:
        raise AssertionError("no stream is closed")


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], VirtualTime]:
    def make(seed: int) -> VirtualTime:
        world = VirtualTime(seed)
        for module in (partition_pool, partition_prefetch, turn, stream, stream_reader):
            monkeypatch.setattr(module, "time", world)
        for module in (prefetch, partition_pool, stream_reader):
            monkeypatch.setattr(module, "threading", world)
        return world

    return make


def keys(count: int) -> list[KeyRange]:
    ends = [b"", *(b"%02d" % number for number in range(1, count)), b""]
    return [KeyRange(first, last) for first, last in itertools.pairwise(ends)]


def idle(world: VirtualTime, configuration: Configuration, refused: KeyRange | None = None) -> Idle:
    transform = ReadFromBigtableChangeStream(
        project="p",
        instance="i",
        table="t",
        heartbeat_seconds=configuration.heartbeat,
        idle_stream_seconds=configuration.idle_stream_seconds,
        max_concurrent_partitions=configuration.max_concurrent_partitions,
    )
    fns = []
    for _ in range(configuration.slots):
        fn = ReadBigtableFn(transform._settings)
        streams = StreamPool(
            Service(world, configuration.heartbeat, refused), transform._settings.limits, None, bounded=False
        )
        fn._pool = lambda stream, streams=streams: streams  # type: ignore[method-assign, misc]
        fns.append(fn)
    start = Frontier.starting_at(world.time_ns(), keys(configuration.partitions))
    return Idle(world, configuration, fns, start, transform.stream)


CONFIGURATIONS = {
    "one part": Configuration(15, 1, 1, epoch=0.5, overhead=0.2, heartbeat=1),
    "parts in their own slots": Configuration(15, 2, 2, epoch=0.5, overhead=0.2, heartbeat=1),
    "more parts than slots": Configuration(15, 5, 2, epoch=0.5, overhead=0.2, heartbeat=1),
    "more parts than slots, each where it was": Configuration(
        15, 5, 2, epoch=0.5, overhead=0.2, heartbeat=1, faithful=True
    ),
    "bundles further apart than a stream is kept": Configuration(
        15, 5, 2, epoch=0.5, overhead=5, heartbeat=1
    ),
    "streams are not kept": Configuration(
        15, 2, 2, epoch=0.5, overhead=0.2, heartbeat=1, idle_stream_seconds=0
    ),
    "heartbeat slower than the epoch": Configuration(15, 2, 2, epoch=0.5, overhead=0.2, heartbeat=4),
    "heartbeat much slower than the epoch": Configuration(15, 5, 2, epoch=0.5, overhead=3.5, heartbeat=10),
    "long epochs": Configuration(15, 5, 2, epoch=5.5, overhead=0.2, heartbeat=1),
    "more partitions than streams": Configuration(
        15, 2, 2, epoch=0.5, overhead=0.2, heartbeat=1, max_concurrent_partitions=3
    ),
    "more partitions than streams, slow heartbeat": Configuration(
        15, 1, 1, epoch=8, overhead=0.2, heartbeat=3, max_concurrent_partitions=3
    ),
}


@pytest.mark.long_cases(
    "one part",
    "more parts than slots, each where it was",
    "bundles further apart than a stream is kept",
    "heartbeat much slower than the epoch",
    "parts in their own slots",
    "more partitions than streams, slow heartbeat",
    seconds=5,
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long(seconds=5))])
@pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_heartbeats_always_advance_the_watermark_of_an_idle_table(
    worlds: Any, configuration: Configuration, seed: int
) -> None:
    world = worlds(seed)
    reading = idle(world, configuration)
    world.run(lambda: reading.run(40 + 20 * configuration.epoch))
    reading.check()


def test_a_partition_that_is_refused_alone_for_long_gets_a_warning(
    worlds: Callable[[int], VirtualTime], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, warnings = worlds(0), list[str]()
    monkeypatch.setattr(pool, "_REFUSALS", Refusals("Bigtable", world.monotonic, warnings.append))
    reading = idle(world, CONFIGURATIONS["more parts than slots"], keys(15)[3])
    world.run(lambda: reading.run(100))
    assert 1 <= len(warnings) <= 2, "at most one of each worker process"
    assert all("Bigtable has refused partition ['03', '04') for " in warning for warning in warnings)
    assert all("ABORTED: try again" in warning for warning in warnings)
