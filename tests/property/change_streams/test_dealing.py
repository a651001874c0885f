"""Dealing partitions out: each once, in parts of about the same size, and the same way in each epoch."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.io.change_streams.dealing import BEHIND_NANOS, Family, deal_families

NAMES = st.lists(st.binary(min_size=1, max_size=3), unique=True, max_size=24)


@st.composite
def families(draw: st.DrawFn) -> list[Family[tuple[bytes, int]]]:
    """Families of one to four members, some of them far behind."""
    found = []
    for name in draw(NAMES):
        members = [(name, member) for member in range(draw(st.integers(1, 4)))]
        found.append(Family(members, name, draw(st.integers(0, 3)) * BEHIND_NANOS))
    return found


@given(families(), st.integers(1, 8))
def test_each_member_is_in_one_part_with_its_family_and_no_part_is_empty(
    given_: list[Family[tuple[bytes, int]]], n: int
) -> None:
    parts = deal_families(given_, n)
    assert len(parts) == min(n, len(given_))
    assert all(parts)
    dealt = [member for part in parts for member in part]
    assert sorted(dealt) == sorted(member for family in given_ for member in family.members)
    for part in parts:
        names = {name for name, _ in part}
        assert sorted(part) == sorted(
            member for family in given_ if family.name in names for member in family.members
        )


@given(NAMES, st.integers(1, 8))
def test_parts_of_single_partitions_differ_by_one_at_most(names: list[bytes], n: int) -> None:
    sizes = [len(part) for part in deal_families([Family([name], name, 0) for name in names], n)]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


@given(families(), st.integers(1, 8), st.randoms(use_true_random=False))
def test_neither_the_order_nor_a_position_moves_a_partition(
    given_: list[Family[tuple[bytes, int]]], n: int, random: object
) -> None:
    near = [replace(family, watermark=random.randrange(BEHIND_NANOS)) for family in given_]  # type: ignore[attr-defined]
    later = [replace(family, watermark=random.randrange(BEHIND_NANOS)) for family in given_]  # type: ignore[attr-defined]
    random.shuffle(later)  # type: ignore[attr-defined]
    assert [set(part) for part in deal_families(near, n)] == [set(part) for part in deal_families(later, n)]


@given(st.lists(st.binary(min_size=1, max_size=3), unique=True, min_size=8, max_size=24), st.integers(2, 4))
def test_partitions_that_are_behind_are_spread_over_the_parts(names: list[bytes], n: int) -> None:
    behind = set(names[:n])
    parts = deal_families(
        [Family([name], name, 0 if name in behind else 2 * BEHIND_NANOS) for name in names], n
    )
    assert [len(behind.intersection(part)) for part in parts] == [1] * n
