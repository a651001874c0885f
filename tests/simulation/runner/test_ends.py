"""A pipeline ends when no further input is possible, and runs no epochs while it only waits for timers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms import userstate
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.window import FixedWindows

from penstock.publish import PublishAfterCommit
from tests.panes.book import Step, elements, keyed, script, watermark
from tests.simulation.stream import run_stream

seen: list[Any] = []


class PassFn(beam.DoFn):
    """A post-commit step that emits its input."""

    def process(self, element: Any) -> Iterator[Any]:
        yield element


class LaterFn(beam.DoFn):
    """Emits an element from a processing-time timer, which holds the watermark until it fires."""

    TIMER = userstate.TimerSpec("timer", TimeDomain.REAL_TIME)

    def process(self, element: tuple[str, str], timer: Any = beam.DoFn.TimerParam(TIMER)) -> None:
        timer.set(100)

    @userstate.on_timer(TIMER)
    def ring(self) -> Iterator[str]:
        yield "rung"


def note(key: str, values: Any) -> None:
    seen.append(list(values))


def _in_time(tries: int) -> Callable[[], bool]:
    """Asked with every try of an epoch: fails the pipeline if there are more, idle ones too."""
    tried = itertools.count(1)

    def draining() -> bool:
        assert next(tried) <= tries, "the pipeline does not end"
        return False

    return draining


def _published(before: beam.PTransform, *steps: Step) -> list[Any]:
    """Return the elements by window after a post-commit step."""

    def build(p: beam.Pipeline) -> None:
        made = p | script(*steps) | before | PublishAfterCommit(PassFn())
        by_window = made | beam.WindowInto(FixedWindows(10)) | "Key" >> beam.Map(keyed)
        _ = by_window | beam.GroupByKey() | beam.MapTuple(note)

    seen.clear()
    run_stream(build, draining=_in_time(30))
    return list(seen)


def test_the_final_watermark_reaches_the_steps_after_a_step_that_has_published_everything() -> None:
    assert _published(beam.Map(str), elements("a@5"), watermark(8)) == [["a"]]


def test_after_the_last_scripted_event_the_clock_advances_to_a_timer_that_holds_a_published_step() -> None:
    later = "Key it" >> beam.Map(keyed) | "Later" >> beam.ParDo(LaterFn())
    assert _published(later, elements("a@5"), watermark(8)) == [["rung"]]
