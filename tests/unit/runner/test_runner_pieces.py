"""The runner's pieces that need no Spark: frames, key groups, cells, timers, groups."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from hypothesis import given
from hypothesis import strategies as st

from penstock.runner.harness.grouped_writer import GroupedWriter
from penstock.runner.harness.writers import writer_for
from penstock.runner.planning.plan import Edge, Routing
from penstock.runner.protocol.frames import Frame, FrameSequencer, Kind
from penstock.runner.store import StateStore
from penstock.runner.store.cells import (
    EVENT,
    HOLD,
    NO_HOLD_US,
    PROCESSING,
    Cells,
    TimerEntry,
    Timers,
    pack,
    unpack,
)
from penstock.runner.store.keys import KEY_GROUPS, groups_of, key_group, partition_of
from penstock.runner.tasks.grouping_bundle import _Values
from penstock.runner.windows.grouping import Grouping, read_group


def _frame(number: int, partition: int = 0, edge: int = 0) -> Frame:
    return Frame(Kind.DATA, 1, partition, "0123456789abcdef", edge, number, b"payload")


def test_a_frame_comes_back_as_it_was_packed() -> None:
    frame = _frame(7, partition=3, edge=2)
    assert Frame.unpack(frame.pack()) == frame


@given(st.permutations(range(6)))
def test_frames_of_one_lane_are_taken_in_their_producers_order(arrival: list[int]) -> None:
    order = FrameSequencer()
    taken = [ready.number for number in arrival for ready in order.take(_frame(number))]
    assert taken == list(range(6))


def test_lanes_do_not_wait_for_each_other() -> None:
    order = FrameSequencer()
    assert [f.number for f in order.take(_frame(1))] == []
    assert [f.number for f in order.take(_frame(0, partition=1))] == [0]


@given(st.integers(1, 200))
def test_each_key_group_has_one_partition_and_each_partition_a_range(partitions: int) -> None:
    owned = {group: p for p in range(partitions) for group in groups_of(p, partitions)}
    assert owned == {group: partition_of(group, partitions) for group in range(KEY_GROUPS)}


def test_the_key_group_of_a_key_never_changes() -> None:
    assert [key_group(key) for key in (b"", b"a", b"order-1")] == [0, 67, 111]


@given(st.lists(st.binary(max_size=9)))
def test_packed_parts_are_unpacked_again(parts: list[bytes]) -> None:
    assert unpack(pack(*parts)) == parts


def test_a_cell_keeps_its_chunks_in_order_until_it_is_cleared() -> None:
    cells = Cells(StateStore.temporary(0, KEY_GROUPS - 1))
    for chunk in (b"1", b"2", b"3"):
        cells.append(5, b"key", b"w", b"bag", chunk)
    cells.append(5, b"key", b"w", b"other", b"x")
    assert list(cells.chunks(5, b"key", b"w", b"bag")) == [b"1", b"2", b"3"]
    cells.clear(5, b"key", b"w", b"bag")
    assert list(cells.chunks(5, b"key", b"w", b"bag")) == []
    assert list(cells.chunks(5, b"key", b"w", b"other")) == [b"x"]


def test_deleting_a_window_leaves_the_entries_of_other_windows() -> None:
    store = StateStore.temporary(0, KEY_GROUPS - 1)
    cells, timers = Cells(store), Timers(store, 0, KEY_GROUPS - 1)
    for window in (b"w", b"w2"):
        cells.append(5, b"key", window, b"bag", b"1")
        cells.append(5, b"key", window, b"bag", b"2")
        timers.set(TimerEntry(5, b"key", window, b"f", b"", EVENT, 10, 3))
    cells.delete_window(5, b"key", b"w")
    timers.delete_window(5, b"key", b"w")
    assert list(cells.chunks(5, b"key", b"w2", b"bag")) == [b"1", b"2"]
    cells.delete_window(5, b"key", b"w2")
    timers.delete_window(5, b"key", b"w2")
    assert list(store.scan(0, KEY_GROUPS - 1, b"")) == []


def _timer(tag: bytes, fire_us: int, hold_us: int = NO_HOLD_US, domain: bytes = EVENT) -> TimerEntry:
    return TimerEntry(key_group(b"k"), b"k", b"w", b"f", tag, domain, fire_us, hold_us)


def test_due_timers_come_in_the_order_of_their_times_also_before_1970() -> None:
    timers = Timers(StateStore.temporary(0, KEY_GROUPS - 1), 0, KEY_GROUPS - 1)
    for fire in (30, -20, 10, 31):
        timers.set(_timer(str(fire).encode(), fire))
    assert [t.fire_us for t in timers.take_due(EVENT, 30)] == [-20, 10, 30]
    assert timers.earliest(EVENT) == 31


def test_setting_a_timer_again_moves_the_timer_and_its_hold() -> None:
    timers = Timers(StateStore.temporary(0, KEY_GROUPS - 1), 0, KEY_GROUPS - 1)
    timers.set(_timer(b"", 10, hold_us=5, domain=PROCESSING))
    timers.set(_timer(b"", 20, hold_us=7, domain=PROCESSING))
    assert (timers.earliest(PROCESSING), timers.earliest(HOLD)) == (20, 7)
    timers.clear(key_group(b"k"), b"k", b"w", b"f", b"")
    assert (timers.earliest(PROCESSING), timers.earliest(HOLD)) == (None, None)


def test_a_timer_that_was_cleared_or_set_again_cannot_be_taken_at_its_old_time() -> None:
    timers = Timers(StateStore.temporary(0, KEY_GROUPS - 1), 0, KEY_GROUPS - 1)
    before, after = _timer(b"", 10), _timer(b"", 20)
    timers.set(before)
    timers.set(after)
    assert not timers.take(before)
    assert timers.take(after)
    assert not timers.take(after)


def test_setting_a_timer_to_its_current_value_writes_nothing() -> None:
    class WatchedStore(StateStore):
        def put(self, key_group: int, key: bytes, value: bytes) -> None:
            written.append(key)
            super().put(key_group, key, value)

    written: list[bytes] = []
    timers = Timers(WatchedStore.temporary(0, KEY_GROUPS - 1), 0, KEY_GROUPS - 1)
    timers.set(_timer(b"", 10, hold_us=5))
    written.clear()
    timers.set(_timer(b"", 10, hold_us=5))
    assert not written


def _grouped(grouping: Grouping) -> Iterator[tuple[bytes, bytes, list[bytes], int, int]]:
    for group in grouping.groups():
        values = b"".join(group.chunks)
        assert values == b"".join(group.chunks), "a group can be iterated again"
        yield group.key, group.window, values.splitlines(), group.first_us, group.last_us


@pytest.mark.parametrize("memory_bytes", [1 << 30, 4_000, 1])
def test_groups_are_complete_and_in_order_after_any_number_of_spills(memory_bytes: int) -> None:
    rng, grouping = random.Random(1), Grouping(memory_bytes)
    expected: dict[tuple[bytes, bytes], list[tuple[int, bytes]]] = {}
    for n in range(300):
        key, window, at = b"k%d" % rng.randrange(7), b"w%d" % rng.randrange(3), rng.randrange(-50, 50)
        grouping.add(key, window, at, at, b"%d\n" % n)
        expected.setdefault((key, window), []).append((at, b"%d" % n))
    found = {(key, window): rest for key, window, *rest in _grouped(grouping)}
    assert found == {
        identity: [[v for _, v in values], min(values)[0], max(values)[0]]
        for identity, values in expected.items()
    }
    grouping.close()
    assert not grouping


@pytest.mark.parametrize("memory_bytes", [1 << 30, 1 << 20])
def test_a_group_can_be_read_after_later_groups_were_returned(memory_bytes: int) -> None:
    grouping, chunk = Grouping(memory_bytes), bytes(300_000)
    for at in range(20):
        grouping.add(b"k%d" % (at % 2), b"w", at, at, chunk)
    groups = list(grouping.groups())
    assert [len(b"".join(group.chunks)) for group in groups] == [10 * len(chunk)] * 2


def test_a_group_far_beyond_the_memory_is_never_held_whole() -> None:
    grouping, chunk = Grouping(memory_bytes=4 << 20), bytes(300_000)
    tracemalloc.start()
    try:
        for at in range(200):
            grouping.add(b"k", b"w", at, at, bytes(chunk))
        (sizes,) = [[len(part) for part in group.chunks] for group in grouping.groups()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(sizes) == 200 * len(chunk)
    assert peak < 12 << 20


def test_two_readers_of_a_big_group_do_not_disturb_each_other() -> None:
    grouping = Grouping(memory_bytes=3 << 20)
    for at in range(12):
        grouping.add(b"big", b"w", at, at, bytes([at]) * 600_000)
        grouping.add(b"small", b"w", at, at, bytes([at]))
    groups = grouping.groups()
    big, small = next(groups), next(groups)
    assert b"".join(small.chunks) == bytes(range(12))
    pairs = list(zip(big.chunks, big.chunks, strict=True))
    assert all(one == other for one, other in pairs)
    assert [value for part, _ in pairs for value in part[::600_000]] == list(range(12))


_PAIRS = coders.TupleCoder([coders.StrUtf8Coder(), coders.VarIntCoder()])
_EDGE = Edge(0, "group", "", Routing.GROUPED, 1, (0,), 1)


class _Sent:
    """The output of a `GroupedWriter` of partition 0 of 3, as a grouping stage reads it."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, bytes]] = []
        coder = coders.WindowedValueCoder(_PAIRS, coders.coders.IntervalWindowCoder())
        self.writer = GroupedWriter(_EDGE, coder, 0, 3, lambda _, *block: self.blocks.append(block))

    def write(self, key: str, value: int, at_us: int, *windows: IntervalWindow) -> None:
        self.writer.write(WindowedValue((key, value), Timestamp(micros=at_us), windows))

    def groups(self) -> Iterator[tuple[str, IntervalWindow, int, int, int, list[int]]]:
        for target, block in self.blocks:
            stream = coder_impl.create_InputStream(block)
            while stream.size() > 0:
                key, window, first_us, last_us, count, values = read_group(stream)
                assert target == partition_of(key_group(key), 3)
                yield _key(key), _window(window), first_us, last_us, count, list(_values(values))


def _key(encoded: bytes) -> str:
    key: str = _PAIRS.key_coder().get_impl().decode_nested(encoded)
    return key


def _window(encoded: bytes) -> IntervalWindow:
    return coders.coders.IntervalWindowCoder().get_impl().decode_nested(encoded)


def _values(encoded: bytes) -> Iterator[int]:
    stream = coder_impl.create_InputStream(encoded)
    while stream.size() > 0:
        yield stream.read_var_int64()


EARLY, LATE = IntervalWindow(0, 10), IntervalWindow(10, 20)


def test_values_of_one_key_and_window_travel_together_in_their_order() -> None:
    sent = _Sent()
    for key, value, at, *windows in (
        ("a", 3, 7, EARLY),
        ("b", 9, 1, EARLY),
        ("a", 1, 5, EARLY, LATE),
        ("a", 2, 6, EARLY),
    ):
        sent.write(key, value, at, *windows)
    assert sent.blocks == []
    sent.writer.flush()
    assert sorted(sent.groups(), key=lambda group: (group[0], group[1].start)) == [
        ("a", EARLY, 5, 7, 3, [3, 1, 2]),
        ("a", LATE, 5, 5, 1, [1]),
        ("b", EARLY, 1, 1, 1, [9]),
    ]


@pytest.mark.parametrize("routing", Routing)
def test_every_writer_counts_the_bytes_that_it_sends_for_the_budget_of_a_read(routing: Routing) -> None:
    sent: list[bytes] = []
    coder = coders.WindowedValueCoder(_PAIRS, coders.coders.IntervalWindowCoder())
    edge = Edge(0, "edge", "", routing, 1, (0,), 1)
    writer = writer_for(edge, coder, 0, 3, lambda edge, target, block: sent.append(block))
    for n in range(10):
        writer.write(WindowedValue(("key", n), Timestamp(micros=n), (EARLY,)))
    assert writer.records == (30 if routing is Routing.BROADCAST else 10)
    assert writer.bytes > 0
    writer.flush()
    assert writer.bytes == sum(map(len, sent))


@pytest.mark.slow
def test_a_writer_of_groups_loses_nothing_for_any_number_of_sends() -> None:
    sent, rng = _Sent(), random.Random(2)
    expected: dict[str, list[int]] = {}
    for n in range(200_000):
        key = f"k{rng.randrange(50_000)}"
        sent.write(key, n, n, EARLY)
        expected.setdefault(key, []).append(n)
    waiting = sent.writer.bytes
    sent.writer.flush()
    found: dict[str, list[int]] = {}
    for key, _, first_us, last_us, count, values in sent.groups():
        assert (first_us, last_us, count) == (values[0], values[-1], len(values))
        found.setdefault(key, []).extend(values)
    assert found == expected
    assert sent.writer.records == 200_000
    assert waiting <= sent.writer.bytes == sum(len(block) for _, block in sent.blocks)


@pytest.mark.parametrize(
    ("limit", "most", "keys", "counts"),
    [
        ("_MOST_VALUES", 3, "aaabaac", [("a", 3), ("b", 1), ("a", 2), ("c", 1)]),
        ("_MOST_BYTES", 6, "aaaabaac", [("a", 4), ("b", 1), ("a", 1), ("a", 1), ("c", 1)]),
        ("_MOST_GROUPS", 2, "aaabaac", [("a", 3), ("b", 1), ("a", 2), ("c", 1)]),
        ("_MOST_STREAMS", 1, "abcaab", [("a", 2), ("b", 1), ("c", 1), ("a", 1), ("b", 1)]),
    ],
)
def test_a_writer_of_groups_sends_them_when_it_holds_as_much_as_it_may(
    limit: str, most: int, keys: str, counts: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A key takes two bytes, and each value one.
    monkeypatch.setattr(GroupedWriter, limit, most)
    sent = _Sent()
    element = WindowedValue(None, Timestamp(1), (EARLY,))
    for key in keys:
        sent.writer.put(element, (key, 1))
    sent.writer.flush()
    assert sorted((key, count) for key, _, _, _, count, _ in sent.groups()) == sorted(counts)


@pytest.mark.parametrize("one_timestamp", [False, True], ids=["any timestamps", "one timestamp"])
def test_a_writer_of_groups_gets_values_of_one_element_or_elements(one_timestamp: bool) -> None:
    coder = coders.WindowedValueCoder(_PAIRS, coders.coders.IntervalWindowCoder())
    edge = replace(_EDGE, one_timestamp_per_group=one_timestamp)
    sent: list[list[bytes]] = [[], []]
    by_elements, by_values = (
        GroupedWriter(edge, coder, 0, 3, lambda edge, target, block, to=to: to.append(block)) for to in sent
    )
    rng, number = random.Random(5), 0
    for _ in range(400):
        at, windows = Timestamp(rng.randrange(4)), rng.choice([(EARLY,), (LATE,), (EARLY, LATE)])
        element = WindowedValue(None, at, windows)
        for _ in range(rng.randrange(5)):
            pair, number = (f"k{rng.randrange(4)}", number), number + 1
            by_elements.write(element.with_value(pair))
            by_values.put(element, pair)
    by_elements.flush()
    by_values.flush()
    assert sent[0] == sent[1] != []


@pytest.mark.parametrize("one_timestamp", [False, True], ids=["any timestamps", "one timestamp"])
def test_a_writer_of_groups_takes_no_keys_for_equal_that_are_encoded_differently(one_timestamp: bool) -> None:
    pair = coders.TupleCoder([coders.FastPrimitivesCoder(), coders.VarIntCoder()])
    coder = coders.WindowedValueCoder(pair, coders.coders.IntervalWindowCoder())
    edge = replace(_EDGE, one_timestamp_per_group=one_timestamp)
    sent: list[bytes] = []
    writer = GroupedWriter(edge, coder, 0, 3, lambda edge, target, block: sent.append(block))
    encode_key, rng = pair.key_coder().get_impl().encode_nested, random.Random(3)
    expected: dict[Any, list[int]] = {}
    for n in range(3000):
        key = rng.choice([1, True, 1.0, 0, False, "1", b"1", "", b"", (1,), None])
        windows = rng.choice([(EARLY,), (EARLY,), (LATE,), (EARLY, LATE), [IntervalWindow(0, 10)]])
        at = rng.randrange(3)
        writer.write(WindowedValue((key, n), Timestamp(micros=at), windows))
        for window in windows:
            name = (encode_key(key), window, at if one_timestamp else None)
            expected.setdefault(name, []).append(n)
    writer.flush()
    found: dict[Any, list[int]] = {}
    for block in sent:
        stream = coder_impl.create_InputStream(block)
        while stream.size() > 0:
            key, window, first_us, last_us, count, values = read_group(stream)
            name = (key, _window(window), first_us if one_timestamp else None)
            found[name] = list(_values(values))
            assert count == len(found[name])
            assert first_us == last_us or not one_timestamp
    assert found == expected
    assert writer.records == sum(map(len, expected.values()))


@pytest.mark.parametrize("coder", [coders.VarIntCoder(), coders.FastPrimitivesCoder()], ids=["typed", "any"])
@pytest.mark.parametrize("count", [0, 1, 1999, 2000, 2001, 5000])
def test_the_values_of_a_group_of_any_size_can_be_read_again_and_again(
    count: int, coder: coders.Coder
) -> None:
    impl = coder.get_impl()
    values = [number * 7 for number in range(count)]
    encoded = [impl.encode_nested(value) for value in values]
    chunks = [b"".join(encoded[at : at + 300]) for at in range(0, count, 300)]
    group = _Values(impl, chunks, count)
    assert list(zip(group, group, strict=True)) == list(zip(values, values, strict=True))
    assert list(_Values(impl, iter(chunks), count)) == values
    assert len(group) == count


def test_a_value_that_a_user_changes_is_as_it_was_in_the_next_iteration() -> None:
    impl = coders.FastPrimitivesCoder().get_impl()
    group = _Values(impl, [impl.encode_nested([1]), impl.encode_nested([2])], 2)
    for value in group:
        value.append(0)
    assert list(group) == [[1], [2]]


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "[]"), (2, "[0, 1]"), (21, f"[{', '.join(map(str, range(20)))}, …]")]
)
def test_a_printed_group_shows_its_first_values(count: int, shown: str) -> None:
    coder = coders.VarIntCoder().get_impl()
    chunks = [coder.encode_nested(number) for number in range(count)]
    assert repr(_Values(coder, chunks, count)) == shown
