"""Spanner's frontier, for random lineages: deals, joins, watermarks, coders, and the order of parents and children."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.io.spanner.frontier import Announced, Finished, Frontier, Waiting
from penstock.io.spanner.position import Position
from penstock.io.spanner.record import ChildPartition, ChildPartitionsRecord, DataChangeRecord, Mods
from penstock.io.spanner.tracker import FrontierCoder

transactions = st.text(max_size=8)
runs = st.lists(st.integers(0, 50), unique=True, min_size=1, max_size=6).map(
    lambda numbers: tuple((2 * number, 2 * number) for number in sorted(numbers))
)
positions = st.builds(Position, st.integers(0, 100), st.dictionaries(transactions, runs, max_size=3))


@st.composite
def frontiers(draw: Any) -> Frontier:
    """Draw complete frontiers: each waiting child waits for open, waiting or unknown parents."""
    opened = {f"open{number}": draw(positions) for number in range(draw(st.integers(0, 8)))}
    waiting: dict[str, Waiting] = {}
    for number in range(draw(st.integers(0, 5))):
        parents = st.sampled_from([*opened, *waiting, "unknown1", "unknown2"])
        unfinished = draw(st.frozensets(parents, min_size=1, max_size=3))
        waiting[f"child{number}"] = Waiting(draw(st.integers(0, 100)), unfinished)
    end = draw(st.one_of(st.none(), st.integers(100, 200)))
    frontier = Frontier(opened, waiting, end, globally_ordered=draw(st.booleans()))
    while frontier.settled() is not frontier:
        frontier = frontier.settled()
    return frontier


# The first two claims are word for word those of Bigtable's frontier: the runner relies on them in every source.
@given(frontiers(), st.integers(1, 6))
def test_deal_then_join_is_identity(frontier: Frontier, n: int) -> None:
    parts = frontier.deal(n)
    assert len(parts) <= n
    assert not any(part.done for part in parts)
    assert (Frontier.join(parts) if parts else frontier) == frontier


@given(frontiers(), st.integers(1, 6))
def test_the_lowest_part_has_the_watermark_of_the_whole(frontier: Frontier, n: int) -> None:
    watermarks = [part.watermark for part in frontier.deal(n)]
    assert min((w for w in watermarks if w is not None), default=None) == frontier.watermark


@given(frontiers())
def test_frontier_survives_its_coder(frontier: Frontier) -> None:
    coder = FrontierCoder()
    assert coder.decode(coder.encode(frontier)) == frontier


@given(st.integers(2, 5).flatmap(lambda n: st.permutations(range(n))), st.data())
def test_a_child_opens_once_after_its_last_parent_finishes_in_any_order(
    order: list[int], source: Any
) -> None:
    """The parents are dealt over parts and joined again at times that the test chooses."""
    parents = [f"p{number}" for number in order]
    merge = ChildPartitionsRecord(50, "0", (ChildPartition("child", frozenset(parents)),))
    parts = [Frontier({token: Position(10) for token in sorted(parents)}, {})]
    for count, token in enumerate(parents, 1):
        parts = Frontier.join(parts).deal(source.draw(st.integers(1, 4)))
        (mine,) = (index for index, part in enumerate(parts) if token in part.open)
        parts[mine] = parts[mine].apply(Announced(token, merge)).apply(Finished(token))
        if source.draw(st.booleans()):
            parts = [Frontier.join(parts)]
        opened = [part for part in parts if "child" in part.open]
        assert len(opened) <= 1
        assert not opened or count == len(parents)
    assert Frontier.join(parts) == Frontier({"child": Position(50)}, {})


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=30), st.data())
def test_repeated_records_are_applied_once(numbers: list[tuple[int, int]], source: Any) -> None:
    """Records of one timestamp, in any order, with a prefix sent again after every checkpoint."""
    records = [_record(transaction, sequence) for transaction, sequence in dict.fromkeys(numbers)]
    position, taken = Position(0), []
    for record in records:
        again = records[: source.draw(st.integers(0, len(records)))]
        for sent in [*again, record]:
            after = position.after(sent)
            if after is not None:
                position = after
                taken.append((sent.server_transaction_id, sent.record_sequence))
    assert sorted(taken) == sorted((r.server_transaction_id, r.record_sequence) for r in records)


def _record(transaction: int, sequence: int) -> DataChangeRecord:
    return DataChangeRecord(
        10,
        f"{sequence:08d}",
        f"t{transaction}",
        True,
        "T",
        (),
        Mods(()),
        "INSERT",
        "NEW_ROW",
        1,
        1,
        "",
        False,
    )
