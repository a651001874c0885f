"""Lineage, case by case: B to D is the partition of the documentation's example."""

from __future__ import annotations

import pytest

from penstock.errors import LineageError
from penstock.io.bigtable.frontier import Advanced, Closed, Finished, Frontier, Position, Reopened, Segment
from penstock.io.bigtable.keys import EVERYTHING, KeyRange
from penstock.io.bigtable.record import Continuation
from penstock.io.bigtable.tracker import FrontierCoder

A_C, C_E = KeyRange(b"a", b"c"), KeyRange(b"c", b"e")
A_B, B_C, C_D, D_E = (KeyRange(bytes([n]), bytes([n + 1])) for n in b"abcd")
B_D, LOW, HIGH = KeyRange(b"b", b"d"), KeyRange(b"", b"m"), KeyRange(b"m", b"")


def reading(*partitions: KeyRange, watermark: int = 10, **options: object) -> Frontier:
    """Return a frontier whose partitions have all been read up to tokens named after their starts."""
    segments = [Segment(each, f"at {each.start!r}", watermark, each) for each in sorted(partitions)]
    return Frontier(tuple(segments), **options)  # type: ignore[arg-type]


def closed(partition: KeyRange, *ways: tuple[KeyRange, KeyRange]) -> Closed:
    return Closed(
        partition, tuple(Continuation(part, f"new {part.start!r}", target) for part, target in ways)
    )


def tokens(frontier: Frontier, partition: KeyRange) -> list[str]:
    return [token for _, token in frontier.positions[partition].tokens]


def test_a_new_frontier_reads_every_listed_partition_from_the_start() -> None:
    frontier = Frontier.starting_at(5, [HIGH, LOW])
    assert frontier.positions == {LOW: Position(LOW, (), 5), HIGH: Position(HIGH, (), 5)}
    assert frontier.watermark == 5


def test_a_list_of_partitions_with_a_hole_is_refused() -> None:
    with pytest.raises(LineageError, match="do not cover the table"):
        Frontier.starting_at(5, [LOW, KeyRange(b"n", b"")])


def test_a_split_under_a_reader_continues_in_both_halves() -> None:
    frontier = reading(A_C).apply(closed(A_C, (A_B, A_B), (B_C, B_C)))
    assert {part: position.tokens[0][1] for part, position in frontier.positions.items()} == {
        A_B: "new b'a'",
        B_C: "new b'b'",
    }


def test_a_merged_partition_opens_when_its_last_parent_has_closed() -> None:
    frontier = reading(A_B, B_C).apply(closed(A_B, (A_B, A_C)))
    assert list(frontier.positions) == [B_C]
    frontier = frontier.apply(closed(B_C, (B_C, A_C)))
    assert tokens(frontier, A_C) == ["new b'a'", "new b'b'"]


def test_three_parents_merge_in_any_order() -> None:
    for order in ([A_B, B_C, C_D], [C_D, A_B, B_C], [B_C, C_D, A_B]):
        frontier = reading(A_B, B_C, C_D)
        for number, parent in enumerate(order):
            assert (KeyRange(b"a", b"d") in frontier.positions) is False, number
            frontier = frontier.apply(closed(parent, (parent, KeyRange(b"a", b"d"))))
        assert len(tokens(frontier, KeyRange(b"a", b"d"))) == 3


def test_a_crossing_layout_opens_each_new_partition_with_the_tokens_of_its_parts() -> None:
    frontier = reading(A_B, B_D, D_E).apply(closed(B_D, (B_C, A_C), (C_D, C_E)))
    assert list(frontier.positions) == [A_B, D_E]
    frontier = frontier.apply(closed(A_B, (A_B, A_C))).apply(closed(D_E, (D_E, C_E)))
    assert tokens(frontier, A_C) == ["new b'a'", "new b'b'"]
    assert tokens(frontier, C_E) == ["new b'c'", "new b'd'"]


def test_reading_continues_after_a_split_that_merges_back_to_the_same_range() -> None:
    frontier = reading(A_C).apply(closed(A_C, (A_B, A_B), (B_C, B_C)))
    frontier = frontier.apply(closed(A_B, (A_B, A_C))).apply(closed(B_C, (B_C, A_C)))
    assert tokens(frontier, A_C) == ["new b'a'", "new b'b'"]


def test_a_checkpoint_before_the_first_merged_record_keeps_all_tokens_and_after_it_one() -> None:
    frontier = reading(A_B, B_C).apply(closed(A_B, (A_B, A_C))).apply(closed(B_C, (B_C, A_C)))
    stored = FrontierCoder().decode(FrontierCoder().encode(frontier))
    assert tokens(stored, A_C) == ["new b'a'", "new b'b'"]
    assert tokens(stored.apply(Advanced(A_C, "merged", 20)), A_C) == ["merged"]


def test_a_close_before_the_first_merged_record_replaces_all_parents() -> None:
    frontier = reading(A_B, B_C).apply(closed(A_B, (A_B, A_C))).apply(closed(B_C, (B_C, A_C)))
    frontier = frontier.apply(closed(A_C, (A_C, A_C)))
    assert tokens(frontier, A_C) == ["new b'a'"]


def test_a_token_wider_than_the_closed_partition_is_cut_to_it() -> None:
    frontier = reading(A_B, B_D, D_E).apply(closed(B_D, (A_C, A_C), (C_E, C_E)))
    assert [segment.range for segment in frontier.segments] == [A_B, B_C, C_D, D_E]


def test_a_token_of_other_keys_is_refused() -> None:
    with pytest.raises(LineageError, match="has a token for"):
        reading(A_B).apply(closed(A_B, (D_E, D_E)))


def test_a_target_outside_the_range_of_its_token_is_not_opened() -> None:
    frontier = reading(A_B).apply(closed(A_B, (A_B, C_D)))
    assert list(frontier.positions) == [A_B]


def test_the_watermark_is_held_by_waiting_segments() -> None:
    frontier = reading(A_B, B_C, watermark=10).apply(closed(A_B, (A_B, A_C)))
    assert frontier.apply(Advanced(B_C, "x", 99)).watermark == 10


def test_no_estimate_of_the_service_moves_a_watermark_back() -> None:
    frontier = reading(A_B, watermark=10).apply(Advanced(A_B, "x", 3))
    assert frontier.watermark == 10
    assert tokens(frontier, A_B) == ["x"]


def test_a_merge_that_never_completes_ends_when_the_waiting_segment_is_reopened() -> None:
    frontier = reading(A_B, B_C).apply(closed(A_B, (A_B, A_C)))
    frontier = frontier.apply(closed(B_C, (B_C, KeyRange(b"b", b"d"))))  # the layout has changed again
    assert frontier.positions == {}
    assert frontier.waiting == {A_B: A_C, B_C: B_D}
    frontier = frontier.apply(Reopened(A_B))
    assert tokens(frontier, A_B) == ["new b'a'"]
    assert frontier.waiting == {B_C: B_D}


def test_a_segment_that_is_being_read_cannot_be_reopened() -> None:
    with pytest.raises(LineageError, match="does not wait"):
        reading(A_B).apply(Reopened(A_B))


def test_a_step_of_a_partition_that_may_not_be_open_is_refused() -> None:
    with pytest.raises(LineageError, match="may not be open"):
        reading(A_B).apply(Finished(B_C))


def test_a_dealt_part_waits_for_the_others_and_never_reopens_what_they_may_complete() -> None:
    one, two = sorted(reading(A_B, B_C).deal(2), key=lambda part: part.segments[0].range)
    one = one.apply(closed(A_B, (A_B, A_C)))
    assert one.positions == {}
    assert one.waiting == {}
    two = two.apply(closed(B_C, (B_C, A_C)))
    assert tokens(Frontier.join([one, two]), A_C) == ["new b'a'", "new b'b'"]


def test_segments_that_wait_for_each_other_are_dealt_together() -> None:
    frontier = reading(A_B, B_C, C_D).apply(closed(A_B, (A_B, A_C)))
    parts = frontier.deal(3)
    assert sorted([segment.range for segment in part.segments] for part in parts) == [[A_B, B_C], [C_D]]


def test_parts_that_hold_the_same_keys_cannot_be_joined() -> None:
    with pytest.raises(LineageError, match="two segments"):
        Frontier.join([reading(A_B, dealt=True), reading(A_B, dealt=True)])


def test_a_dealt_part_is_not_dealt_again() -> None:
    with pytest.raises(ValueError, match="join all parts first"):
        reading(A_B, dealt=True).deal(2)


def test_the_end_time_is_reached_while_a_merge_is_pending() -> None:
    """The other parent was read to the end: its keys get a token again, and what comes for them is dropped."""
    frontier = reading(LOW, HIGH, end=50).apply(closed(LOW, (LOW, EVERYTHING)))
    frontier = frontier.apply(Finished(HIGH))
    (filler,) = (position for position in frontier.positions.values())
    assert (filler.partition, filler.tokens, filler.bounded) == (HIGH, (), False)
    frontier = frontier.apply(closed(HIGH, (HIGH, EVERYTHING)))
    assert len(tokens(frontier, EVERYTHING)) == 2
    assert frontier.positions[EVERYTHING].bounded
    emits = frontier.key_filter()
    assert emits is not None
    assert emits(b"a")
    assert not emits(b"z")
    assert frontier.apply(Finished(EVERYTHING)).done


def test_a_row_range_reads_only_the_partitions_that_it_touches() -> None:
    frontier = Frontier.starting_at(5, [LOW, HIGH], KeyRange(b"a", b"b"))
    assert list(frontier.positions) == [LOW]
    emits = frontier.key_filter()
    assert emits is not None
    assert [emits(key) for key in (b"a", b"aa", b"b", b"z")] == [True, True, False, False]


def test_a_merge_across_the_border_of_a_row_range_gets_the_token_from_outside() -> None:
    frontier = Frontier.starting_at(5, [LOW, HIGH], KeyRange(b"a", b"b"))
    frontier = frontier.apply(closed(LOW, (LOW, EVERYTHING)))
    assert frontier.positions == {HIGH: Position(HIGH, (), 5, bounded=False)}
    frontier = frontier.apply(closed(HIGH, (HIGH, EVERYTHING)))
    assert len(tokens(frontier, EVERYTHING)) == 2
    back = frontier.apply(closed(EVERYTHING, (LOW, LOW), (HIGH, HIGH)))
    assert list(back.positions) == [LOW]


def test_a_thousand_partitions_are_dealt_and_joined_quickly() -> None:
    cuts = [b"%04d" % number for number in range(1000)]
    whole = [KeyRange(*ends) for ends in zip([b"", *cuts], [*cuts, b""], strict=True)]
    frontier = Frontier.starting_at(1, whole)
    parts = frontier.deal(8)
    assert {len(part.segments) for part in parts} <= {125, 126}
    assert Frontier.join(parts) == frontier
