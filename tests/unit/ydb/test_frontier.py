"""Which topic partitions may be read, and what holds the watermark."""

from __future__ import annotations

import pytest

from penstock.errors import LineageError
from penstock.io.ydb.frontier import Advanced, Ended, Finished, Frontier, Position, Waiting
from penstock.io.ydb.lineage import lineage_events
from penstock.io.ydb.tracker import FrontierCoder


def at(offset: int, watermark: int, **more: object) -> Position:
    return Position(offset, watermark, **more)  # type: ignore[arg-type]


def whole(*positions: Position, end: int | None = None) -> Frontier:
    return Frontier(dict(enumerate(positions)), {}, 5, end)


def test_children_of_a_split_open_when_their_parent_is_finished_at_its_watermark() -> None:
    frontier = whole(at(7, 70)).apply(Finished(0, (1, 2), ()))
    assert frontier.open == {
        1: at(0, 70, parents=((0, 7),)),
        2: at(0, 70, parents=((0, 7),)),
    }
    assert frontier.watermark == 70


def test_merged_child_opens_only_after_both_parents_finished_at_the_lower_watermark() -> None:
    frontier = whole(at(7, 70), at(9, 90)).apply(Finished(0, (2,), (1,)))
    assert frontier.open.keys() == {1}
    assert frontier.watermark == 70, "the waiting child holds the watermark"
    frontier = frontier.apply(Finished(1, (2,), (0,)))
    assert frontier.open == {2: at(0, 70, parents=((0, 7), (1, 9)))}


def test_merged_child_whose_other_parent_is_not_announced_yet_waits() -> None:
    """Partition 0 was split into 2 and 3, which lag; 1 was merged with 3."""
    frontier = whole(at(1, 10), at(1, 20)).apply(Finished(1, (4,), (3,)))
    assert frontier.waiting.keys() == {4}
    frontier = frontier.apply(Finished(0, (2, 3), ())).apply(Finished(3, (4,), (1,)))
    assert frontier.open.keys() == {2, 4}


def test_parents_in_two_parts_open_their_child_in_neither_but_after_the_join() -> None:
    parts = sorted(whole(at(7, 70), at(9, 90)).deal(2), key=lambda part: min(part.open))
    read = [parts[0].apply(Finished(0, (2,), (1,))), parts[1].apply(Finished(1, (2,), (0,)))]
    assert [dict(part.open) for part in read] == [{}, {}]
    assert not any(part.done or part.can_progress for part in read)
    assert Frontier.join(read).open.keys() == {2}


def test_partition_that_existed_at_the_start_begins_at_its_first_offset() -> None:
    frontier = Frontier({0: at(3, 5)}, {1: Waiting(frozenset({0}), None, 12, True)}, 5)
    frontier = frontier.apply(Advanced(0, at(4, 50))).apply(Finished(0, (1,), ()))
    assert frontier.open == {1: at(12, 50, sought=True, parents=((0, 4),))}


def test_waiting_partition_without_a_finished_parent_does_not_hold_the_watermark() -> None:
    frontier = Frontier({0: at(3, 50)}, {1: Waiting(frozenset({0}))}, 5)
    assert frontier.watermark == 50


def test_child_whose_parents_passed_the_end_is_not_read() -> None:
    frontier = whole(at(7, 101), end=100).apply(Finished(0, (1, 2), ()))
    assert frontier.done
    assert frontier.watermark is None


def test_parent_read_to_the_end_counts_as_finished_for_a_merge() -> None:
    frontier = whole(at(7, 101), at(9, 90), end=100).apply(Finished(1, (2,), (0,)))
    assert frontier.waiting.keys() == {2}
    frontier = frontier.apply(Ended(0))
    assert frontier.open.keys() == {2}, "the child may have changes of the other parent up to the end"


def test_child_of_a_parent_that_is_never_announced_is_read_when_nothing_else_remains() -> None:
    """Partition 0 would have been split into 3, which was merged with 1; but 0 is only read to the end."""
    frontier = whole(at(7, 90), at(9, 90), end=100).apply(Finished(1, (4,), (3,))).apply(Ended(0))
    assert frontier.open.keys() == {4}


def test_a_step_of_a_partition_that_is_not_open_is_refused() -> None:
    for step in (Finished(5, (), ()), Ended(5), Advanced(5, at(1, 1))):
        with pytest.raises(LineageError, match="partition 5"):
            whole(at(1, 1)).apply(step)
    part = whole(at(1, 1))
    with pytest.raises(LineageError, match="two parts"):
        Frontier.join([part, part])
    with pytest.raises(ValueError, match="cannot be dealt again"):
        whole(at(1, 1), at(1, 1)).deal(2)[0].deal(2)
    with pytest.raises(ValueError, match="parts of one frontier"):
        Frontier.join([whole(at(1, 1)), whole(at(1, 1), end=4)])


def test_scan_is_looked_for_in_children_only_if_it_was_in_all_parents() -> None:
    known = whole(at(7, 70, snapshot=(1, 2)), at(9, 90, snapshot=(0, 0)))
    child = known.apply(Finished(0, (2,), (1,))).apply(Finished(1, (2,), (0,))).open[2]
    assert child.snapshot == (1, 2)
    unknown = whole(at(7, 70, snapshot=(1, 2)), at(9, 90))
    child = unknown.apply(Finished(0, (2,), (1,))).apply(Finished(1, (2,), (0,))).open[2]
    assert child.snapshot is None


def test_child_has_the_newer_schema_of_its_parents() -> None:
    old, new = f"{9:020d}{{}}", f"{10:020d}{{}}"
    frontier = whole(at(7, 70, schema=new), at(9, 90, schema=old))
    child = frontier.apply(Finished(0, (2,), (1,))).apply(Finished(1, (2,), (0,))).open[2]
    assert child.schema == new


def test_the_slowest_partition_says_what_it_waits_for() -> None:
    frontier = whole(at(7, 70), at(9, 90)).apply(Finished(0, (2,), (1,)))
    assert str(frontier.slowest) == "partition 2, which waits for partition 1"
    assert frontier.summary == "1 partitions open and 1 waiting"


def test_schemas_are_encoded_once() -> None:
    schema = f"{1:020d}" + "x" * 1000
    frontier = Frontier({n: at(n, n, schema=schema) for n in range(50)}, {}, 5)
    encoded = FrontierCoder().encode(frontier)
    assert FrontierCoder().decode(encoded) == frontier
    assert len(encoded) < 5000


def test_lineage_events_name_parents_and_children() -> None:
    frontier = whole(at(7, 70), at(9, 90))
    events = [tuple(event) for event in lineage_events(Finished(0, (2,), (1,)), frontier)]
    assert events == [(70, "announced", "2", ("0", "1"), "0"), (70, "closed", "0", (), "")]
    assert [event.event for event in lineage_events(Ended(1), frontier)] == ["ended"]
    assert list(lineage_events(Advanced(0, at(8, 71)), frontier)) == []
