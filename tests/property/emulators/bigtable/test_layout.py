"""After any sequence of layout changes the partitions tile the key space, and closes cover every key."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock_emulators.bigtable.layout import KeyRange, Layout, random_change

keys = st.binary(max_size=3)


@st.composite
def layouts(draw) -> Layout:
    layout = Layout.whole()
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    for _ in range(draw(st.integers(0, 12))):
        layout = random_change(layout, rng, draw(st.lists(keys, max_size=4)))
    return layout


def tiles(ranges: list[KeyRange], whole: KeyRange) -> bool:
    joined = all(left.end == right.start and left.end for left, right in pairwise(ranges))
    return joined and (ranges[0].start, ranges[-1].end) == (whole.start, whole.end)


@given(layouts(), keys)
def test_every_key_is_in_exactly_one_partition(layout: Layout, key: bytes) -> None:
    assert tiles(list(layout.partitions), KeyRange(b"", b""))
    assert [partition.holds(key) for partition in layout.partitions].count(True) == 1
    assert layout.holding(key).holds(key)


@given(layouts(), keys, keys)
def test_a_close_covers_the_closed_partition_exactly(layout: Layout, one: bytes, other: bytes) -> None:
    start, end = min(one, other), max(one, other)
    partition = KeyRange(start, end if end > start else b"")
    ways = layout.close(partition)
    assert tiles([part for part, _ in ways], partition)
    assert all(target in layout.partitions and target.covers(part) for part, target in ways)


@given(layouts(), st.integers(0, 1 << 32), st.lists(keys, max_size=4))
def test_a_change_gives_new_incarnations_to_what_changed_and_to_nothing_else(
    layout: Layout, seed: int, some: list[bytes]
) -> None:
    changed = random_change(layout, random.Random(seed), some)
    assert changed.changes == layout.changes + 1
    for partition in changed.partitions:
        before, now = layout.incarnation(partition), changed.incarnation(partition)
        assert now == before or now == changed.changes
    assert changed.changes in changed.incarnations


@given(layouts(), st.integers(0, 1 << 32), st.lists(keys, max_size=4))
def test_a_random_change_depends_on_its_seed_only(layout: Layout, seed: int, some: list[bytes]) -> None:
    assert random_change(layout, random.Random(seed), some) == random_change(
        layout, random.Random(seed), some
    )
