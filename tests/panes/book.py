"""A text notation for expected panes: scripts of a TestStream, and panes as lines that a person can check.

A pane is written as `0-10: 1 2 | on time 1/0 last @end`: window, values in order, timing, index and
nonspeculative index (`-` for early panes), whether it is the first or the last pane, and the timestamp (`end`
is the window's last).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms import trigger as triggers
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import PaneInfoTiming

from tests.simulation.stream import run_stream

DISCARDING = triggers.AccumulationMode.DISCARDING
ACCUMULATING = triggers.AccumulationMode.ACCUMULATING
END = MAX_TIMESTAMP
TIMINGS = {
    PaneInfoTiming.EARLY: "early",
    PaneInfoTiming.ON_TIME: "on time",
    PaneInfoTiming.LATE: "late",
    PaneInfoTiming.UNKNOWN: "unknown",
}
seen: list[str] = []

Step = Callable[[TestStream], TestStream]


def elements(*stamped: str, tag: str | None = None) -> Step:
    """Return an event with elements, each written `value@seconds`."""
    values = []
    for each in stamped:
        value, _, at = each.partition("@")
        values.append(TimestampedValue(value, float(at)))
    return lambda stream: stream.add_elements(values, tag=tag)


def watermark(seconds: float, tag: str | None = None) -> Step:
    return lambda stream: stream.advance_watermark_to(seconds, tag=tag)


def clock(seconds: float) -> Step:
    """Return an event that advances processing time by this number of seconds."""
    return lambda stream: stream.advance_processing_time(seconds)


def script(*steps: Step) -> TestStream:
    stream = TestStream()
    for step in steps:
        stream = step(stream)
    return stream


def stamp(at: Timestamp, window: Any) -> str:
    """Return a timestamp as seconds, or `end`. Beam truncates timestamps to milliseconds when it encodes elements."""
    return (
        "end" if at.micros // 1000 == window.max_timestamp().micros // 1000 else f"{float(at.micros) / 1e6:g}"
    )


def span(window: Any) -> str:
    if isinstance(window, GlobalWindow):
        return "all"
    return f"{float(window.start):g}-{float(window.end):g}"


def pane(values: Any, window: Any, at: Timestamp, info: Any) -> str:
    nonspeculative = "-" if info.nonspeculative_index < 0 else info.nonspeculative_index
    ends = " first" * info.is_first + " last" * info.is_last
    shown = " ".join(sorted(values))
    numbers = f"{info.index}/{nonspeculative}"
    return f"{span(window)}: {shown} | {TIMINGS[info.timing]} {numbers}{ends} @{stamp(at, window)}"


class SeePaneFn(beam.DoFn):
    """Records each pane of a GroupByKey; shows the key unless it is `k`."""

    def process(
        self,
        element: tuple[str, Any],
        at: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        info: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[tuple[str, list[str]]]:
        key, values = element
        values = list(values)
        seen.append(("" if key == "k" else f"{key} ") + pane(values, window, at, info))
        yield key, values


class SeeFn(beam.DoFn):
    """Records each element as `window: element @timestamp`."""

    def process(
        self, element: Any, at: Any = beam.DoFn.TimestampParam, window: Any = beam.DoFn.WindowParam
    ) -> None:
        seen.append(f"{span(window)}: {element} @{stamp(at, window)}")


def keyed(value: str) -> tuple[str, str]:
    """Return the element with the key before the `/`, or with `k` if there is none."""
    key, slash, _ = value.partition("/")
    return (key, value) if slash else ("k", value)


def panes_of(into: beam.WindowInto, *steps: Step) -> list[str]:
    """Return the panes of a GroupByKey in these windows, in the order in which they fire."""
    return played(
        lambda p: (
            p | script(*steps) | beam.Map(keyed) | into | beam.GroupByKey() | "See" >> beam.ParDo(SeePaneFn())
        )
    )


def played(build: Callable[[beam.Pipeline], Any], partitions: int = 2) -> list[str]:
    """Run a pipeline and return the lines that its `SeeFn` and `SeePaneFn` recorded."""
    seen.clear()
    run_stream(build, partitions)
    return list(seen)
