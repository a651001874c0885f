"""A TestStream may get its events from a service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import StrUtf8Coder
from apache_beam.testing.test_stream import TestStream
from apache_beam.testing.test_stream_service import TestStreamServiceController
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from tests.simulation.stream import run_stream

seen: list[Any] = []
asked: list[Any] = []


class Reader:
    """Returns the events of a TestStream for any requested outputs."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events

    def read_multiple(self, outputs: Any) -> Iterator[Any]:
        asked.extend(outputs)
        yield from (event.to_runner_api(StrUtf8Coder()) for event in self._events)


def note(key: str, names: Any) -> None:
    seen.append(list(names))


def test_the_events_of_a_service_are_played_in_order() -> None:
    told = (  # as in Beam's own test, in thousandths: a service means microseconds where a payload means milliseconds
        TestStream(coder=StrUtf8Coder())
        .advance_watermark_to(10_000)
        .add_elements([TimestampedValue("a", 11_000)])
        .advance_watermark_to(20_000)
        .add_elements([TimestampedValue("late", 12_000), TimestampedValue("b", 21_000)])
        .advance_watermark_to_infinity()
    )
    service = TestStreamServiceController(reader=Reader(told._events))
    service.start()

    def build(p: beam.Pipeline) -> None:
        stream = TestStream(coder=StrUtf8Coder(), endpoint=service.endpoint).with_output_types(str)
        pairs = p | stream | beam.WindowInto(FixedWindows(10)) | beam.Map(lambda name: ("k", name))
        _ = pairs | beam.GroupByKey() | beam.MapTuple(note)

    try:
        run_stream(build)
    finally:
        service.stop()
    assert seen == [["a"], ["b"]]
    assert asked != []
