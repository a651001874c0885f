"""Until which time targets are complete, as records tell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.parked import ParkedTable
from penstock.runner.protocol.complete import (
    complete_until_us,
    others_complete_until_us,
    post_commit_steps,
)
from penstock.runner.protocol.record import (
    EpochState,
    ParkedPublications,
    Publication,
    Residual,
    WatermarkKey,
)

SEND, READ = WatermarkKey.carried("Send"), WatermarkKey.carried("Read")
WAITING = (Publication("Send", b"x"),)
LOWEST_US = -9_223_372_036_854_775_000


def test_waiting_publications_make_the_time_that_of_the_record_before() -> None:
    state = EpochState(publications=WAITING, watermarks={SEND: 20}, observed_watermarks={SEND: 10})
    assert complete_until_us(state) == {"Send": 10}


def test_without_publications_the_target_has_what_has_reached_the_step() -> None:
    state = EpochState(watermarks={SEND: 20}, observed_watermarks={SEND: 10})
    assert complete_until_us(state) == {"Send": 20}


def test_no_time_is_known_before_the_first_watermark_and_the_first_publication() -> None:
    first = EpochState(publications=WAITING, watermarks={SEND: 20})
    lowest = EpochState(watermarks={SEND: LOWEST_US})
    assert (complete_until_us(first), complete_until_us(lowest)) == ({"Send": None}, {"Send": None})


def test_the_end_of_the_input_is_no_time_because_the_source_may_have_later_changes() -> None:
    assert complete_until_us(EpochState(watermarks={SEND: -LOWEST_US}, done=True)) == {"Send": None}


def parked(complete_us: int) -> tuple[ParkedPublications, ...]:
    return (ParkedPublications("Send", ParkedTable("t", "t", "no", 1, 1, 1, False, b"", complete_us)),)


def test_a_sink_with_a_parked_table_keeps_the_time_at_which_it_was_refused() -> None:
    state = EpochState(watermarks={SEND: 20}, parked=parked(5))
    assert (complete_until_us(state), others_complete_until_us(state)) == ({"Send": 5}, {"Send": 20})
    assert complete_until_us(EpochState(watermarks={SEND: 20}, parked=parked(0))) == {"Send": None}


def test_steps_that_read_publish_nothing() -> None:
    residual = Residual("Read", "id", b"", 0, 0)
    reading = EpochState(residuals=(residual,), watermarks={READ: 1, SEND: 1})
    ended = EpochState(ended=(residual,), watermarks={READ: 1, SEND: 1})
    reported = EpochState(watermarks={READ: 1, SEND: 1, WatermarkKey.output("Read"): 1})
    assert [post_commit_steps(state) for state in (reading, ended, reported)] == [["Send"]] * 3


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_the_time_never_falls_and_is_never_ahead_of_what_is_published(
    epochs: list[tuple[int, bool]],
) -> None:
    """Each epoch moves the watermark on, and its record may name publications, which the next epoch publishes."""
    watermark, published, before = 1, 1, 0
    state = EpochState(watermarks={SEND: watermark})
    for moved, publishes in epochs:
        published = watermark  # the publications of the record are published before the next commit
        watermark += moved
        state = EpochState(
            publications=WAITING if publishes else (),
            watermarks={SEND: watermark},
            observed_watermarks=state.watermarks,
        )
        until = complete_until_us(state)["Send"]
        assert until is not None
        assert before <= until <= (published if publishes else watermark)
        before = until
