"""State and timers, compared with results computed by hand from Beam's model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import StrUtf8Coder, VarIntCoder
from apache_beam.transforms import window as w
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
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp

from tests.panes.book import (
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


def through(fn: beam.DoFn, *steps: Step, into: beam.PTransform | None = None) -> list[str]:
    """Return the outputs of a stateful DoFn, with windows and timestamps."""
    windows = into or beam.WindowInto(w.GlobalWindows())
    return played(
        lambda p: (
            p | script(*steps) | beam.Map(keyed) | windows | beam.ParDo(fn) | "See" >> beam.ParDo(SeeFn())
        )
    )


class AtFn(beam.DoFn):
    """Sets an event-time timer to the second in the element; `-` clears it. The timer emits the elements so far."""

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


def test_the_last_time_set_for_a_timer_is_used() -> None:
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
    """Timer `tick` fires at 2 and 4 and clears timer `never`, set to 3. Timer `last`, at 5, emits the ticks."""

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
def test_timers_fire_in_order_when_the_watermark_jumps(
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


def test_after_the_last_scripted_event_the_clock_advances_to_the_remaining_timers() -> None:
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


def test_timers_with_different_dynamic_tags_are_independent_and_fire_in_time_order() -> None:
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
    """Emits the elements that the watermark has passed, in event-time order."""

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


class FarFn(beam.DoFn):
    """Sets a timer of each time domain to the time in the element, after the maximum or before the minimum time."""

    EVENT = TimerSpec("event", TimeDomain.WATERMARK)
    CLOCK = TimerSpec("clock", TimeDomain.REAL_TIME)

    def process(
        self,
        element: tuple[str, str],
        event: Any = beam.DoFn.TimerParam(EVENT),
        clock: Any = beam.DoFn.TimerParam(CLOCK),
    ) -> None:
        at = {"after": MAX_TIMESTAMP + Duration(seconds=1), "before": MIN_TIMESTAMP - Duration(seconds=1)}
        for timer in (event, clock):
            timer.set(at[element[1]])

    @on_timer(EVENT)
    def by_event(self) -> Iterator[str]:
        yield "event"

    @on_timer(CLOCK)
    def by_clock(self) -> Iterator[str]:
        yield "clock"


@pytest.mark.parametrize(
    ("far", "seen"),
    [
        ("after", ["all: event @9.22337e+12", "all: clock @1"]),
        ("before", ["all: event @-9.22337e+12", "all: clock @1"]),
    ],
)
def test_a_timer_after_the_maximum_timestamp_fires_at_the_maximum_timestamp(
    far: str, seen: list[str]
) -> None:
    assert through(FarFn(), elements(f"{far}@1"), watermark(5)) == seen


def test_a_window_with_unlimited_lateness_expires_at_the_maximum_timestamp() -> None:
    into = beam.WindowInto(w.FixedWindows(10), allowed_lateness=10**14)
    steps = [elements("5@1"), watermark(10**6), elements("6@2")]
    assert through(AtFn(), *steps, into=into) == ["0-10: fired with 5 @5", "0-10: fired with 6 @6"]


class ByClockFn(beam.DoFn):
    """Sets a processing-time timer to the second in the element; the timer emits the contents of the state."""

    TIMER = TimerSpec("timer", TimeDomain.REAL_TIME)
    SEEN = BagStateSpec("seen", StrUtf8Coder())

    def process(
        self,
        element: tuple[str, str],
        timer: Any = beam.DoFn.TimerParam(TIMER),
        seen: Any = beam.DoFn.StateParam(SEEN),
    ) -> None:
        seen.add(element[1])
        timer.set(float(element[1]))

    @on_timer(TIMER)
    def fire(self, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[str]:
        yield "fired with " + " ".join(seen.read())


def test_a_processing_time_timer_is_deleted_when_its_window_expires() -> None:
    into = beam.WindowInto(w.FixedWindows(10))
    steps = [elements("60@1"), clock(30), watermark(10), elements("70@11"), clock(60)]
    assert through(ByClockFn(), *steps, into=into) == ["10-20: fired with 70 @11"]
