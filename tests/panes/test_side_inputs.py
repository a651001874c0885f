"""Side inputs in streams, compared with results computed by hand from Beam's model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms import trigger as t
from apache_beam.transforms import window as w
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.userstate import (
    CombiningValueStateSpec,
)
from apache_beam.utils.timestamp import Duration

from tests.panes.book import (
    DISCARDING,
    END,
    SeeFn,
    SeePaneFn,
    Step,
    elements,
    keyed,
    played,
    script,
    watermark,
)

EACH = t.Repeatedly(t.AfterCount(1))


class AsideFn(beam.DoFn):
    """Emits an element together with its side input."""

    def process(self, element: str, side: Any) -> Iterator[str]:
        yield f"{element} with {sorted(side) if isinstance(side, (list, dict)) else side}"


def beside(side: Any, view: Any, *steps: Step, windows: Any = None) -> list[str]:
    """Return what elements of the stream `main` see; `side` is the windowing of the stream `side`."""

    def build(p: beam.Pipeline) -> None:
        streams = p | script(*steps)
        aside = streams["side"] | "Side" >> side
        main = streams["main"] | "Main" >> (windows or beam.WindowInto(w.FixedWindows(10)))
        _ = main | beam.ParDo(AsideFn(), view(aside)) | beam.ParDo(SeeFn())

    return played(build)


BOTH = [watermark(0, "main"), watermark(0, "side")]


def test_an_element_waits_until_the_side_input_window_ends() -> None:
    steps = [*BOTH, elements("m@1", tag="main"), watermark(50, "main"), elements("s@2", tag="side")]
    steps += [elements("t@3", "u@13", tag="side"), watermark(10, "side")]
    assert beside(beam.WindowInto(w.FixedWindows(10)), beam.pvalue.AsList, *steps) == [
        "0-10: m with ['s', 't'] @1"
    ]


def test_a_window_without_elements_is_empty_after_its_end() -> None:
    steps = [*BOTH, elements("m@1", tag="main"), elements("s@12", tag="side"), watermark(10, "side")]
    assert beside(beam.WindowInto(w.FixedWindows(10)), beam.pvalue.AsList, *steps) == ["0-10: m with [] @1"]


def test_an_empty_window_gives_the_default_value() -> None:
    steps = [*BOTH, elements("m@1", tag="main"), watermark(10, "side")]
    view = lambda side: beam.pvalue.AsSingleton(side, default_value="nothing")  # noqa: E731
    assert beside(beam.WindowInto(w.FixedWindows(10)), view, *steps) == ["0-10: m with nothing @1"]


def test_side_input_windows_may_be_longer_than_main_input_windows() -> None:
    steps = [
        *BOTH,
        elements("m@1", "n@15", tag="main"),
        elements("s@5", "t@18", tag="side"),
        watermark(20, "side"),
    ]
    assert sorted(beside(beam.WindowInto(w.FixedWindows(20)), beam.pvalue.AsList, *steps)) == [
        "0-10: m with ['s', 't'] @1",
        "10-20: n with ['s', 't'] @15",
    ]


def test_waiting_elements_hold_the_watermark() -> None:
    steps = [*BOTH, elements("m@1", tag="main"), watermark(100, "main"), elements("s@2", tag="side")]

    def build(p: beam.Pipeline) -> None:
        streams = p | script(*steps, watermark(10, "side"))
        side = streams["side"] | "Side" >> beam.WindowInto(w.FixedWindows(10))
        _ = (
            streams["main"]
            | "Main" >> beam.WindowInto(w.FixedWindows(10))
            | beam.ParDo(AsideFn(), beam.pvalue.AsList(side))
            | beam.Map(lambda value: ("k", value))
            | beam.GroupByKey()
            | beam.ParDo(SeePaneFn())
        )

    assert played(build) == ["0-10: m with ['s'] | on time 0/0 first last @end"]


def test_a_triggered_side_input_shows_its_latest_pane() -> None:
    side = beam.WindowInto(w.GlobalWindows(), trigger=EACH, accumulation_mode=DISCARDING)
    steps = [*BOTH, elements("m@1", tag="main"), elements("s@1", tag="side"), elements("n@2", tag="main")]
    steps += [elements("t@2", tag="side"), elements("o@3", tag="main")]
    assert beside(side, beam.pvalue.AsSingleton, *steps) == [
        "0-10: m with s @1",
        "0-10: n with s @2",
        "0-10: o with t @3",
    ]


def test_a_new_pane_replaces_the_previous_one_in_the_epoch_in_which_it_arrives() -> None:
    class BothFn(beam.DoFn):
        def process(self, element: str, latest: Any, second: Any) -> Iterator[str]:
            yield f"{element} with {latest} and {second}"

    def build(p: beam.Pipeline) -> None:
        streams = p | script(
            *BOTH, elements("m@1", tag="main"), elements("s@1", tag="side"), elements("t@2", tag="side")
        )
        each = beam.WindowInto(w.GlobalWindows(), trigger=EACH, accumulation_mode=DISCARDING)
        latest = streams["side"] | "Each" >> each
        second = latest | beam.Filter(lambda value: value == "t")
        views = beam.pvalue.AsSingleton(latest), beam.pvalue.AsSingleton(second)
        _ = streams["main"] | beam.ParDo(BothFn(), *views) | beam.ParDo(SeeFn())

    assert played(build) == ["all: m with t and t @1"]


def test_accumulating_panes_contain_all_elements_so_far() -> None:
    side = beam.WindowInto(w.GlobalWindows(), trigger=EACH, accumulation_mode=t.AccumulationMode.ACCUMULATING)
    steps = [*BOTH, elements("s@1", tag="side"), elements("t@2", tag="side"), elements("m@1", tag="main")]
    assert beside(side, beam.pvalue.AsList, *steps) == ["0-10: m with ['s', 't'] @1"]


def test_a_late_pane_is_visible_to_later_elements() -> None:
    side = beam.WindowInto(
        w.FixedWindows(10), accumulation_mode=t.AccumulationMode.ACCUMULATING, allowed_lateness=50
    )
    steps = [*BOTH, elements("s@1", tag="side"), watermark(10, "side"), elements("m@1", tag="main")]
    steps += [elements("t@2", tag="side"), elements("n@2", tag="main")]
    assert beside(side, beam.pvalue.AsList, *steps) == ["0-10: m with ['s'] @1", "0-10: n with ['s', 't'] @2"]


def test_a_bounded_side_input_is_available_from_the_start() -> None:
    def build(p: beam.Pipeline) -> None:
        side = p | beam.Create([("x", 1), ("y", 2)])
        main = p | script(elements("m@1"))
        _ = main | beam.ParDo(AsideFn(), beam.pvalue.AsDict(side)) | beam.ParDo(SeeFn())

    assert played(build) == ["all: m with ['x', 'y'] @1"]


def test_a_stateful_dofn_can_read_a_side_input() -> None:
    class JoinFn(beam.DoFn):
        COUNT = CombiningValueStateSpec("count", combine_fn=sum)

        def process(
            self, element: tuple[str, str], side: Any, count: Any = beam.DoFn.StateParam(COUNT)
        ) -> Iterator[str]:
            count.add(1)
            yield f"{element[1]} is {count.read()} with {side}"

    def build(p: beam.Pipeline) -> None:
        streams = p | script(
            *BOTH,
            elements("a@1", "b@2", tag="main"),
            watermark(END, "main"),
            elements("s@1", tag="side"),
            watermark(10, "side"),
        )
        side = streams["side"] | "Side" >> beam.WindowInto(w.FixedWindows(10))
        main = streams["main"] | "Main" >> beam.WindowInto(w.FixedWindows(10)) | beam.Map(keyed)
        _ = main | beam.ParDo(JoinFn(), beam.pvalue.AsSingleton(side)) | beam.ParDo(SeeFn())

    assert played(build) == ["0-10: a is 1 with s @1", "0-10: b is 2 with s @2"]


class Thrice(RestrictionProvider):
    """Splits the read of an element into three parts."""

    def initial_restriction(self, element: str) -> OffsetRange:
        return OffsetRange(0, 3)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: str, restriction: OffsetRange) -> int:
        return restriction.size()


class SlowlyAsideFn(beam.DoFn):
    """Emits each part of an element together with the side input, and resumes after `pause` seconds."""

    def __init__(self, pause: float) -> None:
        self.pause = pause

    @beam.DoFn.unbounded_per_element()
    def process(
        self, element: str, side: Any, tracker: Any = beam.DoFn.RestrictionParam(Thrice())
    ) -> Iterator[str]:
        part = tracker.current_restriction().start
        if tracker.try_claim(part):
            yield f"{element}{part} with {sorted(side) if isinstance(side, list) else side}"
            tracker.defer_remainder(Duration(self.pause))


def read_beside(side: Any, view: Any, *steps: Step, pause: float = 0) -> list[str]:
    """Return what each part of a splittable DoFn's read sees."""

    def build(p: beam.Pipeline) -> None:
        streams = p | script(*steps)
        aside = streams["side"] | "Side" >> side
        main = streams["main"] | "Main" >> beam.WindowInto(w.FixedWindows(10))
        _ = main | beam.ParDo(SlowlyAsideFn(pause), view(aside)) | beam.ParDo(SeeFn())

    return played(build)


def test_an_element_of_a_splittable_dofn_waits_for_the_side_input_window() -> None:
    steps = [*BOTH, elements("m@1", tag="main"), watermark(50, "main"), elements("s@2", tag="side")]
    steps += [elements("t@3", "u@13", tag="side"), watermark(10, "side")]
    # Two epochs later the window gets one more pane. Only a read that waited for longer than its window sees it.
    steps += [watermark(51, "main"), watermark(52, "main"), elements("late@4", tag="side")]
    side = beam.WindowInto(
        w.FixedWindows(10), accumulation_mode=t.AccumulationMode.ACCUMULATING, allowed_lateness=100
    )
    assert read_beside(side, beam.pvalue.AsList, *steps) == [
        f"0-10: m{part} with ['s', 't'] @1" for part in range(3)
    ]


def test_a_splittable_dofn_reads_an_empty_side_input_after_its_window_ends() -> None:
    steps = [*BOTH, elements("m@1", tag="main"), elements("s@12", tag="side"), watermark(10, "side")]
    assert read_beside(beam.WindowInto(w.FixedWindows(10)), beam.pvalue.AsList, *steps) == [
        f"0-10: m{part} with [] @1" for part in range(3)
    ]


def test_a_side_input_is_kept_while_a_residual_needs_its_window() -> None:
    steps = [*BOTH, elements("s@1", tag="side"), watermark(10, "side"), elements("m@1", tag="main")]
    steps += [watermark(100, "main")]
    for at in range(11, 60, 10):
        steps += [elements(f"x@{at}", tag="side"), watermark(at + 10, "side")]
    assert read_beside(beam.WindowInto(w.FixedWindows(10)), beam.pvalue.AsList, *steps, pause=1) == [
        f"0-10: m{part} with ['s'] @1" for part in range(3)
    ]


def test_a_splittable_dofn_sees_the_latest_pane_when_it_resumes() -> None:
    side = beam.WindowInto(w.GlobalWindows(), trigger=EACH, accumulation_mode=DISCARDING)
    steps = [*BOTH, elements("s@1", tag="side"), elements("m@1", tag="main"), elements("t@2", tag="side")]
    lines = read_beside(side, beam.pvalue.AsSingleton, *steps, pause=1)
    assert lines == ["0-10: m0 with s @1", "0-10: m1 with t @1", "0-10: m2 with t @1"]


def test_waiting_elements_and_residuals_of_a_splittable_dofn_hold_the_watermark() -> None:
    steps = [*BOTH, elements("m@1", tag="main"), watermark(100, "main"), elements("s@2", tag="side")]

    def build(p: beam.Pipeline) -> None:
        streams = p | script(*steps, watermark(10, "side"))
        side = streams["side"] | "Side" >> beam.WindowInto(w.FixedWindows(10))
        _ = (
            streams["main"]
            | "Main" >> beam.WindowInto(w.FixedWindows(10))
            | beam.ParDo(SlowlyAsideFn(0.3), beam.pvalue.AsList(side))
            | beam.Map(lambda value: ("k", value))
            | beam.GroupByKey()
            | beam.ParDo(SeePaneFn())
        )

    assert played(build) == ["0-10: m0 with ['s'] m1 with ['s'] m2 with ['s'] | on time 0/0 first last @end"]
