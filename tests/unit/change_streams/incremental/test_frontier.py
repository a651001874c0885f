"""The frontier of a change stream with snapshots, over the frontier of Spanner."""

from __future__ import annotations

import pytest

from penstock.errors import LineageError
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier, Lost, Merged
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.signals import ExecuteSnapshot, PauseSnapshot
from penstock.io.change_streams.incremental_tracker import IncrementalCoder, IncrementalTracker
from penstock.io.change_streams.tracker import Poll
from penstock.io.spanner.frontier import Advanced, Frontier
from penstock.io.spanner.position import Position
from penstock.io.spanner.tracker import FrontierCoder, SpannerTracker

NONE = SnapshotProgress()
READING, _ = NONE.receive(ExecuteSnapshot("1", ("T",)))
PAUSED, _ = READING.receive(PauseSnapshot("2"))
STREAM = Frontier({"a": Position(10), "b": Position(20)}, {}, 100)


def test_all_partitions_have_one_reader_while_a_snapshot_is_read():
    assert IncrementalFrontier(STREAM, READING).deal(2) == [IncrementalFrontier(STREAM, READING)]
    for progress in (NONE, PAUSED):
        parts = IncrementalFrontier(STREAM, progress).deal(2)
        assert [part.progress for part in parts] == [progress, None]
        assert not any(part.is_reading for part in parts)
        assert IncrementalFrontier.join(parts) == IncrementalFrontier(STREAM, progress)


def test_the_hold_keeps_the_watermark_below_the_rows_of_a_chunk():
    frontier = IncrementalFrontier(STREAM, READING).apply(Merged(None, READING, 5, "r"))
    assert frontier.watermark == 5
    assert frontier.apply(Merged(None, READING, None, "r")).watermark == 10


def test_a_bounded_read_ends_after_its_snapshot():
    ended = IncrementalFrontier(STREAM.exhausted(), READING)
    assert not ended.done
    assert ended.can_progress
    assert ended.watermark == 100
    assert IncrementalFrontier(STREAM.exhausted(), PAUSED).done
    assert IncrementalFrontier(STREAM.exhausted(), NONE).done


def test_a_part_with_the_snapshots_is_kept_when_its_partitions_end():
    first, second = IncrementalFrontier(STREAM, NONE).deal(2)
    first = IncrementalFrontier(first.stream.exhausted(), first.progress, dealt=True)
    assert not first.done
    with pytest.raises(LineageError, match="0 parts hold the snapshots"):
        IncrementalFrontier.join([second])


def test_a_claim_moves_its_partition_and_the_progress_together():
    tracker = IncrementalTracker(IncrementalFrontier(STREAM, NONE), SpannerTracker)
    assert tracker.try_claim(Merged(Advanced("a", Position(15)), READING, 7, "r"))
    _, residual = tracker.try_split(0)
    assert residual == IncrementalFrontier(
        Frontier({"a": Position(15), "b": Position(20)}, {}, 100), READING, 7, "r"
    )


def test_a_frontier_passes_through_its_coder():
    coder = IncrementalCoder(FrontierCoder())
    progress = PAUSED.with_channel("kafka", [[0, 7]])
    for frontier in (STREAM, *IncrementalFrontier(STREAM, progress, 5, "r").deal(2)):
        assert coder.decode(coder.encode(frontier)) == frontier


def test_a_part_that_loses_its_position_is_deferred_although_its_first_record_was_expected():
    part, _ = IncrementalFrontier(STREAM, NONE).deal(2)
    tracker = IncrementalTracker(part, SpannerTracker)
    assert tracker.try_claim(Poll(data_expected=True, first_record_pending=True))
    assert tracker.try_split(0) is None
    assert tracker.try_claim(Lost())
    _, residual = tracker.try_split(0)
    assert residual.lost
    tracker.check_done()
