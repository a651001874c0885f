"""YDB's frontier, for random lineages: deals, joins, watermarks, coders, and the order of parents and children."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.io.ydb.frontier import Finished, Frontier, Position, Waiting
from penstock.io.ydb.tracker import FrontierCoder

times = st.tuples(st.integers(0, 9), st.integers(0, 9))
schemas = st.sampled_from(["", f"{1:020d}{{}}", f"{2:020d}{{}}"])
parents = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple)
positions = st.builds(
    Position, st.integers(0, 100), st.integers(10, 100), st.booleans(), st.none() | times, schemas, parents
)


@st.composite
def frontiers(draw: Any) -> Frontier:
    """Draw complete frontiers: each waiting child waits for open, waiting or unknown parents."""
    opened = {number: draw(positions) for number in range(draw(st.integers(1, 8)))}
    waiting: dict[int, Waiting] = {}
    for number in range(100, 100 + draw(st.integers(0, 5))):
        known = st.sampled_from([*opened, *waiting, 900, 901])
        unfinished = draw(st.frozensets(known, min_size=1, max_size=3))
        waiting[number] = Waiting(
            unfinished, draw(st.none() | positions), draw(st.integers(0, 5)), draw(st.booleans())
        )
    return Frontier(opened, waiting, 5, draw(st.none() | st.integers(100, 200)), created_at=draw(times))


# The first two claims are word for word those of the other frontiers: the runner relies on them in every source.
@given(frontiers(), st.integers(1, 6))
def test_deal_then_join_is_identity(frontier: Frontier, n: int) -> None:
    parts = frontier.deal(n)
    assert len(parts) <= n
    assert not any(part.done for part in parts)
    assert Frontier.join(parts) == frontier


@given(frontiers(), st.integers(1, 6))
def test_the_lowest_part_has_a_watermark_that_is_not_above_the_whole(frontier: Frontier, n: int) -> None:
    watermarks = [part.watermark for part in frontier.deal(n)]
    assert min(w for w in watermarks if w is not None) <= (frontier.watermark or 0)


@given(frontiers())
def test_frontier_survives_its_coder(frontier: Frontier) -> None:
    coder = FrontierCoder()
    assert coder.decode(coder.encode(frontier)) == frontier


@given(st.integers(2, 5).flatmap(lambda n: st.permutations(range(n))), st.data())
def test_a_child_opens_once_after_its_last_parent_finishes_in_any_order(
    order: list[int], source: Any
) -> None:
    """The parents are dealt over parts and joined again at times that the test chooses."""
    everyone = tuple(sorted(order))
    parts = [Frontier({number: Position(1, 10 + number) for number in everyone}, {}, 5)]
    for count, number in enumerate(order, 1):
        parts = Frontier.join(parts).deal(source.draw(st.integers(1, 4)))
        (mine,) = (index for index, part in enumerate(parts) if number in part.open)
        adjacent = tuple(each for each in everyone if each != number)
        parts[mine] = parts[mine].apply(Finished(number, (77,), adjacent))
        if source.draw(st.booleans()):
            parts = [Frontier.join(parts)]
        opened = [part for part in parts if 77 in part.open]
        assert len(opened) <= 1
        assert not opened or count == len(order)
    (opened_at,) = Frontier.join(parts).open.values()
    assert (opened_at.offset, opened_at.watermark) == (0, 10)
