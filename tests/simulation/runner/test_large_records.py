"""A fan-out that is too large for a commit record goes through a side file, which goes when it is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.core import RestrictionProvider

from penstock.runner.protocol.record import CommitRecord
from tests.simulation.stream import run_stream

COUNT, SIZE = 300, 4_000


class OneNumber(RestrictionProvider):
    def initial_restriction(self, element: Any) -> OffsetRange:
        return OffsetRange(0, 1)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return 1


class ReadFn(beam.DoFn):
    def process(
        self, element: bytes, tracker: Any = beam.DoFn.RestrictionParam(OneNumber())
    ) -> Iterator[bytes]:
        if tracker.try_claim(0):
            yield element


def test_a_large_fan_out_leaves_records_small_and_no_side_file_behind() -> None:
    residuals, records, sides, read = [], [], [], []

    def build(p: beam.Pipeline) -> None:
        fan_out = p | beam.Create([0]) | beam.FlatMap(lambda _: [b"%d" % n * SIZE for n in range(COUNT)])
        _ = fan_out | beam.ParDo(ReadFn()) | beam.combiners.Count.Globally() | beam.Map(lambda n: n)

    def look(record: CommitRecord, folder: Path) -> None:
        residuals.append(len(record.state.residuals))
        records.append(max(path.stat().st_size for path in folder.glob("checkpoint/records/*")))
        sides.append(len(list(folder.glob("checkpoint/side/*"))))
        read.append(record.state.done)

    run_stream(build, on_commit=look)
    assert max(residuals) == COUNT
    assert max(records) < 20_000
    assert (max(sides), sides[-1]) == (1, 0)
    assert read[-1]
