"""`Barriers` and `VirtualTimestamps`: no event with an earlier timestamp follows a barrier in its shard."""

from __future__ import annotations

import random
from typing import Any

import apache_beam as beam
import msgspec
import pytest
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.event.coder import encode_event
from penstock.transforms import Barriers, OrderByKey, ShardByKey, VirtualTimestamp, VirtualTimestamps
from penstock.transforms.formats.ydb_position import virtual_timestamp
from penstock.transforms.virtual_timestamps import (
    ShardRecord,
    ShardRecordCoder,
    _BarriersFn,
    barrier_after,
)
from tests.simulation.transforms.scripts import (
    emitted,
    emitted_in_batch,
    event,
    live_cells,
    shuffled_with_lag,
)

SHARDS = 3


class Changefeed(beam.PTransform):
    """Shards, and barriers every 5 milliseconds; `first` runs before them."""

    def __init__(self, first: Any = None) -> None:
        super().__init__()
        self._first = first

    def expand(self, pcoll: Any) -> Any:
        events = pcoll | self._first if self._first else pcoll
        return events | ShardByKey(SHARDS) | Barriers(shards=SHARDS, interval_seconds=0.005)


class Sharded(beam.PTransform):
    """Two shards before a transform."""

    def __init__(self, then: Any) -> None:
        super().__init__()
        self._then = then

    def expand(self, pcoll: Any) -> Any:
        return pcoll | ShardByKey(2) | self._then


def per_shard(found: list[tuple[tuple[int, ShardRecord], int]]) -> dict[int, list[ShardRecord]]:
    shards: dict[int, list[ShardRecord]] = {shard: [] for shard in range(SHARDS)}
    for (shard, record), _ in found:
        shards[shard].append(record)
    return shards


def check_barriers(found: list[tuple[tuple[int, ShardRecord], int]], events: list[ChangeEvent]) -> None:
    """Check that each shard has each barrier once."""
    expected = sorted({barrier_after(each.timestamp, 5) for each in events})
    for records in per_shard(found).values():
        assert [r.timestamp.step for r in records if r.is_barrier] == expected


def check(found: list[tuple[tuple[int, ShardRecord], int]], events: list[ChangeEvent]) -> None:
    """Check the order of the records in each shard, that none is lost, and that the last barrier covers all."""
    last = max(barrier_after(each.timestamp, 5) for each in events)
    for records in per_shard(found).values():
        assert records[-1].timestamp == VirtualTimestamp(last, 0)
        barrier = previous = VirtualTimestamp(0, 0)
        for record in records:
            if record.is_barrier:
                assert barrier < record.timestamp
                barrier = record.timestamp
            else:
                assert barrier <= record.timestamp
                assert previous <= record.timestamp
                previous = record.timestamp
    kept = [record.event.version for (_, record), _ in found if record.event]
    assert sorted(kept) == sorted(each.version for each in events)


def changes(rng: random.Random) -> list[ChangeEvent]:
    return [event(rng.randrange(8), 1_000_000 + 600 * n, f"t{n // 2}", n) for n in range(60)]


@pytest.mark.parametrize("seed", range(5))
def test_no_earlier_event_follows_a_barrier_and_every_shard_gets_each_barrier_once(seed: int) -> None:
    rng = random.Random(seed)
    events = changes(rng)
    found = emitted(Changefeed(), shuffled_with_lag(events, rng, lag_ms=9))
    check(found, events)
    check_barriers(found, events)


def test_events_that_order_by_key_has_restamped_do_not_follow_their_barrier() -> None:
    rng = random.Random(3)
    events = [event(n % 8, 1_000_000 + 900 * n, f"t{n}") for n in range(40)]
    found = emitted(Changefeed(OrderByKey()), shuffled_with_lag(events, rng, lag_ms=9))
    check(found, events)
    check_barriers(found, events)


def test_a_batch_keeps_the_promises_of_barriers_on_beams_own_runner() -> None:
    rng = random.Random(4)
    events = changes(rng)
    rng.shuffle(events)
    check(emitted_in_batch(Changefeed(), events), events)


def test_a_barrier_comes_from_the_watermark_only() -> None:
    """However much time passes, the barrier at 1.005 waits for the watermark."""
    steps = [[event(1, 1_000_000)], 1_005, [event(1, 1_005_000)], 1_015]
    found = [record for (_, record), at in emitted(Changefeed(), steps) if at <= 1_015_000]
    assert [record.timestamp.step for record in found if record.is_barrier] == [1_005] * SHARDS


class Buffer:
    """An ordered list state with one event."""

    def __init__(self, event: ChangeEvent) -> None:
        self._values = [(Timestamp(micros=event.timestamp // 1000), encode_event(event))]

    def read_range(self, start: Timestamp, end: Timestamp) -> Any:
        return [(at, value) for at, value in self._values if start <= at < end]

    def clear_range(self, start: Timestamp, end: Timestamp) -> None:
        self._values = [(at, value) for at, value in self._values if not start <= at < end]


class Value:
    """A state with one value."""

    value: int | None = None

    def read(self) -> int | None:
        return self.value

    def write(self, value: int) -> None:
        self.value = value


def test_a_barrier_that_fires_before_the_events_it_covers_emits_them_first() -> None:
    """The order in which Beam's FnApiRunner fires the timers of one jump differs from run to run."""
    fn, last = _BarriersFn(), Value()
    buffer = Buffer(event(1, 1_004_000))
    at = Timestamp(micros=1_015_000)
    found = [each.value[1] for each in fn.emit_barrier(("", 0), "1005", at, buffer, last)]
    assert [record.is_barrier for record in found] == [False, True]
    assert list(fn.emit_barrier(("", 0), "1000", at, buffer, last)) == []


def test_an_event_behind_a_barrier_fails_instead_of_following_it() -> None:
    with pytest.raises(Exception, match="after the barrier at 1005 ms"):
        emitted(Changefeed(), [[event(1, 1_000_000)], 2_000, 2_001, [event(1, 1_004_000)]])


def test_each_table_has_separate_barriers_in_every_shard() -> None:
    orders = [event(number, 1_000_000 + number * 4_000) for number in range(4)]
    source = msgspec.structs.replace(orders[0].source, schema="sales", table="Users")
    (user,) = [msgspec.structs.replace(each, source=source) for each in orders[:1]]
    feed = Barriers(shards=2, interval_seconds=0.005, per_table=True)
    found = emitted(Sharded(feed), [[*orders, user], 1_500])
    barriers = [
        (shard, record.table, record.timestamp.step) for (shard, record), _ in found if record.is_barrier
    ]
    assert sorted(barriers) == sorted(
        [(shard, "Orders", step) for shard in (0, 1) for step in (1005, 1010, 1015)]
        + [(shard, "sales.Users", 1005) for shard in (0, 1)]
    )
    assert sum(not record.is_barrier for (_, record), _ in found) == 5
    barrier = ShardRecord(VirtualTimestamp(5, 0), table="sales.Users")
    assert ShardRecordCoder().decode(ShardRecordCoder().encode(barrier)) == barrier


def test_only_the_last_barrier_of_each_shard_stays_in_the_state() -> None:
    few = live_cells(Changefeed(), [[event(n, 1_000_000) for n in range(4)], 2_000, 3_000, 4_000])
    many = live_cells(
        Changefeed(), [[event(n, 1_000_000 + n * 2000) for n in range(40)], 2_000, 3_000, 4_000]
    )
    assert max(many) > many[-1] == few[-1]


def test_a_virtual_timestamp_has_the_milliseconds_as_its_step() -> None:
    found = virtual_timestamp(event(1, 1_700_000_000_123_456, ""))
    assert found.step == 1_700_000_000_123
    assert found.tx_id >> 40 == 456
    assert found.tx_id < 2**50


def test_each_event_gets_its_virtual_timestamp() -> None:
    ((record, _),) = emitted_in_batch(VirtualTimestamps(), [event(1, 1_000_000)])
    assert record.timestamp == virtual_timestamp(event(1, 1_000_000))


moments = st.integers(0, 2**62)


@given(moments, moments, st.text(max_size=3), st.text(max_size=3))
def test_a_later_commit_has_a_later_virtual_timestamp(a: int, b: int, first: str, second: str) -> None:
    one, two = (
        virtual_timestamp(msgspec.structs.replace(event(1, 0, name), timestamp=at))
        for name, at in ((first, a), (second, b))
    )
    assert (one < two) == (a < b) or a == b


@given(moments, st.integers(1, 100_000))
def test_a_barrier_is_later_than_the_event_by_at_most_the_interval(at: int, interval_ms: int) -> None:
    barrier = barrier_after(at, interval_ms)
    assert barrier % interval_ms == 0
    assert at < barrier * 1_000_000 <= at + interval_ms * 1_000_000
    stamp = virtual_timestamp(msgspec.structs.replace(event(1, 0), timestamp=at))
    assert stamp < VirtualTimestamp(barrier, 0)


@given(moments, st.booleans())
def test_the_coder_of_records_is_exact(at: int, has_event: bool) -> None:
    record = ShardRecord(VirtualTimestamp(at, at % 2**50), event(1, 5) if has_event else None)
    coder = ShardRecordCoder()
    assert coder.decode(coder.encode(record)) == record


def test_arguments_are_checked() -> None:
    with pytest.raises(UsageError, match="at least 1 shard"):
        Barriers(shards=0)
    with pytest.raises(UsageError, match="interval"):
        Barriers(shards=1, interval_seconds=0)
