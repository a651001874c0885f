"""Panes of each trigger and window, compared with panes computed by hand from Beam's model.

A comment marks each case in which Beam's own Python runner gives another answer.
"""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import trigger as t
from apache_beam.transforms import window as w
from apache_beam.transforms.window import TimestampCombiner

from tests.panes.book import ACCUMULATING, DISCARDING, clock, elements, panes_of, watermark


def fixed(
    trigger: Any = None, mode: Any = DISCARDING, lateness: float = 0, at: Any = None, fn: Any = None
) -> beam.WindowInto:
    """Return the panes of 10 s windows, or of the windows of `fn`."""
    return beam.WindowInto(
        fn or w.FixedWindows(10),
        trigger=trigger or t.DefaultTrigger(),
        accumulation_mode=mode,
        allowed_lateness=lateness,
        timestamp_combiner=at,
    )


def everything(trigger: Any = None, mode: Any = DISCARDING) -> beam.WindowInto:
    return fixed(trigger, mode, fn=w.GlobalWindows())


def sessions(trigger: Any = None, mode: Any = DISCARDING, lateness: float = 0, at: Any = None) -> Any:
    """Sessions that end 10 s after their last element."""
    return fixed(trigger, mode, lateness, at, w.Sessions(10))


DEFAULT = {
    "a window fires once the watermark has passed it": (
        fixed(),
        [elements("1@1", "2@2"), watermark(10), elements("3@12")],
        ["0-10: 1 2 | on time 0/0 first last @end", "10-20: 3 | on time 0/0 first last @end"],
    ),
    "not while the watermark is at its last timestamp": (
        fixed(),
        [elements("1@1"), watermark(9.999), elements("2@9.9")],
        ["0-10: 1 2 | on time 0/0 first last @end"],
    ),
    "what comes after the end is dropped without lateness": (
        fixed(),
        [elements("1@1"), watermark(10), elements("2@2", "3@13")],
        ["0-10: 1 | on time 0/0 first last @end", "10-20: 3 | on time 0/0 first last @end"],
    ),
    "a late element within the lateness makes a late pane": (
        fixed(lateness=5),
        [elements("1@1"), watermark(10), elements("2@2")],
        ["0-10: 1 | on time 0/0 first @end", "0-10: 2 | late 1/1 @end"],
    ),
    "which has all elements where panes accumulate": (
        fixed(mode=ACCUMULATING, lateness=5),
        [elements("1@1"), watermark(10), elements("2@2"), elements("3@3")],
        ["0-10: 1 | on time 0/0 first @end", "0-10: 1 2 | late 1/1 @end", "0-10: 1 2 3 | late 2/2 @end"],
    ),
    "the lateness is counted from the end: just inside": (
        fixed(lateness=5),
        [elements("1@1"), watermark(14.999), elements("2@2")],
        ["0-10: 1 | on time 0/0 first @end", "0-10: 2 | late 1/1 @end"],
    ),
    "just outside": (
        fixed(lateness=5),
        [elements("1@1"), watermark(15), elements("2@2")],
        ["0-10: 1 | on time 0/0 first last @end"],
    ),
    "a window that only late elements reach has only late panes": (
        fixed(lateness=5),
        [watermark(12), elements("1@1"), elements("2@2")],
        ["0-10: 1 | late 0/0 first @end", "0-10: 2 | late 1/1 @end"],
    ),
    "elements that come in one bundle make one late pane": (
        fixed(lateness=5),
        [watermark(12), elements("1@1", "2@2")],
        ["0-10: 1 2 | late 0/0 first @end"],
    ),
    "an element is in all its sliding windows": (
        fixed(fn=w.SlidingWindows(10, 5)),
        [elements("1@7"), watermark(10), elements("2@12")],
        [
            "0-10: 1 | on time 0/0 first last @end",
            "5-15: 1 2 | on time 0/0 first last @end",
            "10-20: 2 | on time 0/0 first last @end",
        ],
    ),
    "of which only the ones that are over drop it": (
        fixed(fn=w.SlidingWindows(10, 5)),
        [watermark(10), elements("1@7")],
        ["5-15: 1 | on time 0/0 first last @end"],
    ),
    "the global window fires at the end of time": (
        everything(),
        [elements("1@1"), watermark(1000), elements("2@2")],
        ["all: 1 2 | on time 0/0 first last @end"],
    ),
    "each key has its own windows": (
        fixed(),
        [elements("a/1@1", "b/2@2"), watermark(10), elements("b/3@3", "a/4@14")],
        [
            "a 0-10: a/1 | on time 0/0 first last @end",
            "a 10-20: a/4 | on time 0/0 first last @end",
            "b 0-10: b/2 | on time 0/0 first last @end",
        ],
    ),
}

BEFORE_AND_AFTER = {
    "early panes fire again and again, and the on-time pane is the last": (
        fixed(t.AfterWatermark(early=t.AfterCount(2))),
        [elements("1@1"), elements("2@2"), elements("3@3"), watermark(10), elements("4@4")],
        ["0-10: 1 2 | early 0/- first @end", "0-10: 3 | on time 1/0 last @end"],
    ),
    "with all elements where panes accumulate": (
        fixed(t.AfterWatermark(early=t.AfterCount(2)), ACCUMULATING),
        [elements("1@1", "2@2"), elements("3@3"), watermark(10)],
        ["0-10: 1 2 | early 0/- first @end", "0-10: 1 2 3 | on time 1/0 last @end"],
    ),
    "the on-time pane comes even when it is empty": (
        fixed(t.AfterWatermark(early=t.AfterCount(1))),
        [elements("1@1"), watermark(10)],
        ["0-10: 1 | early 0/- first @end", "0-10:  | on time 1/0 last @end"],
    ),
    "what was counted towards an early pane is not counted again": (
        fixed(t.AfterWatermark(early=t.AfterCount(2))),
        [elements("1@1", "2@2", "3@3"), elements("4@4"), elements("5@5"), watermark(10)],
        [
            "0-10: 1 2 3 | early 0/- first @end",
            "0-10: 4 5 | early 1/- @end",
            "0-10:  | on time 2/0 last @end",
        ],
    ),
    "late panes follow their own trigger": (
        fixed(t.AfterWatermark(late=t.AfterCount(2)), lateness=5),
        [elements("1@1"), watermark(10), elements("2@2"), elements("3@3"), elements("4@4", "5@5")],
        ["0-10: 1 | on time 0/0 first @end", "0-10: 2 3 | late 1/1 @end", "0-10: 4 5 | late 2/2 @end"],
    ),
    # Beam's Python runner loses what has not fired when a window expires.
    "what has not fired when the window expires fires then": (
        fixed(t.AfterWatermark(late=t.AfterCount(2)), lateness=5),
        [elements("1@1"), watermark(10), elements("2@2"), watermark(14), watermark(15), elements("3@3")],
        ["0-10: 1 | on time 0/0 first @end", "0-10: 2 | late 1/1 last @end"],
    ),
    "early and late ones around an accumulated on-time pane": (
        fixed(t.AfterWatermark(early=t.AfterCount(1), late=t.AfterCount(1)), ACCUMULATING, 5),
        [elements("1@1"), elements("2@2"), watermark(11), elements("3@3"), watermark(16), elements("4@4")],
        [
            "0-10: 1 | early 0/- first @end",
            "0-10: 1 2 | early 1/- @end",
            "0-10: 1 2 | on time 2/0 @end",
            "0-10: 1 2 3 | late 3/1 @end",
        ],
    ),
    "early panes by processing time": (
        fixed(t.AfterWatermark(early=t.AfterProcessingTime(5))),
        [elements("1@1"), clock(3), elements("2@2"), clock(2), elements("3@3"), clock(4), watermark(10)],
        ["0-10: 1 2 | early 0/- first @end", "0-10: 3 | on time 1/0 last @end"],
    ),
    "late panes by processing time": (
        fixed(t.AfterWatermark(late=t.AfterProcessingTime(5)), lateness=50),
        [elements("1@1"), watermark(10), elements("2@2"), clock(4), elements("3@3"), clock(1), clock(9)],
        ["0-10: 1 | on time 0/0 first @end", "0-10: 2 3 | late 1/1 @end"],
    ),
    "a trigger that has finished drops what comes, late or not": (
        fixed(t.AfterWatermark(), lateness=50),
        [elements("1@1"), watermark(10), elements("2@2")],
        ["0-10: 1 | on time 0/0 first last @end"],
    ),
}

COUNTS_AND_CLOCKS = {
    "a count fires once": (
        fixed(t.AfterCount(2)),
        [elements("1@1"), elements("2@2"), elements("3@3"), elements("4@4"), watermark(10)],
        ["0-10: 1 2 | early 0/- first last @end"],
    ),
    "with everything that came in the same bundle": (
        fixed(t.AfterCount(2)),
        [elements("1@1", "2@2", "3@3"), elements("4@4")],
        ["0-10: 1 2 3 | early 0/- first last @end"],
    ),
    # Beam's Python runner loses the 3.
    "repeated counts; the rest comes when the window is over": (
        fixed(t.Repeatedly(t.AfterCount(2))),
        [elements("1@1"), elements("2@2"), elements("3@3"), watermark(10)],
        ["0-10: 1 2 | early 0/- first @end", "0-10: 3 | on time 1/0 last @end"],
    ),
    "repeated counts have no on-time pane when nothing is left": (
        fixed(t.Repeatedly(t.AfterCount(1))),
        [elements("1@1"), elements("2@2"), watermark(10)],
        ["0-10: 1 | early 0/- first @end", "0-10: 2 | early 1/- @end"],
    ),
    "every element of the global window": (
        everything(t.Repeatedly(t.AfterCount(1)), ACCUMULATING),
        [elements("1@1"), elements("2@2")],
        ["all: 1 | early 0/- first @end", "all: 1 2 | early 1/- @end"],
    ),
    "always": (
        everything(t.Always()),
        [elements("1@1"), elements("2@2", "3@3")],
        ["all: 1 | early 0/- first @end", "all: 2 3 | early 1/- @end"],
    ),
    "a count continues after the window's end, within the lateness": (
        fixed(t.Repeatedly(t.AfterCount(2)), lateness=5),
        [elements("1@1"), watermark(10), elements("2@2"), elements("3@3"), elements("4@4")],
        ["0-10: 1 2 | on time 0/0 first @end", "0-10: 3 4 | late 1/1 @end"],
    ),
    "processing time is counted from the first element of the pane": (
        everything(t.Repeatedly(t.AfterProcessingTime(10))),
        [elements("1@1"), clock(9), elements("2@2"), clock(1), elements("3@3"), clock(9), clock(1)],
        ["all: 1 2 | early 0/- first @end", "all: 3 | early 1/- @end"],
    ),
    "not a moment before": (
        everything(t.Repeatedly(t.AfterProcessingTime(10))),
        [clock(5), elements("1@1"), clock(9.999), elements("2@2"), clock(0.001), elements("3@3")],
        ["all: 1 2 | early 0/- first @end", "all: 3 | on time 1/0 last @end"],
    ),
    "processing time passes without elements and fires nothing": (
        everything(t.Repeatedly(t.AfterProcessingTime(10))),
        [elements("1@1"), clock(10), clock(100), elements("2@2"), clock(5)],
        ["all: 1 | early 0/- first @end", "all: 2 | on time 1/0 last @end"],
    ),
    "once, by processing time": (
        everything(t.AfterProcessingTime(10)),
        [elements("1@1"), clock(10), elements("2@2"), clock(10)],
        ["all: 1 | early 0/- first last @end"],
    ),
}

COMPOSITES = {
    "any: by count": (
        everything(t.Repeatedly(t.AfterAny(t.AfterCount(2), t.AfterProcessingTime(10)))),
        [elements("1@1"), elements("2@2"), clock(10), elements("3@3")],
        ["all: 1 2 | early 0/- first @end", "all: 3 | on time 1/0 last @end"],
    ),
    # Beam's driver does not reset a trigger that fired by processing time.
    "any: by processing time, which also ends the count": (
        everything(t.Repeatedly(t.AfterAny(t.AfterCount(2), t.AfterProcessingTime(10)))),
        [elements("1@1"), clock(10), elements("2@2"), elements("3@3"), elements("4@4"), clock(10)],
        ["all: 1 | early 0/- first @end", "all: 2 3 | early 1/- @end", "all: 4 | early 2/- @end"],
    ),
    "any: once": (
        everything(t.AfterAny(t.AfterCount(2), t.AfterProcessingTime(10))),
        [elements("1@1"), clock(10), elements("2@2", "3@3")],
        ["all: 1 | early 0/- first last @end"],
    ),
    "any: what one of them has fired no other counts any more": (
        everything(t.AfterAny(t.Repeatedly(t.AfterCount(2)), t.AfterCount(3))),
        [elements("1@1"), elements("2@2"), elements("3@3"), elements("4@4")],
        ["all: 1 2 | early 0/- first @end", "all: 3 4 | early 1/- @end"],
    ),
    "all: when the last of them would": (
        everything(t.Repeatedly(t.AfterAll(t.AfterCount(2), t.AfterProcessingTime(10)))),
        [elements("1@1", "2@2"), elements("3@3"), clock(10), elements("4@4"), clock(10), elements("5@5")],
        ["all: 1 2 3 | early 0/- first @end", "all: 4 5 | early 1/- @end"],
    ),
    "all: of a count and the end of the window": (
        fixed(t.AfterAll(t.AfterWatermark(), t.AfterCount(2)), lateness=50),
        [elements("1@1"), watermark(10), elements("2@2"), elements("3@3")],
        ["0-10: 1 2 | on time 0/0 first last @end"],
    ),
    "each: one after the other": (
        everything(t.AfterEach(t.AfterCount(2), t.AfterCount(1))),
        [elements("1@1"), elements("2@2"), elements("3@3"), elements("4@4")],
        ["all: 1 2 | early 0/- first @end", "all: 3 | early 1/- last @end"],
    ),
    "each: from the beginning": (
        everything(t.Repeatedly(t.AfterEach(t.AfterCount(2), t.AfterCount(1)))),
        [elements("1@1", "2@2"), elements("3@3"), elements("4@4"), elements("5@5"), elements("6@6")],
        [
            "all: 1 2 | early 0/- first @end",
            "all: 3 | early 1/- @end",
            "all: 4 5 | early 2/- @end",
            "all: 6 | early 3/- @end",
        ],
    ),
    "each: a count, then the end of the window": (
        fixed(t.AfterEach(t.AfterCount(1), t.AfterWatermark())),
        [elements("1@1"), elements("2@2"), watermark(10)],
        ["0-10: 1 | early 0/- first @end", "0-10: 2 | on time 1/0 last @end"],
    ),
    "a repeated trigger until another fires, which makes the last pane": (
        everything(t.OrFinally(t.Repeatedly(t.AfterCount(1)), t.AfterCount(3))),
        [elements("1@1"), elements("2@2"), elements("3@3"), elements("4@4")],
        ["all: 1 | early 0/- first @end", "all: 2 | early 1/- @end", "all: 3 | early 2/- last @end"],
    ),
    "which closes the window even where there is nothing to emit": (
        everything(t.OrFinally(t.Repeatedly(t.AfterCount(1)), t.AfterProcessingTime(10))),
        [elements("1@1"), elements("2@2"), clock(10), elements("3@3")],
        ["all: 1 | early 0/- first @end", "all: 2 | early 1/- @end"],
    ),
}

SESSIONS = {
    "elements within the gap are one session": (
        sessions(),
        [elements("1@1"), elements("2@8"), watermark(17), elements("3@30")],
        ["1-18: 1 2 | on time 0/0 first last @end", "30-40: 3 | on time 0/0 first last @end"],
    ),
    "at the gap they are two": (
        sessions(),
        [elements("1@1", "2@11")],
        ["1-11: 1 | on time 0/0 first last @end", "11-21: 2 | on time 0/0 first last @end"],
    ),
    "an element between two makes them one": (
        sessions(),
        [elements("1@1", "2@15"), elements("3@8")],
        ["1-25: 1 2 3 | on time 0/0 first last @end"],
    ),
    "also when one of them would be over": (
        sessions(),
        [elements("1@1", "2@15"), watermark(10), elements("3@10")],
        ["1-25: 1 2 3 | on time 0/0 first last @end"],
    ),
    "each key has its own": (
        sessions(),
        [elements("a/1@1", "b/2@5"), elements("a/3@9")],
        ["a 1-19: a/1 a/3 | on time 0/0 first last @end", "b 5-15: b/2 | on time 0/0 first last @end"],
    ),
    "a late element that makes a session longer makes a new window, which is not over yet": (
        sessions(lateness=50),
        [elements("1@1"), watermark(12), elements("2@5"), watermark(15)],
        ["1-11: 1 | on time 0/0 first @end", "1-15: 2 | on time 0/0 first @end"],
    ),
    "with the old values where panes accumulate": (
        sessions(mode=ACCUMULATING, lateness=50),
        [elements("1@1"), watermark(12), elements("2@5"), watermark(15)],
        ["1-11: 1 | on time 0/0 first @end", "1-15: 1 2 | on time 0/0 first @end"],
    ),
    "a late element that changes no window makes a late pane": (
        sessions(lateness=50),
        [elements("1@1", "2@5"), watermark(15), elements("3@3")],
        ["1-15: 1 2 | on time 0/0 first @end", "1-15: 3 | late 1/1 @end"],
    ),
    "an element whose own window has expired is dropped, even if its session has not": (
        sessions(lateness=2),
        [elements("1@1", "2@8"), watermark(17), elements("3@2"), elements("4@9")],
        ["1-19: 1 2 4 | on time 0/0 first last @end"],
    ),
    "counts are added where sessions merge": (
        sessions(t.Repeatedly(t.AfterCount(3))),
        [elements("1@1"), elements("2@15"), elements("3@8"), elements("4@9")],
        ["1-25: 1 2 3 | early 0/- first @end", "1-25: 4 | on time 1/0 last @end"],
    ),
    "what all triggers have fired stays done when the session grows": (
        sessions(t.AfterEach(t.AfterAll(t.AfterCount(1), t.AfterCount(2)), t.AfterCount(3))),
        [elements("1@1", "2@2"), elements("3@5"), elements("4@6"), elements("5@7")],
        ["1-12: 1 2 | early 0/- first @end", "1-17: 3 4 5 | early 0/- first last @end"],
    ),
    "early panes, a merge, and the rest": (
        sessions(t.AfterWatermark(early=t.AfterCount(2))),
        [elements("1@1", "2@2"), elements("3@15"), elements("4@9"), watermark(30)],
        [
            "1-12: 1 2 | early 0/- first @end",
            "1-25: 3 4 | early 0/- first @end",
            "1-25:  | on time 1/0 last @end",
        ],
    ),
}

TIMESTAMPS = {
    "the earliest of the elements": (
        fixed(at=TimestampCombiner.OUTPUT_AT_EARLIEST),
        [elements("1@3"), elements("2@2", "3@7"), watermark(10)],
        ["0-10: 1 2 3 | on time 0/0 first last @2"],
    ),
    "the latest": (
        fixed(at=TimestampCombiner.OUTPUT_AT_LATEST),
        [elements("1@3"), elements("2@2", "3@7"), watermark(10)],
        ["0-10: 1 2 3 | on time 0/0 first last @7"],
    ),
    "an element behind the output watermark does not count": (
        fixed(at=TimestampCombiner.OUTPUT_AT_EARLIEST),
        [watermark(5), elements("1@2", "2@7"), watermark(10)],
        ["0-10: 1 2 | on time 0/0 first last @7"],
    ),
    "unless an earlier one holds that watermark": (
        fixed(at=TimestampCombiner.OUTPUT_AT_EARLIEST),
        [elements("1@1"), watermark(5), elements("2@2"), watermark(10)],
        ["0-10: 1 2 | on time 0/0 first last @1"],
    ),
    "a pane of late elements has the window's end": (
        fixed(at=TimestampCombiner.OUTPUT_AT_EARLIEST, lateness=5),
        [elements("1@1"), watermark(10), elements("2@2")],
        ["0-10: 1 | on time 0/0 first @1", "0-10: 2 | late 1/1 @end"],
    ),
    "each pane has the timestamps of its own elements": (
        fixed(t.Repeatedly(t.AfterCount(1)), ACCUMULATING, at=TimestampCombiner.OUTPUT_AT_EARLIEST),
        [elements("1@1"), elements("2@4"), watermark(10)],
        ["0-10: 1 | early 0/- first @1", "0-10: 1 2 | early 1/- @4"],
    ),
    "a merged session has the earliest of all": (
        sessions(at=TimestampCombiner.OUTPUT_AT_EARLIEST),
        [elements("1@1"), elements("2@15"), elements("3@8")],
        ["1-25: 1 2 3 | on time 0/0 first last @1"],
    ),
}

CASES = {**DEFAULT, **BEFORE_AND_AFTER, **COUNTS_AND_CLOCKS, **COMPOSITES, **SESSIONS, **TIMESTAMPS}


@pytest.mark.parametrize(("into", "steps", "expected"), CASES.values(), ids=CASES.keys())
def test_a_stream_fires_the_panes_that_were_worked_out_by_hand(
    into: Any, steps: list[Any], expected: list[str]
) -> None:
    assert sorted(panes_of(into, *steps)) == sorted(expected)
