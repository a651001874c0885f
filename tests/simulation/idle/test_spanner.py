"""The watermark of an idle Spanner change stream, for varied parts, slots, epochs and partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType

import pytest

from penstock.io.change_streams import prefetch as common
from penstock.io.change_streams import turn
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner import ReadFromSpannerChangeStream, pool, prefetch, reader, state
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.pool import StreamPool
from penstock.io.spanner.position import Position
from penstock.io.spanner.prefetch import Prefetcher
from penstock.io.spanner.read import ReadSpannerFn
from tests.simulation.idle.runner import Configuration, Idle
from tests.simulation.virtual_time import VirtualTime
from tests.unit.spanner.calls import heartbeat


class IdleWindow:
    """A query of an idle partition: it ends at its end_timestamp, with one heartbeat."""

    def __init__(self, world: VirtualTime, end: int, backoff: Backoff, *, refused: bool) -> None:
        self._world = world
        self._backoff = backoff
        self._refused = refused
        self._end = end

    def __iter__(self) -> Iterator[bytes]:
        self._world.sleep(self._world.rng.uniform(0.005, 0.1))
        if self._refused:
            raise UnreachableError("ABORTED: try again")
        self._world.sleep(max(0, self._end - self._world.time_ns()) / 1e9)
        self._backoff.answered()
        yield heartbeat(self._end).SerializeToString()

    def cancel(self) -> None:
        """Do nothing: the window ends at its end_timestamp."""


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], VirtualTime]:
    def make(seed: int) -> VirtualTime:
        world = VirtualTime(seed)
        for module in (prefetch, turn, state):
            monkeypatch.setattr(module, "time", world)
        for module in (common, pool, reader, state):
            monkeypatch.setattr(module, "threading", world)
        return world

    return make


def idle(world: VirtualTime, configuration: Configuration, refused: str = "") -> Idle:
    transform = ReadFromSpannerChangeStream(
        project="p",
        instance="i",
        database="d",
        change_stream="S",
        heartbeat_seconds=configuration.heartbeat,
        idle_stream_seconds=configuration.idle_stream_seconds,
        max_concurrent_partitions=configuration.max_concurrent_partitions,
    )
    limits = transform._settings.limits
    backoff = Backoff("Spanner", UnreachableError, clock=world.monotonic)

    def prefetcher(ahead: common.ReadAhead) -> Prefetcher:
        def ask(token: str, start: int, end: int) -> IdleWindow:
            return IdleWindow(world, end, backoff, refused=token == refused)

        return Prefetcher(ask, backoff, limits, None, world.time_ns, ahead)

    fns = []
    for _ in range(configuration.slots):
        fn = ReadSpannerFn(transform._settings)
        streams = StreamPool(limits.buffer_bytes, prefetcher)
        fn._pool = lambda stream, streams=streams: streams  # type: ignore[method-assign, misc]
        fns.append(fn)
    now = Position(world.time_ns())
    opened = {f"p{number:02}": now for number in range(configuration.partitions)}
    return Idle(world, configuration, fns, Frontier(opened, MappingProxyType({})), transform.stream)


CONFIGURATIONS = {
    "one part": Configuration(15, 1, 1, epoch=0.5, overhead=0.2, heartbeat=1),
    "more parts than slots": Configuration(15, 5, 2, epoch=0.5, overhead=0.2, heartbeat=1),
    "bundles further apart than a query is kept": Configuration(15, 5, 2, epoch=0.5, overhead=5, heartbeat=1),
    "queries are not kept": Configuration(
        15, 2, 2, epoch=0.5, overhead=0.2, heartbeat=1, idle_stream_seconds=0
    ),
    "heartbeat slower than the epoch": Configuration(15, 5, 2, epoch=0.5, overhead=0.2, heartbeat=30),
    "long epochs": Configuration(15, 5, 2, epoch=5.5, overhead=0.2, heartbeat=1),
    "short epochs": Configuration(15, 5, 2, epoch=0.1, overhead=0.05, heartbeat=1),
    "more partitions than queries": Configuration(
        15, 2, 2, epoch=0.5, overhead=0.2, heartbeat=1, max_concurrent_partitions=3
    ),
}


@pytest.mark.long_cases("one part", "queries are not kept", "short epochs", "long epochs", seconds=5)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long(seconds=5))])
@pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_heartbeats_always_advance_the_watermark_of_an_idle_change_stream(
    worlds: Callable[[int], VirtualTime], configuration: Configuration, seed: int
) -> None:
    world = worlds(seed)
    reading = idle(world, configuration)
    world.run(lambda: reading.run(25 + 10 * configuration.epoch))
    reading.check()


@pytest.mark.long(seconds=5)
def test_a_partition_that_is_refused_alone_for_long_gets_a_warning(
    worlds: Callable[[int], VirtualTime], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, warnings = worlds(0), list[str]()
    monkeypatch.setattr(reader, "_REFUSALS", Refusals("Spanner", world.monotonic, warnings.append))
    reading = idle(world, CONFIGURATIONS["more parts than slots"], "p03")
    world.run(lambda: reading.run(100))
    assert 1 <= len(warnings) <= 2, "at most one of each worker process"
    assert all("Spanner has refused partition p03" in warning for warning in warnings)
    assert all("ABORTED: try again" in warning for warning in warnings)
