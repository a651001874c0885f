"""The lineage log has one event for each change of a partition that the reader has claimed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.runners.sdf_utils import RestrictionTrackerView, ThreadsafeRestrictionTracker

from penstock.io.change_streams.lineage import LINEAGE_EVENTS, LineageEvent
from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.spanner.frontier import Advanced, Announced, Ended, Finished, Frontier, MovedIn
from penstock.io.spanner.lineage import lineage_events
from penstock.io.spanner.pool import StreamPool
from penstock.io.spanner.position import Position
from penstock.io.spanner.prefetch import Prefetcher
from penstock.io.spanner.read import ReadSpannerFn
from penstock.io.spanner.record import PartitionStartRecord
from tests.unit.spanner.calls import Answer, calls_of, limits, new_backoff
from tests.unit.spanner.calls import children as children_message

AT_5 = Frontier({"p": Position(5), "q": Position(7)}, {})


def test_each_parent_announces_a_merged_partition_and_a_close_has_the_time_of_its_partition(
    children: Any,
) -> None:
    merge = Announced("p", children(9, ("m", ("q", "p"))))
    assert lineage_events(merge, AT_5) == [LineageEvent(9, "announced", "m", ("p", "q"), "p")]
    assert lineage_events(Finished("q"), AT_5) == [LineageEvent(7, "closed", "q")]
    assert lineage_events(Ended("p"), AT_5) == [LineageEvent(5, "ended", "p")]


def test_an_announcement_that_a_later_bundle_reads_again_is_one_event_for_each_parent(children: Any) -> None:
    """A bundle may end between the announcement and the end of the parent; the next one reads it again."""
    of_p, of_q = (Announced(parent, children(9, ("m", ("q", "p")))) for parent in "pq")
    after_p = AT_5.apply(of_p)
    assert lineage_events(of_p, after_p) == []
    assert lineage_events(of_q, after_p) == [LineageEvent(9, "announced", "m", ("p", "q"), "q")]
    assert lineage_events(of_q, after_p.apply(of_q)) == []


def test_moves_and_new_partitions_of_a_mutable_stream_are_events() -> None:
    moved = MovedIn("p", Position(8), frozenset({"q", "a"}))
    assert lineage_events(moved, AT_5) == [LineageEvent(8, "moved_in", "p", ("a", "q"))]
    begins = Announced("p", PartitionStartRecord(9, "0", ("n",)))
    assert lineage_events(begins, AT_5) == [LineageEvent(9, "announced", "n", (), "p")]


def test_records_and_heartbeats_are_no_lineage() -> None:
    assert lineage_events(Advanced("p", Position(6)), AT_5) == []


def test_an_event_is_a_line_of_json() -> None:
    event = LineageEvent(1767225600_000000001, "announced", "m", ("p",), "p")
    assert json.loads(json.dumps(event.document("change stream S"))) == {
        "time": "2026-01-01T00:00:00.000000001Z",
        "event": "announced",
        "stream": "change stream S",
        "partition": "m",
        "parents": ["p"],
        "announced_by": "p",
    }


def reading(answer: Answer, *, start: int, end: int) -> tuple[ReadSpannerFn, Any]:
    """Return a DoFn with lineage outputs that reads windows of `answer`, and its stream."""

    class Fn(ReadSpannerFn):
        def _pool(self, stream: Any) -> Any:
            ask, _, _ = calls_of(answer)
            return StreamPool(
                1 << 20, lambda ahead: Prefetcher(ask, new_backoff(), limits(), end, ahead=ahead)
            )

    read = ReadFromSpannerChangeStream(
        project="p", instance="i", database="d", change_stream="S", start=start, end=end, emulator_host="h:1"
    )
    assert not read._settings.lineage_output
    return Fn(read.with_lineage(beam.Map(print))._settings), read.stream


def test_the_reader_emits_the_events_of_the_steps_that_it_has_claimed() -> None:
    def answer(token: str, begin: int, until: int) -> Iterator[Any]:
        if token == "p":
            yield children_message(5_000, "p", "a")

    fn, stream = reading(answer, start=1_000, end=9_000)
    tracker = ThreadsafeRestrictionTracker(fn.create_tracker(Frontier({"p": Position(1_000)}, {}, 9_000)))
    estimator = FrontierWatermarkEstimator(beam_watermark(1_000))
    outputs = list(fn.process(stream, RestrictionTrackerView(tracker), estimator))
    assert {output.tag for output in outputs} == {LINEAGE_EVENTS}
    found = [(output.value.value["event"], output.value.value["partition"]) for output in outputs]
    assert found == [("announced", "a"), ("closed", "p"), ("ended", "a")]


def test_a_step_that_is_not_claimed_gives_no_event() -> None:
    def answer(token: str, begin: int, until: int) -> Iterator[Any]:
        yield children_message(5_000, "p", "a")

    fn, stream = reading(answer, start=1_000, end=9_000)

    class Split:
        """A tracker that was split before the first claim."""

        def current_restriction(self) -> Frontier:
            return Frontier({"p": Position(1_000)}, {}, 9_000)

        def try_claim(self, step: Any) -> bool:
            return False

    estimator = FrontierWatermarkEstimator(beam_watermark(1_000))
    assert list(fn.process(stream, Split(), estimator)) == []
