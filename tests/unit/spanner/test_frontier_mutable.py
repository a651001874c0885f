"""Rules 4 and 5 of the frontier: key ranges that move between partitions that live on."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import LineageError
from penstock.io.spanner.frontier import (
    Advanced,
    Announced,
    Ended,
    Finished,
    Frontier,
    MovedIn,
    Step,
    Waiting,
)
from penstock.io.spanner.position import Position
from penstock.io.spanner.record import PartitionStartRecord
from penstock.io.spanner.tracker import FrontierCoder


def at(timestamp: int, sequence: int = 0) -> Position:
    """Return the position after an event record."""
    return Position(timestamp, {"": ((sequence, sequence),)})


def moved_in(token: str, timestamp: int, *sources: str) -> MovedIn:
    return MovedIn(token, at(timestamp), frozenset(sources))


def started(token: str, timestamp: int, *tokens: str) -> Announced:
    return Announced(token, PartitionStartRecord(timestamp, "00000000", tokens))


def reading(end: int | None = None, **positions: int) -> Frontier:
    return Frontier({token: Position(p) for token, p in positions.items()}, {}, end, mutable=True)


def after(frontier: Frontier, *steps: Step) -> Frontier:
    for step in steps:
        frontier = frontier.apply(step)
    return frontier


def test_a_destination_waits_until_its_source_has_passed_the_move() -> None:
    held = after(reading(d=10, s=10), moved_in("d", 20, "s"))
    assert list(held.open) == ["s"]
    assert held.watermark == 10
    assert "d" in after(held, Advanced("s", Position(20))).waiting, "the source may have changes at the move"
    released = after(held, Advanced("s", Position(21)))
    assert released.open["d"] == at(20), "it continues after the move, which it has seen"
    assert released.watermark == 20


def test_a_destination_continues_at_once_when_its_sources_have_passed() -> None:
    frontier = after(reading(d=10, s=30, t=25), moved_in("d", 20, "s", "t"))
    assert frontier.open["d"] == at(20)


@pytest.mark.parametrize("last", [Finished("s"), Ended("s")])
def test_a_source_that_ended_has_passed_every_move(last: Step) -> None:
    frontier = after(reading(d=10, s=20, other=5), last)
    assert "d" in after(frontier, moved_in("d", 20, "s")).open


def test_a_destination_waits_for_a_source_that_is_not_announced_yet() -> None:
    held = after(reading(d=10, other=15), moved_in("d", 20, "late"))
    assert "d" in held.waiting
    announced = after(held, started("other", 16, "late"), Advanced("other", Position(30)))
    assert "d" in announced.waiting, "it is announced, but behind"
    assert "d" in after(announced, Advanced("late", Position(21))).open


def test_a_source_that_no_partition_can_announce_any_more_holds_no_destination() -> None:
    """A read that begins exactly at a move sees the move-in, but never the source that ended there."""
    held = after(reading(d=20, other=20), moved_in("d", 20, "ended before"))
    assert "d" in held.waiting
    assert "d" in after(held, Advanced("other", Position(21))).open


def test_partitions_that_exchange_keys_at_one_time_continue_together() -> None:
    frontier = after(reading(a=10, b=10, c=15), moved_in("a", 20, "b"), moved_in("b", 20, "a"))
    assert list(frontier.open) == ["c"], "c may still have changes up to the move"
    frontier = after(frontier, Advanced("c", Position(21)))
    assert frontier.open.keys() == {"a", "b", "c"}


def test_a_destination_that_is_its_own_source_waits_for_the_others_only() -> None:
    frontier = after(reading(d=10, s=30), moved_in("d", 20, "d", "s"))
    assert "d" in frontier.open


def test_a_new_partition_opens_when_the_announcing_one_has_passed_its_start() -> None:
    frontier = after(reading(a=10), started("a", 20, "n"))
    assert frontier.waiting["n"] == Waiting(20, frozenset("a"))
    assert after(frontier, Advanced("a", Position(21))).open["n"] == Position(20)


def test_the_partitions_of_the_root_open_when_its_query_ends() -> None:
    frontier = Frontier.starting_at(10, mutable=True)
    frontier = after(frontier, started("", 10, "a", "b"))
    assert list(frontier.open) == [""]
    assert after(frontier, Finished("")).open == {"a": Position(10), "b": Position(10)}


def test_a_partition_that_is_announced_again_is_not_read_again() -> None:
    frontier = after(reading(a=10, late=10), started("a", 20, "n"), Advanced("a", Position(30)))
    frontier = after(frontier, Advanced("n", Position(25)), started("late", 20, "n"))
    assert frontier.open["n"] == Position(25)
    frontier = after(frontier, Finished("n"), started("late", 20, "n"))
    assert "n" not in {*frontier.open, *frontier.waiting}, "it has ended and is remembered"
    passed = after(frontier, Advanced("late", Position(40)), Advanced("a", Position(41)))
    assert passed.finished == {}, "no partition can announce it any more"


def test_a_new_partition_after_the_end_is_not_read() -> None:
    frontier = after(reading(end=15, a=10), started("a", 20, "n"))
    assert "n" not in frontier.waiting


def test_a_dealt_part_opens_no_new_partition_but_releases_a_destination() -> None:
    parts = reading(a=10, b=12, s=13).deal(3)
    (of_a,) = [part for part in parts if "a" in part.open]
    of_a = after(of_a, started("a", 20, "n"), Advanced("a", Position(30)))
    assert "n" in of_a.waiting
    whole = Frontier.join([of_a, *[part for part in parts if "a" not in part.open]])
    assert whole.open["n"] == Position(20)
    parts = after(reading(d=10, s=10, x=1), moved_in("d", 20, "s")).deal(2)
    (one,) = [part for part in parts if "s" in part.open]
    assert {"d", "s"} == {*one.open, *one.waiting}, "a destination is in the part of its source"
    assert "d" in after(one, Advanced("s", Position(21))).open


def test_a_destination_whose_source_is_in_another_part_waits_for_the_join() -> None:
    of_d, of_s = sorted(reading(d=10, s=10).deal(2), key=lambda part: "s" in part.open)
    of_d = after(of_d, moved_in("d", 20, "s"))
    of_s = after(of_s, Finished("s"))
    assert not of_d.open
    assert not of_s.done, "the end of the source must reach the other part"
    assert "d" in Frontier.join([of_d, of_s]).open


def test_a_partition_that_two_parts_announce_is_read_once() -> None:
    of_a, of_b = sorted(reading(a=10, b=10).deal(2), key=lambda part: "b" in part.open)
    whole = Frontier.join([after(of_a, started("a", 20, "n")), after(of_b, started("b", 20, "n"))])
    assert list(whole.waiting) == ["n"]
    of_a, of_b = Frontier.join([after(of_a, started("a", 20, "n"), Advanced("a", Position(30))), of_b]).deal(
        2
    )
    holding, other = (of_a, of_b) if "n" in of_a.open else (of_b, of_a)
    assert "b" in other.open
    again = after(other, started("b", 20, "n"))
    joined = Frontier.join([after(holding, Advanced("n", Position(25))), again])
    assert joined.open["n"] == Position(25)


def test_two_parts_that_read_the_same_partition_are_an_error() -> None:
    with pytest.raises(LineageError, match="two parts of a frontier hold"):
        Frontier.join([reading(a=10), reading(a=20)])


def test_a_whole_frontier_is_done_when_all_partitions_have_ended() -> None:
    frontier = after(reading(end=30, a=10, b=10), Ended("a"), Finished("b"))
    assert frontier.done
    assert frontier.deal(3) == []


def test_a_mutable_frontier_survives_its_coder() -> None:
    frontier = after(
        reading(d=10, s=10, a=10, f=15),
        moved_in("d", 20, "s"),
        started("a", 20, "n"),
        Finished("f"),
    )
    coder: Any = FrontierCoder()
    assert coder.decode(coder.encode(frontier)) == frontier
    assert {"d", "n"} <= frontier.waiting.keys()
    assert frontier.finished == {"f": 15}
