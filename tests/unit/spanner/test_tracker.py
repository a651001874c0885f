"""Claims and splits of the reader: the residual is exactly the unclaimed work."""

from __future__ import annotations

from typing import Any

import pytest
from apache_beam.coders.coders import BytesCoder, GlobalWindowCoder, WindowedValueCoder
from apache_beam.io.restriction_trackers import RestrictionProgress
from apache_beam.runners.sdf_utils import ThreadsafeRestrictionTracker
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from penstock.errors import LineageError
from penstock.io.change_streams.tracker import Poll
from penstock.io.change_streams.watermark import (
    FrontierWatermarkEstimator,
    FrontierWatermarkEstimatorProvider,
    beam_watermark,
)
from penstock.io.spanner.frontier import Advanced, Announced, Ended, Finished, Frontier, Waiting
from penstock.io.spanner.position import Position
from penstock.io.spanner.tracker import FrontierCoder, SpannerTracker


def frontier(end: int | None = None) -> Frontier:
    return Frontier({"a": Position(10), "b": Position(10)}, {}, end)


def test_residual_is_the_frontier_after_the_last_claimed_record(data: Any) -> None:
    tracker = SpannerTracker(frontier())
    seen = Position(20, {"t": ((0, 0),)})
    assert tracker.try_claim(Advanced("a", seen))
    split = tracker.try_split(0)
    assert split is not None
    primary, residual = split
    assert residual == Frontier({"a": seen, "b": Position(10)}, {})
    assert primary.done
    assert tracker.current_restriction() == primary
    assert tracker.check_done()


def test_nothing_is_claimed_after_a_split() -> None:
    tracker = SpannerTracker(frontier())
    assert tracker.try_claim(Poll())
    tracker.try_split(0)
    assert not tracker.try_claim(Poll())
    assert not tracker.try_claim(Advanced("a", Position(20)))
    assert tracker.try_split(0) is None


def test_a_split_is_postponed_until_a_step_is_claimed_or_none_is_expected() -> None:
    tracker = SpannerTracker(frontier())
    assert tracker.try_split(0) is None, "the reader has not begun"
    tracker.try_claim(Poll(data_expected=True))
    assert tracker.try_split(0) is None, "the service is at work"
    tracker.try_claim(Poll())
    split = tracker.try_split(0)
    assert split is not None
    assert split[1] == frontier()


def test_a_split_is_postponed_while_a_step_of_the_lowest_partition_is_pending() -> None:
    tracker = SpannerTracker(frontier())
    tracker.try_claim(Poll(first_record_pending=True))
    tracker.try_claim(Advanced("a", Position(20)))
    assert tracker.try_split(0) is None
    tracker.try_claim(Poll())
    assert tracker.try_split(0) is not None


def test_an_announcement_that_is_read_again_is_no_progress(children: Any) -> None:
    """Otherwise a runner that splits after each step would never get past two announcements of one partition."""
    announced = Announced("a", children(30, ("c", ("a",))))
    tracker = SpannerTracker(frontier())
    tracker.try_claim(announced)
    split = tracker.try_split(0)
    assert split is not None
    again = SpannerTracker(split[1])
    again.try_claim(announced)
    assert again.try_split(0) is None
    again.try_claim(Announced("a", children(30, ("d", ("a",)))))
    assert again.try_split(0) is not None


def test_a_waiting_part_can_be_deferred_at_once() -> None:
    part = Frontier({}, {"m": Waiting(20, frozenset("x"))}, dealt=True)
    split = SpannerTracker(part).try_split(0)
    assert split is not None
    assert split[1] == part


@pytest.mark.parametrize("fraction", [0.1, 0.5, 1.0])
def test_splits_at_other_fractions_are_refused(fraction: float) -> None:
    tracker = SpannerTracker(frontier())
    assert tracker.try_split(fraction) is None
    assert tracker.try_claim(Poll())


def test_claims_of_lineage_see_the_records_claimed_before(children: Any) -> None:
    tracker = SpannerTracker(frontier())
    tracker.try_claim(Advanced("a", Position(20)))
    tracker.try_claim(Announced("a", children(30, ("c", ("a",)))))
    tracker.try_claim(Finished("a"))
    assert tracker.current_restriction().open == {"b": Position(10), "c": Position(30)}


def test_record_of_a_partition_that_is_not_open_is_refused() -> None:
    with pytest.raises(LineageError, match="not open"):
        SpannerTracker(frontier()).try_claim(Advanced("gone", Position(20)))


def test_progress_is_never_complete_while_partitions_remain() -> None:
    tracker = SpannerTracker(frontier(end=99))
    for step in (Poll(), Advanced("a", Position(99)), Ended("a"), Poll()):
        tracker.try_claim(step)
        progress = tracker.current_progress()
        assert isinstance(progress, RestrictionProgress)
        assert progress.fraction_completed < 1
        assert progress.with_completed(10**18).fraction_completed < 1
    tracker.try_claim(Ended("b"))
    assert tracker.current_progress().fraction_completed == 1.0
    assert tracker.try_split(0) is None


def test_returning_with_partitions_left_is_an_error_that_counts_them() -> None:
    with pytest.raises(ValueError, match="2 partitions open and 0 waiting"):
        SpannerTracker(frontier()).check_done()


def test_reading_is_bounded_by_an_end() -> None:
    assert SpannerTracker(frontier(end=99)).is_bounded()
    assert not SpannerTracker(frontier()).is_bounded()


def test_deferring_keeps_the_remainder() -> None:
    tracker = ThreadsafeRestrictionTracker(SpannerTracker(frontier()))
    tracker.try_claim(Advanced("a", Position(20)))
    tracker.defer_remainder()
    status = tracker.deferred_status()
    assert status is not None
    assert status[0].open["a"] == Position(20)
    assert tracker.check_done()


def test_frontier_survives_its_coder() -> None:
    value = Frontier(
        {"b": Position(10, {"t1": ((0, 3), (7, 7)), "t0": ((1, 1),)}), "a": Position(5)},
        {"m": Waiting(20, frozenset(("x", "y")))},
        end=99,
        dealt=True,
        globally_ordered=True,
    )
    coder = FrontierCoder()
    assert coder.decode(coder.encode(value)) == value
    assert coder.is_deterministic()


def test_encoded_frontier_is_the_documented_json() -> None:
    value = Frontier({"b": Position(10, {"t": ((0, 3),)})}, {"m": Waiting(20, frozenset("yx"))}, None)
    assert FrontierCoder().encode(value) == (
        b'{"dealt":false,"end":null,"finished":{},"globally_ordered":false,"mutable":false,'
        b'"open":[["b",10,{"t":[[0,3]]}]],"v":1,"waiting":[["m",20,["x","y"],{}]]}'
    )


def test_frontier_of_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"format version 2 .* resume the checkpoint with the release"):
        FrontierCoder().decode(b'{"v":2}')


def test_estimator_never_goes_back_and_ignores_records() -> None:
    estimator = FrontierWatermarkEstimator(Timestamp(10))
    estimator.set_watermark(Timestamp(9))
    estimator.observe_timestamp(Timestamp(50))
    assert estimator.current_watermark() == Timestamp(10)
    estimator.set_watermark(Timestamp(11))
    assert estimator.get_estimator_state() == Timestamp(11)


def test_estimator_begins_at_the_frontier_and_survives_its_coder() -> None:
    provider = FrontierWatermarkEstimatorProvider()
    state = provider.initial_estimator_state(None, Frontier.starting_at(1_999_999))
    assert state == Timestamp(micros=1000)
    coder = provider.estimator_state_coder()
    for timestamp in (state, MAX_TIMESTAMP):
        assert provider.create_watermark_estimator(
            coder.decode(coder.encode(timestamp))
        ).current_watermark() == (timestamp)


def test_watermarks_are_rounded_down_like_element_timestamps_between_stages() -> None:
    commit_timestamp = 1_999_999
    coder = WindowedValueCoder(BytesCoder(), GlobalWindowCoder())
    element = coder.decode(coder.encode(GlobalWindows.windowed_value(b"", Timestamp(micros=1_999))))
    assert element.timestamp >= beam_watermark(commit_timestamp) == Timestamp(micros=1_000)


def test_a_finished_frontier_has_the_maximum_watermark() -> None:
    assert beam_watermark(None) == MAX_TIMESTAMP
