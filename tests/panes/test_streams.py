"""Several streams and groupings, compared with results computed by hand from Beam's model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import trigger as t
from apache_beam.transforms import window as w
from apache_beam.transforms.window import TimestampCombiner
from apache_beam.utils.windowed_value import WindowedValue

from tests.panes.book import (
    DISCARDING,
    SeeFn,
    SeePaneFn,
    elements,
    keyed,
    played,
    script,
    watermark,
)


def test_a_window_of_flattened_streams_waits_for_the_slower_one() -> None:
    steps = [
        *(watermark(0, tag) for tag in ("fast", "slow")),
        elements("1@1", tag="fast"),
        watermark(20, "fast"),
        elements("2@2", tag="slow"),
        watermark(10, "slow"),
        elements("3@3", tag="slow"),
    ]
    found = played(
        lambda p: (
            tuple((p | script(*steps)).values())
            | beam.Flatten()
            | beam.Map(keyed)
            | beam.WindowInto(w.FixedWindows(10))
            | beam.GroupByKey()
            | beam.ParDo(SeePaneFn())
        )
    )
    assert found == ["0-10: 1 2 | on time 0/0 first last @end"]


def test_streams_are_joined_per_window() -> None:
    steps = [
        *(watermark(0, tag) for tag in ("left", "right")),
        elements("l1@1", "l2@11", tag="left"),
        watermark(30, "left"),
        elements("r1@9", tag="right"),
        watermark(30, "right"),
    ]

    def build(p: beam.Pipeline) -> None:
        sides = p | script(*steps)
        both = {
            tag: sides[tag]
            | f"keys {tag}" >> beam.Map(lambda value: ("k", value))
            | f"windows {tag}" >> beam.WindowInto(w.FixedWindows(10))
            for tag in ("left", "right")
        }
        _ = both | beam.CoGroupByKey() | beam.MapTuple(lambda key, found: str(found)) | beam.ParDo(SeeFn())

    assert sorted(played(build)) == [
        "0-10: {'left': ['l1'], 'right': ['r1']} @end",
        "10-20: {'left': ['l2'], 'right': []} @end",
    ]


def test_a_reshuffle_keeps_windows_timestamps_and_panes() -> None:
    found = played(
        lambda p: (
            p
            | script(elements("1@1"), elements("2@2"), watermark(10))
            | beam.Map(keyed)
            | beam.WindowInto(
                w.FixedWindows(10),
                trigger=t.AfterWatermark(early=t.AfterCount(1)),
                accumulation_mode=DISCARDING,
                timestamp_combiner=TimestampCombiner.OUTPUT_AT_EARLIEST,
            )
            | beam.GroupByKey()
            | beam.Reshuffle()
            | beam.ParDo(SeePaneFn())
        )
    )
    assert found == [
        "0-10: 1 | early 0/- first @1",
        "0-10: 2 | early 1/- @2",
        "0-10:  | on time 2/0 last @end",
    ]


def test_a_grouping_after_a_grouping_receives_its_panes_on_time() -> None:
    found = played(
        lambda p: (
            p
            | script(elements("1@1", "2@12"), watermark(10), watermark(20))
            | beam.Map(keyed)
            | "Short" >> beam.WindowInto(w.FixedWindows(10))
            | beam.GroupByKey()
            | beam.MapTuple(lambda key, values: (key, "+".join(values)))
            | "Long" >> beam.WindowInto(w.FixedWindows(20))
            | "Again" >> beam.GroupByKey()
            | beam.ParDo(SeePaneFn())
        )
    )
    assert found == ["0-20: 1 2 | on time 0/0 first last @end"]


class BundleFn(beam.DoFn):
    """Keeps the panes of a bundle, and reads them when it ends."""

    def start_bundle(self) -> None:
        self.kept: list[Any] = []

    def process(self, element: tuple[str, Any], window: Any = beam.DoFn.WindowParam) -> None:
        self.kept.append((element[1], window))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for values, window in self.kept:
            yield WindowedValue(" ".join(sorted(values)), window.max_timestamp(), [window])


@pytest.mark.parametrize("mode", ["DISCARDING", "ACCUMULATING"])
def test_a_pane_can_be_read_until_its_bundle_ends(mode: str) -> None:
    windows = beam.WindowInto(
        w.FixedWindows(10),
        trigger=t.AfterWatermark(early=t.AfterCount(2)),
        accumulation_mode=getattr(t.AccumulationMode, mode),
    )
    steps = [elements("1@1", "2@2"), elements("3@3"), watermark(10), elements("4@14")]
    found = played(
        lambda p: (
            p
            | script(*steps)
            | beam.Map(keyed)
            | windows
            | beam.GroupByKey()
            | beam.ParDo(BundleFn())
            | beam.ParDo(SeeFn())
        )
    )
    second = "0-10: 3 @end" if mode == "DISCARDING" else "0-10: 1 2 3 @end"
    assert sorted(found) == sorted(["0-10: 1 2 @end", second, "10-20: 4 @end"])


def test_panes_can_be_combined_without_defaults() -> None:
    found = played(
        lambda p: (
            p
            | script(elements("a/1@1", "b/2@2"), watermark(10))
            | beam.Map(keyed)
            | beam.WindowInto(w.FixedWindows(10))
            | beam.GroupByKey()
            | beam.combiners.ToList().without_defaults()
            | beam.Map(lambda groups: sorted((key, list(values)) for key, values in groups))
            | beam.ParDo(SeeFn())
        )
    )
    assert found == ["0-10: [('a', ['a/1']), ('b', ['b/2'])] @end"]


def test_a_lifted_combiner_fires_as_often_as_its_windows() -> None:
    found = played(
        lambda p: (
            p
            | script(elements("1@1"), elements("2@2"), watermark(10), elements("3@3"))
            | beam.Map(lambda value: ("k", int(value)))
            | beam.WindowInto(
                w.FixedWindows(10),
                trigger=t.AfterWatermark(late=t.AfterCount(1)),
                accumulation_mode=t.AccumulationMode.ACCUMULATING,
                allowed_lateness=5,
            )
            | beam.CombinePerKey(sum)
            | beam.ParDo(SeeFn())
        )
    )
    assert found == ["0-10: ('k', 3) @end", "0-10: ('k', 6) @end"]


# Side inputs.


@pytest.mark.parametrize(("combiner", "at"), [("EARLIEST", "7"), ("LATEST", "8"), ("EOW", "end")])
def test_combined_values_get_the_same_timestamps_as_grouped_panes(combiner: str, at: str) -> None:
    """The earliest and latest timestamps ignore elements that are behind the output watermark."""
    windows = beam.WindowInto(
        w.FixedWindows(10), timestamp_combiner=getattr(TimestampCombiner, f"OUTPUT_AT_{combiner}")
    )

    def build(p: beam.Pipeline) -> None:
        given = p | script(watermark(5), elements("1@2", "1@3", "1@7", "1@8"), watermark(10))
        ones = given | windows | beam.Map(lambda value: ("k", int(value)))
        _ = ones | beam.CombinePerKey(sum) | beam.ParDo(SeeFn())

    assert played(build) == [f"0-10: ('k', 4) @{at}"]


# Side inputs of splittable DoFns.
