"""Lineage, case by case: a child opens after all its parents, and the watermark waits for every open partition."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from penstock.errors import LineageError
from penstock.io.change_streams.frontier import Slowest
from penstock.io.spanner.frontier import Advanced, Announced, Ended, Finished, Frontier, Waiting, abbreviate
from penstock.io.spanner.position import Position
from penstock.io.spanner.query import ROOT
from penstock.io.spanner.tracker import FrontierCoder


def opened(*tokens: str, at: int = 10, end: int | None = None) -> Frontier:
    return Frontier({token: Position(at) for token in tokens}, {}, end)


def test_a_stream_begins_with_the_root_partition_at_its_start() -> None:
    frontier = Frontier.starting_at(7, end=9)
    assert frontier.open == {ROOT: Position(7)}
    assert (frontier.watermark, frontier.end, frontier.done) == (7, 9, False)


def test_children_of_the_root_open_when_its_query_has_ended(children: Any) -> None:
    frontier = Frontier.starting_at(7).apply(Announced(ROOT, children(7, ("a", ()), ("b", ()))))
    assert frontier.open.keys() == {ROOT}
    assert frontier.apply(Finished(ROOT)).open == {"a": Position(7), "b": Position(7)}


def test_split_opens_both_children_when_the_parent_has_finished(children: Any) -> None:
    frontier = opened("p").apply(Announced("p", children(20, ("a", ("p",)), ("b", ("p",)))))
    assert frontier.open == {"p": Position(20)}
    assert frontier.apply(Finished("p")).open == {"a": Position(20), "b": Position(20)}


def test_children_of_several_records_of_one_partition_all_open(children: Any) -> None:
    frontier = opened("p").apply(Announced("p", children(20, ("a", ("p",)))))
    frontier = frontier.apply(Announced("p", children(20, ("b", ("p",))))).apply(Finished("p"))
    assert frontier.open.keys() == {"a", "b"}


def test_move_opens_the_child_at_its_start(children: Any) -> None:
    frontier = opened("p").apply(Announced("p", children(20, ("q", ("p",))))).apply(Finished("p"))
    assert frontier == opened("q", at=20)


def test_merged_child_starts_only_after_both_parents_finish(children: Any) -> None:
    merge = children(20, ("m", ("a", "b")))
    frontier = opened("a", "b").apply(Announced("a", merge)).apply(Finished("a"))
    assert frontier.open.keys() == {"b"}
    assert frontier.waiting == {"m": Waiting(20, frozenset("b"))}
    frontier = frontier.apply(Announced("b", merge))
    assert frontier.waiting == {"m": Waiting(20, frozenset("b"))}, "the finished parent was forgotten"
    assert frontier.apply(Finished("b")) == opened("m", at=20)


def test_merged_child_waits_for_a_parent_that_is_not_announced_yet(children: Any) -> None:
    merge = children(30, ("m", ("a", "late")))
    frontier = opened("a", "grandparent").apply(Announced("a", merge)).apply(Finished("a"))
    assert frontier.open.keys() == {"grandparent"}
    frontier = frontier.apply(Announced("grandparent", children(20, ("late", ("grandparent",)))))
    frontier = frontier.apply(Finished("grandparent"))
    assert frontier.open.keys() == {"late"}
    frontier = frontier.apply(Announced("late", merge)).apply(Finished("late"))
    assert frontier.open.keys() == {"m"}


def test_announcing_a_child_again_changes_nothing(children: Any) -> None:
    once = opened("a", "b").apply(Announced("a", children(20, ("m", ("a", "b")))))
    assert once.apply(Announced("a", children(20, ("m", ("a", "b"))))) == once


def test_child_that_does_not_name_its_announcer_is_refused(children: Any) -> None:
    with pytest.raises(LineageError, match="which names other parents"):
        opened("a").apply(Announced("a", children(20, ("m", ("b",)))))


@pytest.mark.parametrize("step", [Finished("gone"), Ended("gone"), Advanced("gone", Position(3))])
def test_steps_of_partitions_that_are_not_open_are_refused(step: Any) -> None:
    with pytest.raises(LineageError, match="not open"):
        opened("a").apply(step)


def test_children_after_the_end_are_not_waited_for(children: Any) -> None:
    frontier = opened("p", end=20)
    assert frontier.apply(Announced("p", children(21, ("a", ("p",))))).apply(Finished("p")).done
    assert frontier.apply(Announced("p", children(20, ("a", ("p",))))).apply(Finished("p")).open.keys() == {
        "a"
    }


def test_frontier_is_done_when_every_partition_has_ended() -> None:
    frontier = opened("a", "b", end=20).apply(Ended("a"))
    assert not frontier.done
    frontier = frontier.apply(Ended("b"))
    assert frontier.done
    assert frontier.watermark is None


def test_watermark_is_held_by_the_slowest_open_partition() -> None:
    frontier = opened("a", "b").apply(Advanced("a", Position(50)))
    assert frontier.watermark == 10
    assert frontier.apply(Advanced("b", Position(40))).watermark == 40


def test_watermark_is_held_by_waiting_partitions() -> None:
    frontier = Frontier({"b": Position(90)}, {"m": Waiting(20, frozenset("x"))}, dealt=True)
    assert frontier.watermark == 20


def test_dealt_parts_hold_each_partition_once_and_join_to_the_whole() -> None:
    frontier = opened("a", "b", "c", "d", "e")
    parts = frontier.deal(3)
    assert sorted(token for part in parts for token in part.open) == ["a", "b", "c", "d", "e"]
    assert sorted(len(part.open) for part in parts) == [1, 2, 2]
    assert all(part.dealt for part in parts)
    assert Frontier.join(parts) == frontier


def test_deal_to_one_slot_is_the_whole_frontier() -> None:
    frontier = opened("a", "b")
    assert frontier.deal(1) == [frontier]


def test_waiting_child_is_dealt_to_the_part_of_its_open_parent() -> None:
    frontier = Frontier({"a": Position(1), "b": Position(2)}, {"m": Waiting(5, frozenset("b"))})
    (part,) = [part for part in frontier.deal(2) if "b" in part.open]
    assert part.waiting.keys() == {"m"}


def test_partitions_that_are_behind_are_dealt_to_different_parts() -> None:
    hour = 3600 * 1_000_000_000
    for names in itertools.combinations("abcdef", 2):
        frontier = Frontier({name: Position(1 if name in names else hour) for name in "abcdef"}, {})
        assert [part.watermark for part in frontier.deal(2)] == [1, 1], names


def test_a_partition_keeps_its_part_while_positions_change() -> None:
    before = Frontier({name: Position(10 + at) for at, name in enumerate("abcdefgh")}, {}).deal(3)
    after = Frontier({name: Position(20 - at) for at, name in enumerate("abcdefgh")}, {}).deal(3)
    assert [part.open.keys() for part in before] == [part.open.keys() for part in after]


def test_a_dealt_part_is_not_dealt_again() -> None:
    part = opened("a", "b").deal(2)[0]
    with pytest.raises(ValueError, match="join all parts first"):
        part.deal(2)


def test_parents_that_finish_in_different_parts_open_the_child_at_the_join(children: Any) -> None:
    merge = children(20, ("m", ("a", "b")))
    left, right = sorted(opened("a", "b").deal(2), key=lambda part: min(part.open))
    left = left.apply(Announced("a", merge)).apply(Finished("a"))
    right = right.apply(Announced("b", merge)).apply(Finished("b"))
    assert not left.open
    assert not right.open
    assert Frontier.join([left, right]) == opened("m", at=20)


def test_a_part_does_not_open_a_child_whose_other_parent_another_part_holds(children: Any) -> None:
    left, right = sorted(opened("a", "b").deal(2), key=lambda part: min(part.open))
    left = left.apply(Announced("a", children(20, ("m", ("a", "b"))))).apply(Finished("a"))
    assert not left.open
    assert left.waiting == {"m": Waiting(20, frozenset("b"))}
    assert Frontier.join([left, right]).open == {"b": Position(10)}


def test_joining_parts_that_hold_the_same_partition_is_refused() -> None:
    with pytest.raises(LineageError, match="two parts"):
        Frontier.join([opened("a"), opened("a")])


def test_joining_parts_with_different_ends_is_refused() -> None:
    with pytest.raises(ValueError, match="same end"):
        Frontier.join([opened("a", end=1), opened("b", end=2)])
    with pytest.raises(ValueError, match="at least one"):
        Frontier.join([])


def test_child_whose_missing_parent_can_no_longer_come_opens_in_a_whole_frontier() -> None:
    waiting = {"m": Waiting(20, frozenset(("never", "named")))}
    behind = Frontier({"a": Position(20)}, waiting)
    assert behind.settled() is behind, "a living partition may still announce the parent"
    past = Frontier({"a": Position(21)}, waiting)
    assert past.settled().open == {"a": Position(21), "m": Position(20)}


def test_child_waits_for_an_open_parent_at_any_position() -> None:
    frontier = Frontier({"b": Position(500)}, {"m": Waiting(20, frozenset("b"))})
    assert frontier.settled() is frontier


def test_a_child_whose_missing_parent_may_be_in_another_part_keeps_waiting() -> None:
    part = Frontier({"a": Position(21)}, {"m": Waiting(20, frozenset(("elsewhere",)))}, dealt=True)
    assert part.settled() is part


def test_position_skips_only_what_was_seen_at_its_timestamp(data: Any) -> None:
    position = Position(5)
    for sequence in (0, 1, 3):
        after = position.after(data(10, "t", sequence))
        assert after is not None
        position = after
    assert position == Position(10, {"t": ((0, 1), (3, 3))})
    assert position.after(data(10, "t", 1)) is None
    assert position.after(data(10, "t", 2)) == Position(10, {"t": ((0, 3),)})
    assert position.after(data(10, "u", 1)) == Position(10, {"t": ((0, 1), (3, 3)), "u": ((1, 1),)})
    assert position.after(data(11, "t", 1)) == Position(11, {"t": ((1, 1),)})


def test_position_takes_records_of_one_transaction_in_any_order(data: Any) -> None:
    position: Position | None = Position(10)
    for sequence in (7, 2, 3, 0, 1):
        assert position is not None
        position = position.after(data(10, "t", sequence))
    assert position == Position(10, {"t": ((0, 3), (7, 7))})


def test_position_of_a_huge_transaction_stays_small(data: Any) -> None:
    position: Position | None = Position(10)
    for sequence in range(5000):
        assert position is not None
        position = position.after(data(10, "t", sequence))
    assert position == Position(10, {"t": ((0, 4999),)})


def test_record_below_the_position_is_refused(data: Any) -> None:
    with pytest.raises(LineageError, match=r"committed at 1970-01-01T00:00:00.000000009Z arrived after"):
        Position(10).after(data(9))


def test_record_sequence_that_is_no_number_is_refused(data: Any) -> None:
    with pytest.raises(LineageError, match="record_sequence 'x'"):
        Position(10).after(data(10, record_sequence="x"))


def test_heartbeat_never_moves_a_position_back_and_keeps_what_was_seen() -> None:
    position = Position(10, {"t": ((0, 0),)})
    assert position.reached(9) is position
    assert position.reached(10) is position
    assert position.reached(11) == Position(11)


def test_ten_thousand_partitions_are_dealt_joined_and_stored_in_four_megabytes() -> None:
    token = "x" * 160 + "{:06d}"
    opened = {token.format(n): Position(n, {"t": ((0, n),)}) for n in range(10_000)}
    waiting = {
        f"w{n}": Waiting(n, frozenset((token.format(n), token.format(n + 1)))) for n in range(0, 2_000, 7)
    }
    frontier = Frontier(opened, waiting)
    parts = [FrontierCoder().decode(FrontierCoder().encode(part)) for part in frontier.deal(16)]
    assert Frontier.join(parts) == frontier
    assert max(len(part.open) for part in parts) < 2 * min(len(part.open) for part in parts)
    assert len(FrontierCoder().encode(frontier)) < 4_000_000


def test_in_global_order_a_child_waits_for_every_partition_below_its_start(children: Any) -> None:
    split = children(20, ("c", ("a",)))
    frontier = (
        replace(opened("a", "b"), globally_ordered=True).apply(Announced("a", split)).apply(Finished("a"))
    )
    assert frontier.open.keys() == {"b"}
    assert frontier.apply(Advanced("b", Position(19))).open.keys() == {"b"}
    assert frontier.apply(Advanced("b", Position(20))).open.keys() == {"b", "c"}
    assert frontier.apply(Announced("b", children(20, ("d", ("b",))))).open.keys() == {"b", "c"}


def test_in_global_order_a_dealt_part_opens_nothing_and_the_join_does(children: Any) -> None:
    parts = replace(opened("a", "b"), globally_ordered=True).deal(2)
    for part in parts:
        (token,) = part.open
        child = children(20, (token * 2, (token,)))
        parts[parts.index(part)] = part.apply(Announced(token, child)).apply(Finished(token))
    assert not any(part.open for part in parts)
    assert Frontier.join(parts).open == {"aa": Position(20), "bb": Position(20)}


def test_the_slowest_partition_is_named_with_those_that_it_waits_for() -> None:
    a, b, m = "a" * 20, "b" * 20, "m" * 20
    waiting = {m: Waiting(5, frozenset({a, b}))}
    slowest = Frontier({a: Position(9), b: Position(7)}, waiting).slowest
    assert slowest == Slowest(abbreviate(m), 5, (abbreviate(a), abbreviate(b)))
    assert Frontier({a: Position(9), b: Position(4)}, waiting).slowest == Slowest(abbreviate(b), 4)
    assert Frontier({}, {}).slowest is None
