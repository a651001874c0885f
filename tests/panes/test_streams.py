"""State, timers, side inputs and several streams by the book: what is seen is computed by hand from Beam's model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import StrUtf8Coder, VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms import trigger as t
from apache_beam.transforms import window as w
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    CombiningValueStateSpec,
    OrderedListStateSpec,
    ReadModifyWriteStateSpec,
    SetStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import TimestampCombiner
from apache_beam.utils.timestamp import Duration, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from tests.panes.book import (
    DISCARDING,
    END,
    SeeFn,
    SeePaneFn,
    Step,
    clock,
    elements,
    keyed,
    played,
    script,
    watermark,
)

EACH = t.Repeatedly(t.AfterCount(1))


def through(fn: beam.DoFn, *steps: Step, into: beam.PTransform | None = None) -> list[str]:
    """What a stateful DoFn puts out, with windows and timestamps."""
    windows = into or beam.WindowInto(w.GlobalWindows())
    return played(
        lambda p: (
            p | script(*steps) | beam.Map(keyed) | windows | beam.ParDo(fn) | "See" >> beam.ParDo(SeeFn())
        )
    )


class AtFn(beam.DoFn):
    """Sets an event-time timer to the seconds that an element says, `-` clears it, and tells what came since."""

    TIMER = TimerSpec("timer", TimeDomain.WATERMARK)
    SINCE = BagStateSpec("since", StrUtf8Coder())

    def process(
        self,
        element: tuple[str, str],
        timer: Any = beam.DoFn.TimerParam(TIMER),
        since: Any = beam.DoFn.StateParam(SINCE),
    ) -> None:
        since.add(element[1])
        if element[1] == "-":
            timer.clear()
        else:
            timer.set(float(element[1]))

    @on_timer(TIMER)
    def fire(self, since: Any = beam.DoFn.StateParam(SINCE)) -> Iterator[str]:
        yield "fired with " + " ".join(sorted(since.read()))
        since.clear()


def test_an_event_time_timer_fires_when_the_watermark_reaches_it_with_its_own_time() -> None:
    assert through(
        AtFn(), elements("5@1"), watermark(4.999), elements("5@4.999"), watermark(5), watermark(9)
    ) == ["all: fired with 5 5 @5"]


def test_the_last_setting_of_a_timer_counts() -> None:
    steps = [elements("5@1"), elements("8@2"), watermark(6), watermark(8)]
    assert through(AtFn(), *steps) == ["all: fired with 5 8 @8"]


def test_a_cleared_timer_does_not_fire() -> None:
    assert through(AtFn(), elements("5@1"), elements("-@2"), watermark(9)) == []


def test_a_timer_in_the_past_fires_at_once() -> None:
    assert through(AtFn(), watermark(7), elements("5@8"), elements("20@9")) == [
        "all: fired with 5 @5",
        "all: fired with 20 @20",
    ]


@pytest.mark.parametrize("watermarks", [(10, 20, 30), (30,)], ids=["in steps", "at once"])
def test_a_timer_beyond_the_end_of_its_window_fires_when_the_window_expires(watermarks: Any) -> None:
    into = beam.WindowInto(w.FixedWindows(10))
    steps = [elements("25@1"), *map(watermark, watermarks)]
    assert through(AtFn(), *steps, into=into) == ["0-10: fired with 25 @25"]


def test_each_key_and_window_has_its_own_timer() -> None:
    found = played(
        lambda p: (
            p
            | script(elements("a/1@1", "b/1@12"), watermark(11), watermark(30))
            | beam.Map(lambda value: (value[0], "9" if value[0] == "a" else "15"))
            | beam.WindowInto(w.FixedWindows(10))
            | beam.ParDo(AtFn())
            | beam.ParDo(SeeFn())
        )
    )
    assert found == ["0-10: fired with 9 @9", "10-20: fired with 15 @15"]


class TickFn(beam.DoFn):
    """A looping timer: every 2 s of event time, three times."""

    TIMER = TimerSpec("timer", TimeDomain.WATERMARK)
    LEFT = ReadModifyWriteStateSpec("left", VarIntCoder())

    def process(self, element: Any, timer: Any = beam.DoFn.TimerParam(TIMER)) -> None:
        timer.set(2)

    @on_timer(TIMER)
    def fire(
        self,
        at: Any = beam.DoFn.TimestampParam,
        timer: Any = beam.DoFn.TimerParam(TIMER),
        left: Any = beam.DoFn.StateParam(LEFT),
    ) -> Iterator[str]:
        ticks = 3 if left.read() is None else left.read()
        yield f"tick {ticks}"
        left.write(ticks - 1)
        if ticks > 1:
            timer.set(at + 2)


def test_a_timer_that_sets_itself_again_fires_at_each_of_its_times() -> None:
    ticks = ["all: tick 3 @2", "all: tick 2 @4", "all: tick 1 @6"]
    assert through(TickFn(), elements("x@0"), watermark(3), watermark(5), watermark(7)) == ticks
    assert through(TickFn(), elements("x@0"), watermark(100)) == ticks, "also when the watermark leaps"


class OrderFn(beam.DoFn):
    """Ticks at 2 and at 4; a tick clears the timer at 3, and the one at 5 tells of what came before."""

    TICK = TimerSpec("tick", TimeDomain.WATERMARK)
    NEVER = TimerSpec("never", TimeDomain.WATERMARK)
    LAST = TimerSpec("last", TimeDomain.WATERMARK)
    SEEN = BagStateSpec("seen", StrUtf8Coder())

    def process(
        self,
        element: Any,
        tick: Any = beam.DoFn.TimerParam(TICK),
        never: Any = beam.DoFn.TimerParam(NEVER),
        last: Any = beam.DoFn.TimerParam(LAST),
    ) -> None:
        tick.set(2)
        never.set(3)
        last.set(5)

    @on_timer(TICK)
    def on_tick(
        self,
        at: Any = beam.DoFn.TimestampParam,
        tick: Any = beam.DoFn.TimerParam(TICK),
        never: Any = beam.DoFn.TimerParam(NEVER),
        seen: Any = beam.DoFn.StateParam(SEEN),
    ) -> None:
        seen.add(f"{float(at):g}")
        never.clear()
        if at < 4:
            tick.set(at + 2)

    @on_timer(NEVER)
    def on_never(self) -> Iterator[str]:
        yield "a timer that was cleared"

    @on_timer(LAST)
    def on_last(self, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[str]:
        yield "after " + " ".join(seen.read())


@pytest.mark.parametrize("watermarks", [(2, 3, 4, 5), (2, 5), (100,)])
def test_timers_fire_one_after_the_other_however_far_the_watermark_leaps(
    watermarks: tuple[float, ...],
) -> None:
    assert through(OrderFn(), elements("x@0"), *map(watermark, watermarks)) == ["all: after 2 4 @5"]


class LaterFn(beam.DoFn):
    """Holds elements for 5 s of processing time; its timer holds the watermark at the element's timestamp."""

    TIMER = TimerSpec("timer", TimeDomain.REAL_TIME)
    HELD = BagStateSpec("held", StrUtf8Coder())

    def process(
        self,
        element: tuple[str, str],
        timer: Any = beam.DoFn.TimerParam(TIMER),
        held: Any = beam.DoFn.StateParam(HELD),
    ) -> None:
        held.add(element[1])
        timer.set(5)

    @on_timer(TIMER)
    def fire(self, held: Any = beam.DoFn.StateParam(HELD)) -> Iterator[tuple[str, str]]:
        yield "k", " ".join(sorted(held.read()))
        held.clear()


def test_a_processing_time_timer_holds_the_watermark_until_it_has_fired() -> None:
    found = played(
        lambda p: (
            p
            | script(elements("1@1"), watermark(50), clock(4), elements("2@60"), clock(1), watermark(70))
            | beam.Map(keyed)
            | beam.ParDo(LaterFn())
            | beam.WindowInto(w.FixedWindows(10))
            | beam.GroupByKey()
            | beam.ParDo(SeePaneFn())
        )
    )
    assert len(found) == 1
    assert "1 2 | on time 0/0" in found[0], "the held elements are in time for their window"


def test_when_the_script_is_over_its_clock_leaps_to_the_timers_that_are_left() -> None:
    found = through(LaterFn(), elements("1@1"), clock(4), elements("a/2@2"), watermark(20))
    assert sorted(found) == ["all: ('k', '1') @1", "all: ('k', 'a/2') @2"]


class TagsFn(beam.DoFn):
    """One timer for each element, by a dynamic tag."""

    TIMER = TimerSpec("timer", TimeDomain.WATERMARK)

    def process(self, element: tuple[str, str], timer: Any = beam.DoFn.TimerParam(TIMER)) -> None:
        timer.set(float(element[1]), dynamic_timer_tag=element[1])

    @on_timer(TIMER)
    def fire(self, tag: Any = beam.DoFn.DynamicTimerTagParam) -> Iterator[str]:
        yield f"tag {tag}"


def test_dynamic_tags_are_timers_of_their_own_and_fire_in_the_order_of_their_times() -> None:
    assert through(TagsFn(), elements("7@1", "3@1", "5@1"), watermark(6)) == [
        "all: tag 3 @3",
        "all: tag 5 @5",
        "all: tag 7 @7",
    ]


class CountFn(beam.DoFn):
    """Numbers the elements of each key and window."""

    COUNT = CombiningValueStateSpec("count", combine_fn=sum)
    SEEN = SetStateSpec("seen", StrUtf8Coder())

    def process(
        self,
        element: tuple[str, str],
        count: Any = beam.DoFn.StateParam(COUNT),
        seen: Any = beam.DoFn.StateParam(SEEN),
    ) -> Iterator[str]:
        count.add(1)
        seen.add(element[1])
        yield f"{element[1]} is {count.read()} of {len(list(seen.read()))}"


def test_state_is_kept_by_key_and_window_and_a_late_element_of_an_expired_window_is_dropped() -> None:
    into = beam.WindowInto(w.FixedWindows(10), allowed_lateness=5)
    steps = [
        elements("a@1", "a@2"),
        elements("b@12"),
        watermark(12),
        elements("c@3"),
        watermark(15),
        elements("d@4"),
    ]
    assert through(CountFn(), *steps, into=into) == [
        "0-10: a is 1 of 1 @1",
        "0-10: a is 2 of 1 @2",
        "10-20: b is 1 of 1 @12",
        "0-10: c is 3 of 2 @3",
    ]


class SortFn(beam.DoFn):
    """Puts out in the order of event time what the watermark has passed."""

    LIST = OrderedListStateSpec("list", StrUtf8Coder())
    TIMER = TimerSpec("timer", TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[str, str],
        at: Any = beam.DoFn.TimestampParam,
        kept: Any = beam.DoFn.StateParam(LIST),
        timer: Any = beam.DoFn.TimerParam(TIMER),
    ) -> None:
        kept.add((at, element[1]))
        timer.set(10)

    @on_timer(TIMER)
    def fire(self, kept: Any = beam.DoFn.StateParam(LIST)) -> Iterator[str]:
        for at, value in kept.read_range(Timestamp(0), Timestamp(10)):
            yield f"{value} of {float(at.micros) / 1e6:g}"
        kept.clear_range(Timestamp(0), Timestamp(10))
        yield "left: " + " ".join(value for _, value in kept.read())


def test_an_ordered_list_is_read_and_cleared_by_range() -> None:
    found = through(SortFn(), elements("c@7"), elements("a@2", "d@30"), elements("b@4"), watermark(10))
    assert found == ["all: a of 2 @10", "all: b of 4 @10", "all: c of 7 @10", "all: left: d @10"]


# Several streams.


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


def test_joined_streams_meet_in_their_windows() -> None:
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


def test_a_grouping_behind_a_grouping_gets_its_panes_in_time() -> None:
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


def test_panes_may_be_combined_as_they_are() -> None:
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


class AsideFn(beam.DoFn):
    """Puts an element together with its side input."""

    def process(self, element: str, side: Any) -> Iterator[str]:
        yield f"{element} with {sorted(side) if isinstance(side, (list, dict)) else side}"


def beside(side: Any, view: Any, *steps: Step, windows: Any = None) -> list[str]:
    """What an element of the stream `main` sees; `side` are the windows of the stream `side`."""

    def build(p: beam.Pipeline) -> None:
        streams = p | script(*steps)
        aside = streams["side"] | "Side" >> side
        main = streams["main"] | "Main" >> (windows or beam.WindowInto(w.FixedWindows(10)))
        _ = main | beam.ParDo(AsideFn(), view(aside)) | beam.ParDo(SeeFn())

    return played(build)


BOTH = [watermark(0, "main"), watermark(0, "side")]


def test_an_element_waits_until_the_side_inputs_window_is_over() -> None:
    steps = [*BOTH, elements("m@1", tag="main"), watermark(50, "main"), elements("s@2", tag="side")]
    steps += [elements("t@3", "u@13", tag="side"), watermark(10, "side")]
    assert beside(beam.WindowInto(w.FixedWindows(10)), beam.pvalue.AsList, *steps) == [
        "0-10: m with ['s', 't'] @1"
    ]


def test_a_window_without_anything_is_empty_once_it_is_over() -> None:
    steps = [*BOTH, elements("m@1", tag="main"), elements("s@12", tag="side"), watermark(10, "side")]
    assert beside(beam.WindowInto(w.FixedWindows(10)), beam.pvalue.AsList, *steps) == ["0-10: m with [] @1"]


def test_a_default_stands_in_for_an_empty_window() -> None:
    steps = [*BOTH, elements("m@1", tag="main"), watermark(10, "side")]
    view = lambda side: beam.pvalue.AsSingleton(side, default_value="nothing")  # noqa: E731
    assert beside(beam.WindowInto(w.FixedWindows(10)), view, *steps) == ["0-10: m with nothing @1"]


def test_the_windows_of_a_side_input_may_be_longer() -> None:
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


def test_elements_that_wait_hold_the_watermark() -> None:
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


def test_a_new_pane_takes_the_place_of_the_old_one_in_the_epoch_in_which_it_comes() -> None:
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


def test_accumulated_panes_show_all_there_has_been() -> None:
    side = beam.WindowInto(w.GlobalWindows(), trigger=EACH, accumulation_mode=t.AccumulationMode.ACCUMULATING)
    steps = [*BOTH, elements("s@1", tag="side"), elements("t@2", tag="side"), elements("m@1", tag="main")]
    assert beside(side, beam.pvalue.AsList, *steps) == ["0-10: m with ['s', 't'] @1"]


def test_a_late_pane_is_seen_by_those_that_come_after_it() -> None:
    side = beam.WindowInto(
        w.FixedWindows(10), accumulation_mode=t.AccumulationMode.ACCUMULATING, allowed_lateness=50
    )
    steps = [*BOTH, elements("s@1", tag="side"), watermark(10, "side"), elements("m@1", tag="main")]
    steps += [elements("t@2", tag="side"), elements("n@2", tag="main")]
    assert beside(side, beam.pvalue.AsList, *steps) == ["0-10: m with ['s'] @1", "0-10: n with ['s', 't'] @2"]


def test_a_bounded_side_input_is_there_from_the_beginning() -> None:
    def build(p: beam.Pipeline) -> None:
        side = p | beam.Create([("x", 1), ("y", 2)])
        main = p | script(elements("m@1"))
        _ = main | beam.ParDo(AsideFn(), beam.pvalue.AsDict(side)) | beam.ParDo(SeeFn())

    assert played(build) == ["all: m with ['x', 'y'] @1"]


def test_state_and_a_side_input_go_together() -> None:
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


@pytest.mark.parametrize(("combiner", "at"), [("EARLIEST", "7"), ("LATEST", "8"), ("EOW", "end")])
def test_a_combiner_stamps_its_sums_as_a_grouping_stamps_its_panes(combiner: str, at: str) -> None:
    """Of the earliest and the latest, elements that are behind the output watermark do not count."""
    windows = beam.WindowInto(
        w.FixedWindows(10), timestamp_combiner=getattr(TimestampCombiner, f"OUTPUT_AT_{combiner}")
    )

    def build(p: beam.Pipeline) -> None:
        given = p | script(watermark(5), elements("1@2", "1@3", "1@7", "1@8"), watermark(10))
        ones = given | windows | beam.Map(lambda value: ("k", int(value)))
        _ = ones | beam.CombinePerKey(sum) | beam.ParDo(SeeFn())

    assert played(build) == [f"0-10: ('k', 4) @{at}"]


# Side inputs of splittable DoFns.


class Thrice(RestrictionProvider):
    """An element is read in three parts."""

    def initial_restriction(self, element: str) -> OffsetRange:
        return OffsetRange(0, 3)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: str, restriction: OffsetRange) -> int:
        return restriction.size()


class SlowlyAsideFn(beam.DoFn):
    """Puts each part of an element together with the side input, and reads on after `pause` seconds."""

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
    """What each part of what a splittable DoFn reads sees."""

    def build(p: beam.Pipeline) -> None:
        streams = p | script(*steps)
        aside = streams["side"] | "Side" >> side
        main = streams["main"] | "Main" >> beam.WindowInto(w.FixedWindows(10))
        _ = main | beam.ParDo(SlowlyAsideFn(pause), view(aside)) | beam.ParDo(SeeFn())

    return played(build)


def test_an_element_of_a_splittable_dofn_waits_for_the_side_inputs_window() -> None:
    steps = [*BOTH, elements("m@1", tag="main"), watermark(50, "main"), elements("s@2", tag="side")]
    steps += [elements("t@3", "u@13", tag="side"), watermark(10, "side")]
    assert read_beside(beam.WindowInto(w.FixedWindows(10)), beam.pvalue.AsList, *steps) == [
        f"0-10: m{part} with ['s', 't'] @1" for part in range(3)
    ]


def test_an_empty_side_input_is_known_to_a_splittable_dofn_once_its_window_is_over() -> None:
    steps = [*BOTH, elements("m@1", tag="main"), elements("s@12", tag="side"), watermark(10, "side")]
    assert read_beside(beam.WindowInto(w.FixedWindows(10)), beam.pvalue.AsList, *steps) == [
        f"0-10: m{part} with [] @1" for part in range(3)
    ]


def test_a_side_input_stays_while_something_is_left_to_read_in_its_window() -> None:
    steps = [*BOTH, elements("s@1", tag="side"), watermark(10, "side"), elements("m@1", tag="main")]
    steps += [watermark(100, "main")]
    for at in range(11, 60, 10):
        steps += [elements(f"x@{at}", tag="side"), watermark(at + 10, "side")]
    assert read_beside(beam.WindowInto(w.FixedWindows(10)), beam.pvalue.AsList, *steps, pause=1) == [
        f"0-10: m{part} with ['s'] @1" for part in range(3)
    ]


def test_a_splittable_dofn_sees_the_latest_pane_when_it_reads_on() -> None:
    side = beam.WindowInto(w.GlobalWindows(), trigger=EACH, accumulation_mode=DISCARDING)
    steps = [*BOTH, elements("s@1", tag="side"), elements("m@1", tag="main"), elements("t@2", tag="side")]
    lines = read_beside(side, beam.pvalue.AsSingleton, *steps, pause=1)
    assert lines == ["0-10: m0 with s @1", "0-10: m1 with t @1", "0-10: m2 with t @1"]


def test_what_a_splittable_dofn_waits_for_and_has_not_read_holds_the_watermark() -> None:
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
