"""Splittable DoFns are split at any position: when they defer, by the limits of an epoch, initially, or by a drain.

`FnApiRunnerSplitTest` of Beam tests the same for FnApiRunner. Here each split position is tested on this
runner: each position is read once, in order, with its timestamp, and no watermark passes a position that is not
read yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.runner.tasks.epoch import EpochLimits
from tests.simulation.stream import run_stream

seen: list[tuple[str, int, int]] = []
windows: list[tuple[str, float, int]] = []


@dataclass(frozen=True, slots=True)
class Read:
    """How one element is read: the number of positions and of parts, and where it defers."""

    name: str
    size: int
    parts: int
    defers: frozenset[int]


class Parts(RestrictionProvider):
    """Positions from 0 to `size` (exclusive), split initially; a drain leaves no residual."""

    def initial_restriction(self, element: Read) -> OffsetRange:
        return OffsetRange(0, element.size)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Read, restriction: OffsetRange) -> int:
        return restriction.size()

    def split(self, element: Read, restriction: OffsetRange) -> Iterable[OffsetRange]:
        return restriction.split(max(1, -(-restriction.size() // element.parts)), 1)

    def truncate(self, element: Read, restriction: OffsetRange) -> None:
        """Return None: a drain leaves no residual."""


class ReadFn(beam.DoFn):
    """Reads positions; position n has timestamp n, and the watermark follows."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Read,
        tracker: Any = beam.DoFn.RestrictionParam(Parts()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[TimestampedValue]:
        start = position = tracker.current_restriction().start
        while tracker.try_claim(position):
            yield TimestampedValue((element.name, position), position)
            watermark.set_watermark(beam.utils.timestamp.Timestamp(position))
            position += 1
            if position in element.defers and position > start:
                tracker.defer_remainder()
                return


def note(pair: tuple[str, int], at: Any = beam.DoFn.TimestampParam) -> tuple[str, int]:
    seen.append((*pair, at.micros // 10**6))
    return pair


def note_window(pair: tuple[str, Iterable[int]], within: Any = beam.DoFn.WindowParam) -> None:
    windows.append((pair[0], float(within.start), len(list(pair[1]))))


names = st.integers(0, 2).map(str)
reads = st.lists(
    st.builds(
        Read, names, st.integers(0, 12), st.integers(1, 3), st.frozensets(st.integers(1, 11), max_size=3)
    ),
    max_size=4,
    unique_by=lambda read: read.name,
)
limits_of_epochs = st.builds(EpochLimits, st.just(0.02), st.integers(1, 5), st.just(64 << 20))


def reading(of: list[Read]) -> Callable[[beam.Pipeline], None]:
    def build(p: beam.Pipeline) -> None:
        pairs = p | beam.Create(of) | beam.ParDo(ReadFn()) | beam.Map(note)
        groups = pairs | beam.WindowInto(FixedWindows(4)) | beam.GroupByKey()
        _ = groups | beam.Map(note_window)

    seen.clear()
    windows.clear()
    return build


@settings(max_examples=settings().max_examples // 5, phases=[Phase.generate])
@given(reads, limits_of_epochs, st.integers(1, 3))
def test_a_read_split_anywhere_emits_each_position_once_in_order_and_in_its_window(
    of: list[Read], limits: EpochLimits, partitions: int
) -> None:
    assert run_stream(reading(of), partitions=partitions, limits=limits).state.done
    whole = Counter((read.name, n, n) for read in of for n in range(read.size))
    assert Counter(seen) == whole
    for read in of:
        for part in Parts().split(read, OffsetRange(0, read.size)) if read.size else ():
            mine = [n for name, _, n in seen if name == read.name and part.start <= n < part.stop]
            assert mine == list(range(part.start, part.stop))
    counts = Counter((name, n // 4 * 4.0) for name, _, n in whole)
    assert Counter(windows) == Counter((*key, count) for key, count in counts.items())


@pytest.mark.long(seconds=5)
@settings(max_examples=settings().max_examples // 5, phases=[Phase.generate])
@given(reads, limits_of_epochs, st.integers(1, 3), st.integers(0, 4))
def test_a_drain_keeps_what_was_read_and_closes_its_windows(
    of: list[Read], limits: EpochLimits, partitions: int, epochs: int
) -> None:
    committed = 0

    def count(*_: Any) -> None:
        nonlocal committed
        committed += 1

    final = run_stream(
        reading(of),
        partitions=partitions,
        limits=limits,
        on_commit=count,
        draining=lambda: committed >= epochs,
    )
    assert final.state.done
    assert max(Counter(seen).values(), default=1) == 1
    for read in of:
        for part in Parts().split(read, OffsetRange(0, read.size)) if read.size else ():
            mine = [n for name, _, n in seen if name == read.name and part.start <= n < part.stop]
            assert mine == list(range(part.start, part.start + len(mine)))
    counts = Counter((name, n // 4 * 4.0) for name, _, n in seen)
    assert Counter(windows) == Counter((*key, count) for key, count in counts.items())
