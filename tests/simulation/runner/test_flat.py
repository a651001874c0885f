"""A long-running stream keeps no data of expired windows, old keys, old side-input panes and old records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms import trigger, userstate, window
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.window import TimestampedValue

from penstock.runner.protocol.record import CommitRecord
from tests.simulation.stream import run_stream

pytestmark = pytest.mark.slow

WARM = 50
"""Seconds of event time after which nothing may grow: more than any window, lateness and clean-up need."""


class OnceFn(beam.DoFn):
    """Stores each key and sets a timer for it. The DoFn never clears this state; it is deleted with its window."""

    SEEN = userstate.BagStateSpec("seen", beam.coders.StrUtf8Coder())
    TIMER = userstate.TimerSpec("timer", TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[str, str],
        side: Any,
        seen: Any = beam.DoFn.StateParam(SEEN),
        timer: Any = beam.DoFn.TimerParam(TIMER),
        within: Any = beam.DoFn.WindowParam,
    ) -> Iterator[str]:
        seen.add(element[1] * 10)
        timer.set(within.max_timestamp())
        yield element[1] + str(len(side))

    @userstate.on_timer(TIMER)
    def ring(self) -> Iterator[str]:
        yield "rung"


def _churn(seconds: int) -> TestStream:
    """Return three new keys for each second of event time, one of them late."""
    stream = TestStream()
    for at in range(seconds):
        stream.add_elements([TimestampedValue(f"{at}-{n}", at + n / 10) for n in range(2)])
        stream.add_elements([TimestampedValue(f"{at}-late", max(0, at - 2))])
        stream.advance_watermark_to(at)
    return stream


def _windows(fn: Any) -> beam.WindowInto:
    return beam.WindowInto(
        fn,
        trigger=trigger.AfterWatermark(early=trigger.AfterCount(1), late=trigger.AfterCount(2)),
        accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
        allowed_lateness=3,
    )


@pytest.mark.campaign
def test_state_records_and_folder_do_not_grow(campaign: Any) -> None:
    entries: list[int] = []
    folder_bytes: list[int] = []
    record_bytes: list[int] = []

    def look(record: CommitRecord, folder: Path) -> None:
        files = [path for path in folder.rglob("*") if path.is_file()]
        folder_bytes.append(sum(path.stat().st_size for path in files))
        record_bytes.append(max(path.stat().st_size for path in files if path.suffix == ".record"))
        entries.append(len(record.state.timers) + len(record.state.state_runs))

    def build(p: beam.Pipeline) -> None:
        pairs = p | _churn(seconds) | beam.Map(lambda value: (value, value))
        for name, fn in (("Fixed", window.FixedWindows(1)), ("Sessions", window.Sessions(1))):
            _ = pairs | name >> _windows(fn) | f"Group {name}" >> beam.GroupByKey()
        short = pairs | "Short" >> beam.WindowInto(window.FixedWindows(1), allowed_lateness=3)
        _ = short | beam.ParDo(OnceFn(), beam.pvalue.AsList(short | beam.Values()))

    seconds = campaign.size(110, 3000)
    run_stream(build, on_commit=look)
    epochs = len(entries) // seconds
    for figures in (entries, folder_bytes, record_bytes):
        warm, rest = figures[: WARM * epochs], figures[WARM * epochs : -3]
        assert max(rest) <= 1.2 * max(warm), (max(warm), max(rest))
    campaign.record(
        "flat", seconds=seconds, folder_bytes=max(folder_bytes[:-3]), record_bytes=max(record_bytes[:-3])
    )
