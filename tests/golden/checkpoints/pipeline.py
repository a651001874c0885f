"""A pipeline whose checkpoint holds every kind of content: residuals, state, timers, windows and Publications.

    numbers 0 … 119 (a splittable DoFn, ten in each epoch)
      ├─ by n % 3: count and bag in state, a timer at the end of each ten ─► published
      ├─ fixed windows with early panes, accumulated per key ─► published
      └─ sessions ─► published

The names of its steps and its types must never change: checkpoints of old versions refer to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms import trigger, userstate, window
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.utils.timestamp import Timestamp

from penstock.publish import PublishAfterCommit

NUMBERS = 120
IN_EPOCH = 10
TENS = userstate.TimerSpec("tens", beam.TimeDomain.WATERMARK)
COUNT = userstate.ReadModifyWriteStateSpec("count", VarIntCoder())
SEEN = userstate.BagStateSpec("seen", VarIntCoder())

published: list[str] = []
"""What the post-commit step has got in this process."""


class _Numbers(RestrictionProvider):
    def initial_restriction(self, element: str) -> OffsetRange:
        return OffsetRange(0, NUMBERS)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: str, restriction: OffsetRange) -> int:
        return restriction.size()


class ReadFn(beam.DoFn):
    """Emits numbers at their own second, and waits for the next epoch after every ten."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: str,
        tracker: Any = beam.DoFn.RestrictionParam(_Numbers()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[window.TimestampedValue]:
        number = tracker.current_restriction().start
        while tracker.try_claim(number):
            yield window.TimestampedValue(number, number)
            watermark.set_watermark(Timestamp(number))
            number += 1
            if number % IN_EPOCH == 0:
                tracker.defer_remainder()
                return


class CountFn(beam.DoFn):
    """Counts the numbers of each key, and emits the count and their sum when the watermark passes each ten."""

    def process(
        self,
        keyed: tuple[str, int],
        count: Any = beam.DoFn.StateParam(COUNT),
        seen: Any = beam.DoFn.StateParam(SEEN),
        timer: Any = beam.DoFn.TimerParam(TENS),
    ) -> None:
        count.write((count.read() or 0) + 1)
        seen.add(keyed[1])
        timer.set(Timestamp((keyed[1] // 10 + 1) * 10))

    @userstate.on_timer(TENS)
    def ring(
        self,
        key: str = beam.DoFn.KeyParam,
        count: Any = beam.DoFn.StateParam(COUNT),
        seen: Any = beam.DoFn.StateParam(SEEN),
    ) -> Iterator[str]:
        yield f"{key} has {count.read()} numbers with sum {sum(seen.read())}"


class PublishFn(beam.DoFn):
    """The post-commit step."""

    def process(self, element: str) -> None:
        published.append(element)


def build(pipeline: beam.Pipeline) -> None:
    numbers = pipeline | beam.Create(["all"]) | "Read" >> beam.ParDo(ReadFn()).with_output_types(int)
    keyed = numbers | "Key" >> beam.Map(lambda n: (f"k{n % 3}", n)).with_output_types(tuple[str, int])
    counted = keyed | "Count" >> beam.ParDo(CountFn()).with_output_types(str)
    early = trigger.AfterWatermark(early=trigger.AfterCount(4))
    fixed = beam.WindowInto(
        window.FixedWindows(40), trigger=early, accumulation_mode=trigger.AccumulationMode.ACCUMULATING
    )
    summed = (
        keyed
        | "Fixed" >> fixed
        | "Sum" >> beam.GroupByKey()
        | "Last pane" >> beam.ParDo(PaneFn("fixed")).with_output_types(str)
    )
    sessions = (
        keyed
        | "Every fifth" >> beam.Filter(lambda pair: pair[1] % 20 < 10)
        | "Sessions" >> beam.WindowInto(window.Sessions(8))
        | "Session" >> beam.GroupByKey()
        | "Session line" >> beam.ParDo(PaneFn("session")).with_output_types(str)
    )
    for name, lines in (("count", counted), ("fixed", summed), ("session", sessions)):
        all_in_one = lines | f"Global {name}" >> beam.WindowInto(window.GlobalWindows())
        _ = all_in_one | f"Publish {name}" >> PublishAfterCommit(PublishFn())


class PaneFn(beam.DoFn):
    """Turns the on-time pane of a window into a line."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def process(
        self,
        grouped: tuple[str, Any],
        span: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[str]:
        if pane.timing != 0:  # not an early pane
            values = sorted(grouped[1])
            yield f"{self._kind} {grouped[0]} {span.start.micros // 10**6}: {len(values)} {sum(values)}"
