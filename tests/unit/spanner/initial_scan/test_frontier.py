"""The frontier of a snapshot: the change stream opens only after all ranges were read."""

from __future__ import annotations

import pytest

from penstock.errors import LineageError
from penstock.io.change_streams.range_frontier import RangeAdvanced, RangeRead
from penstock.io.change_streams.tracker import Poll
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.initial_scan.frontier import KeyRange, ScanFrontier, Table
from penstock.io.spanner.initial_scan.tracker import ScanCoder, ScanTracker
from penstock.io.spanner.read import ReadSpannerFn
from penstock.io.spanner.source import ChangeStream
from penstock.io.spanner.tracker import FrontierCoder

T = 1_000
TABLE = Table("Orders", ("Id", "Total"), (1, 3), 1)
STREAM = Frontier.starting_at(T + 1, None)


def snapshot(*ranges: KeyRange, stream: Frontier | None = STREAM) -> ScanFrontier:
    return ScanFrontier(T, (TABLE,), dict(enumerate(ranges)), stream, T + 500, "NEW_ROW")


LOW, HIGH = KeyRange(0, "", '["5"]'), KeyRange(0, '["5"]', "")


def test_progress_in_a_range_is_the_last_key_that_was_claimed() -> None:
    frontier = snapshot(LOW, HIGH).advanced({1: '["7"]'})
    assert frontier.ranges == {0: LOW, 1: KeyRange(0, '["7"]', "", start_open=True)}


def test_the_stream_opens_only_after_all_ranges_of_a_whole_frontier() -> None:
    frontier = snapshot(LOW, HIGH).apply(RangeRead(0))
    assert frontier.settled() is frontier
    assert frontier.apply(RangeRead(1)).settled() == STREAM


def test_a_dealt_part_without_ranges_does_not_open_the_stream() -> None:
    first, second = snapshot(LOW, HIGH).deal(2)
    finished = first.apply(RangeRead(0))
    assert finished.settled() == finished
    assert not finished.done
    assert not finished.can_progress
    assert isinstance(ScanFrontier.join([finished, second]), ScanFrontier)
    assert ScanFrontier.join([finished, second.apply(RangeRead(1))]) == STREAM


def test_the_stream_does_not_open_within_a_bundle_that_reads_rows() -> None:
    frontier = snapshot(LOW).apply(RangeRead(0))
    assert not frontier.can_progress
    assert not frontier.done


def test_watermark_stays_at_the_time_of_the_snapshot_until_all_rows_are_read() -> None:
    frontier = snapshot(LOW, HIGH).advanced({0: '["3"]'}).apply(RangeRead(1))
    assert frontier.watermark == T
    assert frontier.apply(RangeRead(0)).watermark == T
    assert STREAM.watermark == T + 1
    assert frontier.exhausted().watermark is None


def test_ranges_are_dealt_evenly_and_keep_their_parts() -> None:
    many = snapshot(*[KeyRange(0, f'["{n}"]', f'["{n + 1}"]') for n in range(10)])
    parts = many.deal(3)
    assert sorted(len(part.ranges) for part in parts) == [3, 3, 4]
    assert [part.stream is None for part in parts] == [False, True, True]
    again = ScanFrontier.join(parts[::-1]).deal(3)
    assert [set(part.ranges) for part in again] == [set(part.ranges) for part in parts]
    few = snapshot(*many.ranges.values())
    for number in (0, 3, 6, 9):
        few = few.apply(RangeRead(number))
    assert [len(part.ranges) for part in few.deal(3)] == [2, 2, 2]


def test_parts_that_contradict_each_other_are_rejected() -> None:
    first, second = snapshot(LOW, HIGH).deal(2)
    with pytest.raises(LineageError, match="same range"):
        ScanFrontier.join([first, first])
    other = ScanFrontier(T + 1, (TABLE,), {})
    with pytest.raises(LineageError, match="different snapshots"):
        ScanFrontier.join([second, other])
    with pytest.raises(ValueError, match="join all parts first"):
        first.deal(2)
    with pytest.raises(LineageError, match="range 9"):
        first.apply(RangeRead(9))


def test_a_snapshot_without_a_stream_is_bounded_by_its_time() -> None:
    assert snapshot(LOW, stream=None).end == T
    assert snapshot(LOW).end is None
    assert ScanTracker(snapshot(LOW, stream=None)).is_bounded()
    assert not ScanTracker(snapshot(LOW)).is_bounded()


def test_frontiers_of_both_phases_survive_the_coder() -> None:
    coder = ScanCoder(FrontierCoder())
    for frontier in (snapshot(LOW, HIGH), snapshot(LOW, stream=None), *snapshot(LOW, HIGH).deal(2), STREAM):
        assert coder.decode(coder.encode(frontier)) == frontier
    assert coder.encode(STREAM) == FrontierCoder().encode(STREAM)
    assert coder == ScanCoder(FrontierCoder())


def test_residual_holds_the_rows_after_the_last_claim() -> None:
    tracker = ScanTracker(snapshot(LOW, HIGH))
    assert tracker.try_claim(RangeAdvanced(0, '["2"]'))
    primary, residual = tracker.try_split(0) or (None, None)
    assert primary is not None
    assert residual is not None
    assert primary.done
    assert residual.ranges == {0: KeyRange(0, '["2"]', '["5"]', start_open=True), 1: HIGH}
    assert not tracker.try_claim(RangeAdvanced(0, '["3"]'))
    assert tracker.check_done()


def test_a_range_of_unordered_rows_is_never_split_in_its_middle() -> None:
    tracker = ScanTracker(snapshot(LOW, HIGH), whole_ranges=True)
    assert tracker.try_claim(Poll())
    assert tracker.try_claim(RangeAdvanced(0, '["4"]'))
    assert tracker.try_split(0) is None
    assert tracker.try_claim(RangeAdvanced(0, '["1"]'))
    assert tracker.try_split(0) is None
    assert tracker.try_claim(RangeRead(0))
    assert not tracker.current_restriction().can_progress, "the bundle must end, so that it can be split"
    _, residual = tracker.try_split(0) or (None, None)
    assert residual is not None
    assert residual.ranges == {1: HIGH}


def test_rows_of_a_range_that_is_not_read_are_refused() -> None:
    with pytest.raises(LineageError, match="range 5"):
        ScanTracker(snapshot(LOW)).try_claim(RangeAdvanced(5, '["1"]'))


@pytest.fixture
def fn() -> ReadSpannerFn:
    return ReadSpannerFn(None)


def test_drain_finishes_the_snapshot_and_reads_no_changes(fn: ReadSpannerFn) -> None:
    element = ChangeStream("p", "i", "d", "S", T, None, "now")
    assert fn.truncate(element, snapshot(LOW)) == snapshot(LOW, stream=None)
    assert fn.truncate(element, snapshot()) is None
    assert fn.truncate(element, STREAM) is None


def test_rebalance_opens_the_stream_when_all_parts_are_read(fn: ReadSpannerFn) -> None:
    first, second = snapshot(LOW, HIGH).deal(2)
    dealt = fn.rebalance(None, [(first.apply(RangeRead(0)), None), (second, None)], 2)  # type: ignore[list-item]
    ((part, _),) = dealt
    assert part.ranges == {1: HIGH}
    ((stream, watermark),) = fn.rebalance(None, [(part.apply(RangeRead(1)), None)], 2)  # type: ignore[list-item]
    assert stream == STREAM
    assert watermark.micros * 1000 <= T + 1


def test_key_ranges_make_no_lineage_events(fn: ReadSpannerFn) -> None:
    at = snapshot(LOW)
    assert list(fn.kind_of(at).lineage_events(RangeRead(0), at)) == []
