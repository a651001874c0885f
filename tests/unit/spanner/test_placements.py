"""Placements that are added while a stream is read: since when their functions exist, and where reading begins."""

from __future__ import annotations

import pytest

from penstock.errors import PositionLostError
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.frontier import Advanced, Announced, Ended, Finished, Frontier
from penstock.io.spanner.placements import Looked, first_time, look_at_placements, step_of
from penstock.io.spanner.position import Position
from penstock.io.spanner.query import CURRENT_TIME, ROUTINES, STREAMS, Query, list_of_placements
from penstock.io.spanner.source import ChangeStream
from penstock.timestamps import format_timestamp, parse_timestamp

STREAM = ChangeStream("p", "i", "d", "Changes", 0, None)
LIST = list_of_placements("READ_Changes", ["READ_Changes_us"])
LATER = list_of_placements("READ_Changes", ["READ_Changes_us", "READ_Changes_eu"])


class Service:
    """A database whose functions began at given times; before, a query is refused or answered by nothing."""

    def __init__(self, now: int, refuses: bool = False, **began: int) -> None:
        self.now, self.refuses, self.began = now, refuses, began

    def rows(self, query: Query) -> list[list[str]]:
        if query.sql == CURRENT_TIME:
            return [[format_timestamp(self.now)]]
        if query.sql == STREAMS:
            return [["Changes"], ["Changes_old"]]
        if query.sql == ROUTINES:
            return [[f"READ_Changes_{each}"] for each in (*self.began, "old_us")]
        placement = next(each for each in self.began if f"READ_Changes_{each}(" in query.sql)
        asked = {name: text for name, _, text in query.params}["start_timestamp"]
        if parse_timestamp(asked or "") >= self.began[placement]:
            return [["a partition"]]
        if self.refuses:
            raise PositionLostError("too far in the past")
        return []


@pytest.mark.parametrize("began", [5, 6, 17, 99, 100])
def test_the_first_time_of_a_function_is_found_exactly(began: int) -> None:
    assert first_time(lambda timestamp: timestamp >= began, 5, 100) == began


@pytest.mark.parametrize("refuses", [False, True])
def test_a_function_that_was_added_is_read_from_the_time_when_it_began(refuses: bool) -> None:
    service = Service(9_000, refuses, us=0, eu=7_000, asia=7_500)
    assert look_at_placements(STREAM, service.rows, LIST, 5_000) == Looked(9_000, "READ_Changes_eu", 7_000)
    assert look_at_placements(STREAM, service.rows, LATER, 7_000) == Looked(9_000, "READ_Changes_asia", 7_500)


def test_a_look_without_a_new_function_ends_at_the_time_before_it() -> None:
    assert look_at_placements(STREAM, Service(9_000, us=0).rows, LIST, 5_000) == Looked(9_000)


def test_a_function_without_partitions_is_looked_at_again() -> None:
    with pytest.raises(UnreachableError, match="READ_Changes_eu has no partitions yet"):
        look_at_placements(STREAM, Service(9_000, us=0, eu=10_000).rows, LIST, 5_000)


def test_the_list_holds_the_watermark_at_the_last_look() -> None:
    frontier = Frontier.starting_at(5, roots=["READ_Changes_us\n", LIST])
    frontier = frontier.apply(Advanced("READ_Changes_us\n", Position(90)))
    assert frontier.watermark == 5
    assert frontier.apply(step_of(LIST, Looked(80), None)).watermark == 80


@pytest.mark.parametrize("mutable", [False, True])
def test_a_new_function_is_announced_once_and_opens_where_it_began(mutable: bool) -> None:
    frontier = Frontier.starting_at(5, roots=[LIST], mutable=mutable)
    step = step_of(LIST, Looked(80, "READ_Changes_eu", 70), None)
    assert isinstance(step, Announced)
    following = frontier.apply(step)
    assert following.open == {"READ_Changes_eu\n": Position(70), LATER: Position(70)}
    read = following.apply(Finished("READ_Changes_eu\n")).apply(step_of(LATER, Looked(80), None))
    assert read.open == {LATER: Position(80)}


def test_a_bounded_read_ends_at_a_look_after_its_end() -> None:
    assert step_of(LIST, Looked(80), 81) == Advanced(LIST, Position(80))
    assert step_of(LIST, Looked(81), 81) == Ended(LIST)
    assert step_of(LIST, Looked(90, "READ_Changes_eu", 82), 81) == Ended(LIST)
