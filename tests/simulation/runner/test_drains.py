"""A drain truncates each residual once, and the stream ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.core import RestrictionProvider

from tests.simulation.stream import run_stream

seen: list[Any] = []


class Endless(OffsetRestrictionTracker):
    def is_bounded(self) -> bool:
        return False


class Numbers(RestrictionProvider):
    """0 to 8; a drain leaves all or, `endless`, nothing of it, else the lower half of what it finds."""

    def __init__(self, endless: bool) -> None:
        self._endless = endless

    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, 8)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return Endless(restriction) if self._endless else OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return restriction.size()

    def truncate(self, element: int, restriction: OffsetRange) -> OffsetRange | None:
        return (
            None
            if self._endless
            else OffsetRange(restriction.start, (restriction.start + restriction.stop) // 2)
        )


def reading(endless: bool) -> beam.ParDo:
    class ReadFn(beam.DoFn):
        """Reads one number at a time."""

        def process(
            self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers(endless))
        ) -> Iterator[tuple[str, int]]:
            at = tracker.current_restriction().start
            if tracker.try_claim(at):
                yield "k", at
                tracker.defer_remainder()

    return beam.ParDo(ReadFn())


def note(element: Any) -> Any:
    seen.append(element)
    return element


def test_a_drain_that_leaves_nothing_to_read_still_closes_windows_and_ends() -> None:
    def build(p: beam.Pipeline) -> None:
        read = p | beam.Create([0]) | reading(endless=True)
        others = p | "others" >> beam.Create([("k", -1)])
        _ = (
            (read, others)
            | beam.Flatten()
            | beam.GroupByKey()
            | beam.MapTuple(lambda k, v: note((k, sorted(v))))
        )

    seen.clear()
    assert run_stream(build, draining=lambda: True).state.done
    assert seen == [("k", [-1])]


def test_a_residual_of_a_drain_is_not_truncated_again_when_it_is_read_in_pieces() -> None:
    def build(p: beam.Pipeline) -> None:
        _ = p | beam.Create([0]) | reading(endless=False) | beam.Map(note)

    seen.clear()
    assert run_stream(build, draining=lambda: True).state.done
    assert seen == [("k", 0), ("k", 1), ("k", 2), ("k", 3)]
