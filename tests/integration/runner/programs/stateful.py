"""A stream through every kind of window, state and timer, into files; for kill campaigns.

    python -m tests.integration.runner.programs.stateful OUTPUT CHECKPOINT HOOKS KEYS [runner options]

Each key counts 0, 1, 2, … until there is a file HOOKS/end, and then up to the number in it; every
`LATE_EVERY`th number comes a second time, late. The results go into one table of files; `"what"` says which:

    number        what was read
    running       counts of `WINDOW`s, early and late panes, each with all so far
    since         the same counts, each pane with what is new
    session       the numbers of a session
    tick          a timer in event time that sets itself again, every `TICK` of a window
    bell          a timer for each number, by a dynamic tag
    book          the contents of all kinds of state at the end of a window
    queue         numbers that a timer in processing time has let go, and that its hold kept from being late

The results do not depend on where epochs end; `tests.integration.runner.test_kills` computes the expected ones.
Steps create empty files in HOOKS, which show the killing process how far an epoch is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import StrUtf8Coder, VarIntCoder
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms import trigger, userstate, window
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from penstock.io.files import WriteToJsonLines
from penstock.runner import PySparkRunner
from tests.integration.files.counting import ENDLESS, Count, HookFn

START = 1_763_740_800  # 2025-11-21T16:00:00Z
PER_SECOND = 150
"""Numbers of a key a second."""
WINDOW, TICK, GAP = 10, 3, 10
"""Seconds of event time: of a window, between two ticks in it, and between two sessions."""
BURST, PAUSE = 50, 25
"""After so many numbers, one a second of event time, there are so many seconds without any."""
LATE_EVERY, LATE = 7, 15
"""Which numbers come again, and how many seconds of event time behind."""
BELL_EVERY = 4
RESIDUES = 3

Row = dict[str, Any]
Pair = tuple[str, int]


def second(number: int) -> int:
    """The event time of a number, in seconds since `START`."""
    return number + PAUSE * (number // BURST)


class NumbersFn(beam.DoFn):
    """(key, number) on time, and tagged "late" those that come again."""

    def __init__(self, hooks: str) -> None:
        self._hooks = hooks

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: str,
        tracker: Any = beam.DoFn.RestrictionParam(Count()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        number, end = tracker.current_restriction().start, self._end()
        if number > end:
            raise AssertionError(f"{element} was read to {number} before it was to end at {end}")
        while tracker.try_claim(number if number < end else ENDLESS):
            at = Timestamp(START + second(number))
            yield TimestampedValue((element, number), at)
            if number % LATE_EVERY == 0:
                yield beam.pvalue.TaggedOutput("late", TimestampedValue((element, number), at - LATE))
            watermark.set_watermark(at)
            number += 1
            if end == ENDLESS:
                time.sleep(1 / PER_SECOND)

    def _end(self) -> int:
        end = Path(self._hooks, "end")
        return int(end.read_text()) if end.exists() else ENDLESS


class BookFn(beam.DoFn):
    """Stores numbers for each key and window in every kind of state; event-time timers emit the contents."""

    COUNT = userstate.ReadModifyWriteStateSpec("count", VarIntCoder())
    NUMBERS = userstate.BagStateSpec("numbers", VarIntCoder())
    RESIDUES = userstate.SetStateSpec("residues", VarIntCoder())
    SUM = userstate.CombiningValueStateSpec("sum", combine_fn=sum)
    BACKWARDS = userstate.OrderedListStateSpec("backwards", VarIntCoder())
    TICKS = userstate.BagStateSpec("ticks", VarIntCoder())
    TICK = userstate.TimerSpec("tick", TimeDomain.WATERMARK)
    BELL = userstate.TimerSpec("bell", TimeDomain.WATERMARK)
    NEVER = userstate.TimerSpec("never", TimeDomain.WATERMARK)
    END = userstate.TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self,
        element: Pair,
        at: Any = beam.DoFn.TimestampParam,
        within: Any = beam.DoFn.WindowParam,
        count: Any = beam.DoFn.StateParam(COUNT),
        numbers: Any = beam.DoFn.StateParam(NUMBERS),
        residues: Any = beam.DoFn.StateParam(RESIDUES),
        total: Any = beam.DoFn.StateParam(SUM),
        backwards: Any = beam.DoFn.StateParam(BACKWARDS),
        tick: Any = beam.DoFn.TimerParam(TICK),
        bell: Any = beam.DoFn.TimerParam(BELL),
        never: Any = beam.DoFn.TimerParam(NEVER),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        number = element[1]
        before = count.read() or 0
        count.write(before + 1)
        numbers.add(number)
        residues.add(number % RESIDUES)
        total.add(number)
        backwards.add((Timestamp(-number), number))
        if not before:
            tick.set(within.start + TICK)
            never.set(within.start + TICK + 1)
            end.set(within.max_timestamp())
        if number % BELL_EVERY == 0:
            bell.set(at + 0.5, dynamic_timer_tag=str(number))

    @userstate.on_timer(TICK)
    def on_tick(
        self,
        key: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        within: Any = beam.DoFn.WindowParam,
        ticks: Any = beam.DoFn.StateParam(TICKS),
        tick: Any = beam.DoFn.TimerParam(TICK),
        never: Any = beam.DoFn.TimerParam(NEVER),
    ) -> Iterator[Row]:
        ticks.add(int(at) - START)
        never.clear()
        if at + TICK < within.end:
            tick.set(at + TICK)
        yield {"what": "tick", "key": key, "at": int(at) - START}

    @userstate.on_timer(BELL)
    def on_bell(
        self,
        key: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
    ) -> Iterator[Row]:
        yield {"what": "bell", "key": key, "number": int(tag), "at": float(at) - START}

    @userstate.on_timer(NEVER)
    def on_never(self, key: Any = beam.DoFn.KeyParam) -> Iterator[Row]:
        yield {"what": "a timer that was cleared", "key": key}

    @userstate.on_timer(END)
    def on_end(
        self,
        key: Any = beam.DoFn.KeyParam,
        within: Any = beam.DoFn.WindowParam,
        count: Any = beam.DoFn.StateParam(COUNT),
        numbers: Any = beam.DoFn.StateParam(NUMBERS),
        residues: Any = beam.DoFn.StateParam(RESIDUES),
        total: Any = beam.DoFn.StateParam(SUM),
        backwards: Any = beam.DoFn.StateParam(BACKWARDS),
        ticks: Any = beam.DoFn.StateParam(TICKS),
    ) -> Iterator[Row]:
        yield {
            "what": "book",
            "key": key,
            "start": int(within.start) - START,
            "count": count.read(),
            "numbers": list(numbers.read()),
            "residues": sorted(residues.read()),
            "sum": total.read(),
            "backwards": [number for _, number in backwards.read()],
            "ticks": list(ticks.read()),
        }


class QueueFn(beam.DoFn):
    """Stores numbers until a processing-time timer emits them, at the event time of the first of them."""

    WAITING = userstate.BagStateSpec("waiting", VarIntCoder())
    OPEN = userstate.ReadModifyWriteStateSpec("open", StrUtf8Coder())
    GO = userstate.TimerSpec("go", TimeDomain.REAL_TIME)

    def process(
        self,
        element: Pair,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        opened: Any = beam.DoFn.StateParam(OPEN),
        go: Any = beam.DoFn.TimerParam(GO),
    ) -> None:
        if not opened.read():
            go.set(Timestamp.now() + 0.3)
            opened.write("since now")
        waiting.add(element[1])

    @userstate.on_timer(GO)
    def on_go(
        self,
        key: Any = beam.DoFn.KeyParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        opened: Any = beam.DoFn.StateParam(OPEN),
    ) -> Iterator[tuple[str, list[int]]]:
        yield key, list(waiting.read())
        waiting.clear()
        opened.clear()


def _panes(pairs: beam.PCollection, what: str, mode: Any, early: Any, late: Any) -> beam.PCollection:
    """Counts of a key's numbers in `WINDOW`s; nothing that is `LATE` is too late."""
    windows = beam.WindowInto(
        window.FixedWindows(WINDOW),
        trigger=trigger.AfterWatermark(early=early, late=late),
        accumulation_mode=mode,
        allowed_lateness=LATE + WINDOW,
    )

    def row(count: Pair, within: Any = beam.DoFn.WindowParam, pane: Any = beam.DoFn.PaneInfoParam) -> Row:
        return {
            "what": what,
            "key": count[0],
            "start": int(within.start) - START,
            "count": count[1],
            "index": pane.index,
            "timing": pane.timing,
            "nonspeculative": pane.nonspeculative_index,
        }

    counts = pairs | f"Windows {what}" >> windows | f"Count {what}" >> beam.combiners.Count.PerKey()
    return counts | f"Row {what}" >> beam.Map(row)


def _session(group: tuple[str, Iterable[int]], within: Any = beam.DoFn.WindowParam) -> Row:
    start, end = int(within.start) - START, int(within.end) - START
    return {"what": "session", "key": group[0], "start": start, "end": end, "numbers": sorted(group[1])}


def _queued(group: tuple[str, Iterable[list[int]]]) -> Iterator[Row]:
    for numbers in group[1]:
        for number in numbers:
            yield {"what": "queue", "key": group[0], "number": number}


def build(pipeline: beam.Pipeline, output: str, hooks: str, keys: int) -> beam.PCollection:
    """Apply the pipeline; its keys are ``k0`` to ``k<keys - 1>``."""
    read = (
        pipeline
        | beam.Create([f"k{number}" for number in range(keys)])
        | "Read" >> beam.ParDo(NumbersFn(hooks)).with_outputs("late", main="numbers")
    )
    numbers = (
        read.numbers
        | "As pairs" >> beam.Map(lambda pair: pair).with_output_types(Pair)
        | "Was read" >> beam.ParDo(HookFn(hooks, "read")).with_output_types(Pair)
    )
    late = read.late | "As pairs too" >> beam.Map(lambda pair: pair).with_output_types(Pair)
    everything = (numbers, late) | "Everything" >> beam.Flatten()
    fixed = numbers | "Fixed" >> beam.WindowInto(window.FixedWindows(WINDOW))
    queued = (
        numbers
        | "Queue" >> beam.ParDo(QueueFn()).with_output_types(tuple[str, list[int]])
        | "Went on" >> beam.ParDo(HookFn(hooks, "timer")).with_output_types(tuple[str, list[int]])
        | "Not late" >> beam.WindowInto(window.FixedWindows(WINDOW))
        | "Queued" >> beam.GroupByKey()
    )
    accumulating, discarding = trigger.AccumulationMode.ACCUMULATING, trigger.AccumulationMode.DISCARDING
    branches = [
        numbers | "Row number" >> beam.Map(lambda p: {"what": "number", "key": p[0], "number": p[1]}),
        _panes(everything, "running", accumulating, trigger.AfterCount(4), trigger.AfterCount(1)),
        _panes(everything, "since", discarding, trigger.AfterProcessingTime(1), trigger.AfterCount(2)),
        numbers
        | "Sessions" >> beam.WindowInto(window.Sessions(GAP))
        | "Session" >> beam.GroupByKey()
        | "Row session" >> beam.Map(_session),
        fixed | "Book" >> beam.ParDo(BookFn()),
        queued | "Row queue" >> beam.FlatMap(_queued),
    ]
    rows = [
        branch | f"In one window {n}" >> beam.WindowInto(window.GlobalWindows())
        for n, branch in enumerate(branches)
    ]
    return (
        rows
        | "Rows" >> beam.Flatten()
        | WriteToJsonLines(output, table="rows", key=lambda row: row["key"], shards=2, roll_seconds=0.3)
    )


def main(output: str, checkpoint: str, hooks: str, keys: str, *options: str) -> int:
    """Run to the end; 0 if the pipeline is DONE."""
    arguments = [
        f"--checkpoint_dir={checkpoint}",
        "--streaming",
        "--allow_unsafe_triggers",
        "--spark_master=local[2,4]",
        "--epoch_seconds=0.3",
        *options,
    ]
    pipeline = beam.Pipeline(runner=PySparkRunner(), argv=arguments)
    build(pipeline, output, hooks, int(keys))
    result = pipeline.run()
    return 0 if result.wait_until_finish() == "DONE" else 1


if __name__ == "__main__":
    from tests.integration.runner.programs import stateful  # workers must find the DoFns by name

    sys.exit(stateful.main(*sys.argv[1:]))
