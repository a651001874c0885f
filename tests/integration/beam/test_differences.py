"""The smallest pipelines that show why some of Beam's tests fail here; they explain the reasons on the page.

All results follow Beam's model. They differ because of worker processes, several bundles, timestamps in
microseconds and side inputs of streams. See also `tests/panes/test_side_inputs.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_stream import TestStream, WindowedValueHolder
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import trigger, window
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, WindowedValue

from penstock.runner import PySparkRunner

pytestmark = [pytest.mark.spark, pytest.mark.slow]

seen: list[int] = []


@pytest.fixture
def pipeline(spark: Any) -> beam.Pipeline:
    return beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions([]))


def test_a_variable_that_a_dofn_sets_stays_in_its_worker(pipeline: beam.Pipeline) -> None:
    with pipeline as p:
        kept = p | beam.Create([1, 2]) | beam.Map(lambda n: seen.append(n) or n)
        assert_that(kept, equal_to([1, 2]))
    assert seen == []


class _BundlesFn(beam.DoFn):
    def finish_bundle(self) -> Iterator[Any]:
        yield window.GlobalWindows.windowed_value("a bundle")

    def process(self, element: int) -> None:
        """Ignore the elements."""


def test_redistributed_elements_arrive_in_one_bundle_per_partition(pipeline: beam.Pipeline) -> None:
    with pipeline as p:
        bundles = p | beam.Create(range(10)) | beam.ParDo(_BundlesFn())
        assert_that(bundles, equal_to(["a bundle"] * 2))


def test_the_end_of_a_window_keeps_its_microseconds(pipeline: beam.Pipeline) -> None:
    with pipeline as p:
        sums = (
            p
            | beam.Create([("k", 1), ("k", 2)])
            | beam.Map(lambda kv: window.TimestampedValue(kv, 5))
            | beam.WindowInto(window.FixedWindows(10))
            | beam.CombinePerKey(sum)
            | beam.Reshuffle()
            | beam.Map(lambda kv, at=beam.DoFn.TimestampParam: (kv, at.micros))
        )
        assert_that(sums, equal_to([(("k", 3), 9_999_999)]))


def test_a_reshuffle_keeps_the_pane_info(pipeline: beam.Pipeline) -> None:
    with pipeline as p:
        firsts = (
            p
            | beam.Create([("k", 1)])
            | beam.GroupByKey()
            | beam.Reshuffle()
            | beam.Map(lambda group, pane=beam.DoFn.PaneInfoParam: (pane.is_first, pane.is_last))
        )
        assert_that(firsts, equal_to([(True, True)]))


def _with_side(p: beam.Pipeline, script: TestStream, side: beam.PTransform) -> beam.PCollection:
    streams = p | script
    view = beam.pvalue.AsList(streams["side"] | "Side" >> side)
    main = streams["main"] | "Main" >> beam.WindowInto(window.FixedWindows(10))
    return main | beam.Map(lambda element, values: (element, values), view)


def test_a_late_side_input_element_of_an_expired_window_is_dropped(
    pipeline: beam.Pipeline,
) -> None:
    script = TestStream().add_elements([window.TimestampedValue("m", 1)], tag="main")
    script = script.advance_watermark_to(10, tag="side")
    script = script.add_elements([window.TimestampedValue("s", 2)], tag="side")
    with pipeline as p:
        found = _with_side(p, script, beam.WindowInto(window.FixedWindows(10)))
        assert_that(found, equal_to([("m", [])]))


def test_a_side_input_is_ready_with_its_first_pane(pipeline: beam.Pipeline) -> None:
    script = TestStream().add_elements([window.TimestampedValue("s", 2)], tag="side")
    script = script.add_elements([window.TimestampedValue("m", 1)], tag="main")
    script = script.add_elements([window.TimestampedValue("t", 3)], tag="side")
    early = beam.WindowInto(
        window.FixedWindows(10),
        trigger=trigger.AfterWatermark(early=trigger.AfterCount(1)),
        accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
    )
    with pipeline as p:
        assert_that(_with_side(p, script, early), equal_to([("m", ["s"])]))


def test_elements_have_the_window_type_of_their_pcollection(pipeline: beam.Pipeline) -> None:
    foreign = WindowedValue("a", Timestamp(5), [window.IntervalWindow(5, 10)], PANE_INFO_UNKNOWN)
    with pipeline as p:
        found = (
            p
            | TestStream().add_elements([WindowedValueHolder(foreign)])
            | beam.Map(lambda element, within=beam.DoFn.WindowParam: (element, within))
        )
        assert_that(found, equal_to([("a", window.GlobalWindow())]))
