"""Elements that arrive before the first watermark are not late."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.trigger import AccumulationMode, AfterProcessingTime, Repeatedly
from apache_beam.transforms.window import FixedWindows

from tests.simulation.stream import run_stream

seen: list[Any] = []


def note(key: str, values: Iterable[int]) -> None:
    seen.append(list(values))


def test_elements_before_the_first_watermark_are_grouped_by_the_clock() -> None:
    def build(p: beam.Pipeline) -> None:
        script = TestStream()
        for n in range(3):
            script.add_elements([("k", n)]).advance_processing_time(1)
        script.advance_watermark_to_infinity()
        trigger = Repeatedly(AfterProcessingTime(2))
        windows = beam.WindowInto(
            FixedWindows(10), trigger=trigger, accumulation_mode=AccumulationMode.DISCARDING
        )
        _ = p | script | windows | beam.GroupByKey() | beam.MapTuple(note)

    seen.clear()
    run_stream(build)
    assert seen == [[0, 1], [2]]
