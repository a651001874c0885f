"""Claims and splits of the reader: the residual is exactly the unclaimed work."""

from __future__ import annotations

import json

import pytest
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from penstock.errors import LineageError
from penstock.io.bigtable.frontier import Advanced, Finished, Frontier, Segment
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.tracker import BigtableTracker, FrontierCoder
from penstock.io.change_streams.tracker import Poll
from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark

LOW, HIGH = KeyRange(b"", b"m"), KeyRange(b"m", b"")


def tracker(end: int | None = None) -> BigtableTracker:
    return BigtableTracker(Frontier.starting_at(1, [LOW, HIGH], end=end))


def test_a_split_leaves_exactly_the_unclaimed_work() -> None:
    tracked = tracker()
    assert tracked.try_claim(Advanced(LOW, "a", 5))
    assert tracked.try_claim(Advanced(LOW, "b", 7))
    split = tracked.try_split(0)
    assert split is not None
    primary, residual = split
    assert primary.done
    assert residual.positions[LOW].tokens == ((LOW, "b"),)
    assert not tracked.try_claim(Advanced(LOW, "c", 8))
    assert tracked.check_done()


def test_a_split_waits_for_the_first_step_or_a_poll_that_expects_no_data() -> None:
    tracked = tracker()
    assert tracked.try_split(0) is None
    assert tracked.try_claim(Poll(data_expected=True))
    assert tracked.try_split(0) is None
    assert tracked.try_claim(Poll())
    assert tracked.try_split(0) is not None


def test_a_waiting_part_can_be_split_at_once() -> None:
    waiting = Frontier((Segment(LOW, "t", 1, KeyRange(b"", b"z")),), dealt=True)
    assert BigtableTracker(waiting).try_split(0) is not None


def test_only_a_fraction_of_zero_is_granted() -> None:
    tracked = tracker()
    tracked.try_claim(Poll())
    assert tracked.try_split(0.5) is None


def test_a_claim_of_a_partition_that_may_not_be_open_is_refused() -> None:
    with pytest.raises(LineageError, match="may not be open"):
        tracker().try_claim(Advanced(KeyRange(b"a", b"b"), "t", 1))


def test_returning_with_work_left_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 segments to read"):
        tracker().check_done()


def test_progress_hides_nothing_from_a_split_until_the_end() -> None:
    tracked = tracker(end=9)
    assert tracked.current_progress().fraction_completed == 0.5
    for partition in (LOW, HIGH):
        tracked.try_claim(Finished(partition))
    assert tracked.current_progress().fraction_completed == 1.0
    assert tracked.check_done()


def test_a_tracker_is_bounded_if_its_frontier_has_an_end() -> None:
    assert tracker(end=9).is_bounded()
    assert not tracker().is_bounded()


def test_a_watermark_is_rounded_down_to_whole_milliseconds() -> None:
    assert beam_watermark(1_999_999) == Timestamp(micros=1000)
    assert beam_watermark(None) == MAX_TIMESTAMP


def test_the_watermark_estimator_never_goes_back() -> None:
    estimator = FrontierWatermarkEstimator(Timestamp(5))
    estimator.set_watermark(Timestamp(3))
    assert estimator.current_watermark() == Timestamp(5)


def test_a_frontier_of_another_version_is_refused_with_advice() -> None:
    with pytest.raises(ValueError, match="version 99 .* resume the checkpoint"):
        FrontierCoder().decode(json.dumps({"v": 99}).encode())


def test_row_keys_that_are_not_text_are_kept_in_a_checkpoint() -> None:
    cut = bytes(range(256))
    frontier = Frontier.starting_at(1, [KeyRange(b"", cut), KeyRange(cut, b"")])
    assert FrontierCoder().decode(FrontierCoder().encode(frontier)) == frontier
