"""The division of the key space: one owner for each key at each moment, and records that tell of every change."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_emulators.simulated_spanner.churn import ChurnLimits, next_change
from penstock_emulators.simulated_spanner.key_ranges import SPACE, ImmutableRanges, KeyRanges, MutableRanges
from penstock_emulators.simulated_spanner.record import (
    Children,
    PartitionEnd,
    PartitionEvent,
    PartitionStart,
)

STEP = 10
START = 1_000


def churned(
    kind: type[KeyRanges], seed: int, changes: int, initial: int = 2
) -> tuple[KeyRanges, list[dict[int, str]]]:
    """Apply random changes, one every STEP; returns the owners of some positions after each."""
    numbers = itertools.count()
    ranges = kind(START, initial, lambda: f"t{next(numbers)}")
    rng = random.Random(seed)
    positions = [rng.randrange(SPACE) for _ in range(20)] + [0, SPACE - 1]
    owners = [{position: ranges.owner(position).token for position in positions}]
    for number in range(changes):
        change = next_change(rng, ranges, ChurnLimits(least=1, most=6))
        at = START + (number + 1) * STEP
        if change.action == "split":
            ranges.split(change.tokens[0], at, 0, change.ways)
        elif change.action == "merge":
            ranges.merge(change.tokens, at, 0)
        else:
            ranges.move(change.tokens[0], at, 0, change.to)
        owners.append({position: ranges.owner(position).token for position in positions})
    return ranges, owners


modes = pytest.mark.parametrize("kind", [ImmutableRanges, MutableRanges])


@modes
@given(seed=st.integers(0, 1 << 32), changes=st.integers(0, 40))
def test_ranges_cover_the_key_space_without_gap_or_overlap(
    kind: type[KeyRanges], seed: int, changes: int
) -> None:
    ranges, _ = churned(kind, seed, changes)
    pieces = list(ranges.ranges())
    assert pieces[0][0] == 0
    assert pieces[-1][1] == SPACE
    assert all(left[1] == right[0] for left, right in itertools.pairwise(pieces))
    assert all(low < high for low, high, _ in pieces)


@modes
@given(seed=st.integers(0, 1 << 32), changes=st.integers(0, 40))
def test_the_owner_of_a_key_is_live_at_that_moment(kind: type[KeyRanges], seed: int, changes: int) -> None:
    ranges, owners = churned(kind, seed, changes)
    for number, at_moment in enumerate(owners):
        live = set(ranges.live_at(START + number * STEP))
        assert set(at_moment.values()) <= live
    assert set(ranges.live()) == set(ranges.live_at(START + changes * STEP))


@given(seed=st.integers(0, 1 << 32), changes=st.integers(1, 40))
def test_a_child_starts_when_its_parents_end_and_each_parent_announces_it(seed: int, changes: int) -> None:
    ranges, _ = churned(ImmutableRanges, seed, changes)
    announced: dict[str, set[str]] = {}
    for partition in ranges.partitions.values():
        assert (partition.end is None) == (not partition.records)
        if partition.end is not None:
            (last,) = partition.records
            assert isinstance(last, Children)
            assert last.timestamp == partition.end
            for child, parents in last.children:
                assert ranges.partitions[child].start == partition.end
                assert ranges.partitions[child].parents == parents
                announced.setdefault(child, set()).add(partition.token)
    for partition in ranges.partitions.values():
        assert announced.get(partition.token, set()) == set(partition.parents)


@given(seed=st.integers(0, 1 << 32), changes=st.integers(1, 40))
def test_each_change_of_owner_is_announced_by_both_partitions(seed: int, changes: int) -> None:
    ranges, owners = churned(MutableRanges, seed, changes)
    out, into = set(), set()
    for partition in ranges.partitions.values():
        for record in partition.records:
            if isinstance(record, PartitionEvent):
                out |= {(record.timestamp, record.token, to) for to in record.destinations}
                into |= {(record.timestamp, source, record.token) for source in record.sources}
    assert out == into
    for number, (before, after) in enumerate(itertools.pairwise(owners)):
        at = START + (number + 1) * STEP
        moved = {(at, before[p], after[p]) for p in before if before[p] != after[p]}
        assert moved <= out


@given(seed=st.integers(0, 1 << 32), changes=st.integers(1, 40))
def test_each_new_partition_is_started_once_and_an_end_record_is_the_last(seed: int, changes: int) -> None:
    ranges, _ = churned(MutableRanges, seed, changes)
    started = [
        (token, record.timestamp)
        for partition in ranges.partitions.values()
        for record in partition.records
        if isinstance(record, PartitionStart)
        for token in record.tokens
    ]
    new = {(each.token, each.start) for each in ranges.partitions.values() if each.parents}
    assert sorted(started) == sorted(new)
    for partition in ranges.partitions.values():
        ends = [n for n, record in enumerate(partition.records) if isinstance(record, PartitionEnd)]
        assert ends == ([] if partition.end is None else [len(partition.records) - 1])


def test_only_neighbours_merge_in_the_immutable_mode() -> None:
    ranges = ImmutableRanges(0, 3, iter("abc").__next__)
    with pytest.raises(ValueError, match="neighbouring"):
        ranges.merge(("a", "c"), 5, 0)


@modes
def test_an_ended_partition_cannot_change(kind: type[KeyRanges]) -> None:
    ranges = kind(0, 2, iter("abcdef").__next__)
    ranges.merge(("a", "b"), 5, 0)
    with pytest.raises(ValueError, match="no live partition"):
        ranges.split("b", 6, 0)
