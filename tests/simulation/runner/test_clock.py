"""The wall clock may be set back; a stream reads on."""

from __future__ import annotations

import itertools

import apache_beam as beam

from penstock.runner.protocol.coordinator import wall_clock_us
from penstock.runner.protocol.record import CommitRecord
from tests.integration.runner.sources import CountFn
from tests.simulation.stream import run_stream

HOUR_US = 3600 * 10**6


def test_what_gave_the_rest_back_for_a_moment_does_not_wait_for_the_hour_that_the_clock_was_set_back() -> (
    None
):
    set_back, asked = [0], itertools.count()

    def after_the_first(record: CommitRecord, *_: object) -> None:
        set_back[0] = HOUR_US if record.epochs >= 2 else 0

    record = run_stream(
        lambda p: p | beam.Create([7]) | beam.ParDo(CountFn(10_000, 50, defer_every=10)),
        on_commit=after_the_first,
        now_us=lambda: wall_clock_us() - set_back[0],
        stop=lambda _: next(asked) > 40,
    )
    assert record.state.done
