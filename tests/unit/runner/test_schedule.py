"""Due work, as functions of the state of a record, the plan and a time."""

from __future__ import annotations

import math

import pytest

from penstock.runner.driver.schedule import (
    Schedule,
    residuals_due_until_us,
    seconds_until_next_due,
    split_by_due,
    timers_set_back_us,
)
from penstock.runner.planning.plan import Edge, Origin, Plan, Routing, Stage
from penstock.runner.protocol.record import (
    EarliestTimers,
    EpochState,
    Publication,
    Residual,
    WatermarkKey,
)
from penstock.runner.tasks.epoch import MAX_US

_READ = WatermarkKey.carried("Read")
_EDGE = Edge(0, "Read", "numbers", Routing.RESIDUAL, 0, (0,), 1)
PLAN = Plan(
    id="plan",
    components=b"",
    stages=(
        Stage(0, "Impulse", 0, Origin.IMPULSE, "", "", {}, (), (0,), step="Impulse"),
        Stage(1, "Read", 0, Origin.RESIDUAL, "", "", {}, (0,), (), step="Read", reads="Read"),
    ),
    edges=(_EDGE,),
    streaming=True,
)
SCHEDULE = Schedule(PLAN)


def _residual(not_before_us: int) -> Residual:
    return Residual("Read", "1.0", b"", 0, not_before_us)


def _state(**fields: object) -> EpochState:
    """A state after the first epoch: the Impulse has fired and all watermarks are settled."""
    base = {
        "fired_impulses": {"Impulse": ("Read",)},
        "watermarks": {_READ: MAX_US},
        "observed_watermarks": {_READ: MAX_US},
    }
    return EpochState(**{**base, **fields})  # type: ignore[arg-type]


def test_a_residual_is_due_at_its_time_and_not_before() -> None:
    due, waiting = split_by_due([_residual(9), _residual(10), _residual(11)], until_us=10)
    assert [r.not_before_us for r in due] == [9, 10]
    assert [r.not_before_us for r in waiting] == [11]


def test_a_successor_waits_while_any_earlier_read_of_its_element_is_left() -> None:
    ids = ["1.0", "1.0", "1.0+", "1.0++", "1.00+", "2.0++"]
    residuals = [Residual("Read", each, b"", 0, 0) for each in ids]
    due, waiting = split_by_due([*residuals, Residual("Other", "1.0+", b"", 0, 0)], until_us=MAX_US)
    assert len(due) == 5
    assert [(r.transform, r.element_id) for r in waiting] == [("Read", "1.0+"), ("Read", "1.0++")]
    _, waiting = split_by_due(residuals[2:], until_us=0)
    assert [r.element_id for r in waiting] == ["1.0++"]


def test_a_waiting_successor_makes_nothing_due() -> None:
    waiting = (Residual("Read", "1.0", b"", 0, 5_000_000), Residual("Read", "1.0+", b"", 0, 0))
    assert seconds_until_next_due(_state(residuals=waiting), 0) == 5.0


def test_every_residual_is_due_when_the_clock_was_set_back() -> None:
    assert residuals_due_until_us(now_us=99, committed_us=100) == MAX_US
    assert residuals_due_until_us(now_us=100, committed_us=100) == 100


@pytest.mark.parametrize(
    "work",
    [
        {"publications": (Publication("Publish", b""),)},
        {"fired_impulses": {}},
        {"timers": (EarliestTimers("Count", 0, 127, processing_us=100),)},
    ],
    ids=["a publication", "an Impulse", "a timer that is due"],
)
def test_work_that_is_due_makes_the_driver_busy(work: dict[str, object]) -> None:
    assert not SCHEDULE.is_busy(_state(), [], now_us=100)
    assert SCHEDULE.is_busy(_state(**work), [], now_us=100)


def test_no_epoch_runs_while_the_only_residual_waits() -> None:
    state = _state(residuals=(_residual(200),))
    assert not SCHEDULE.needs_epoch(state, [], now_us=100)
    assert SCHEDULE.needs_epoch(state, list(state.residuals), now_us=200)


def test_an_epoch_runs_to_find_that_the_pipeline_is_done() -> None:
    assert SCHEDULE.needs_epoch(_state(), [], now_us=100)


@pytest.mark.parametrize(("observed", "needed"), [({_READ: MAX_US}, False), ({_READ: 5}, True), ({}, True)])
def test_with_timers_alone_an_epoch_runs_until_the_watermarks_are_settled(
    observed: dict[WatermarkKey, int], needed: bool
) -> None:
    timers = (EarliestTimers("Count", 0, 127, processing_us=200),)
    state = _state(timers=timers, observed_watermarks=observed)
    assert SCHEDULE.needs_epoch(state, [], now_us=100) is needed


def test_a_carried_step_without_a_watermark_is_never_settled() -> None:
    assert not SCHEDULE.watermarks_settled(_state(watermarks={}, observed_watermarks={}))


@pytest.mark.parametrize(("mark", "complete"), [(MAX_US, True), (MAX_US - 1, False)])
def test_input_is_complete_when_the_watermark_of_every_carried_step_is_at_the_end(
    mark: int, complete: bool
) -> None:
    assert SCHEDULE.input_complete(_state(watermarks={_READ: mark})) is complete


def test_the_clock_of_a_test_stream_advances_to_the_earliest_timer() -> None:
    timers = tuple(EarliestTimers("Count", g, g, processing_us=at) for g, at in ((0, 300), (1, 200)))
    assert SCHEDULE.advance_clock_to_next_timer(_state(timers=timers), clock_us=150) == 50
    assert SCHEDULE.advance_clock_to_next_timer(_state(), clock_us=150) is None
    waiting = _state(timers=timers, residuals=(_residual(0),))
    assert SCHEDULE.advance_clock_to_next_timer(waiting, clock_us=150) is None


def test_the_next_due_time_is_the_earliest_of_residuals_and_timers() -> None:
    timers = (EarliestTimers("Count", 0, 127, processing_us=4_000_000),)
    state = _state(residuals=(_residual(5_000_000),), timers=timers)
    assert seconds_until_next_due(state, now_us=1_000_000) == 3.0
    assert seconds_until_next_due(state, now_us=9_000_000) == 0.0
    assert seconds_until_next_due(_state(), now_us=0) == math.inf


def test_timers_move_back_with_the_clock_and_only_then() -> None:
    timers = (EarliestTimers("Count", 0, 127, processing_us=4_000_000),)
    state = _state(timers=timers)
    assert timers_set_back_us(state, now_us=1_000_000, committed_us=3_500_000) == 2_500_000
    assert timers_set_back_us(state, now_us=3_500_001, committed_us=3_500_000) == 0
    assert timers_set_back_us(_state(), now_us=1_000_000, committed_us=3_500_000) == 0


def _longest_wait(state: EpochState, due: int = 1, waiting: int | None = None) -> float:
    later = [] if waiting is None else [_residual(waiting)]
    return SCHEDULE.longest_wait_seconds(state, [_residual(0)] * due, later, tasks=2, now_us=10)


def test_tasks_of_an_epoch_that_only_reads_may_wait_until_something_is_due() -> None:
    assert _longest_wait(_state()) == math.inf
    assert _longest_wait(_state(), waiting=3_000_010) == 3.0
    timers = (EarliestTimers("Write", 0, 127, event_us=MAX_US, processing_us=2_000_010),)
    assert _longest_wait(_state(timers=timers)) == 2.0


@pytest.mark.parametrize(
    "state",
    [
        _state(publications=(Publication("Publish", b""),)),
        _state(fired_impulses={}),
        _state(draining=True),
        _state(timers=(EarliestTimers("Count", 0, 127, event_us=5_000_000),)),
    ],
    ids=["publications", "impulses", "drain", "windows"],
)
def test_results_and_windows_do_not_wait_for_data_of_a_reader(state: EpochState) -> None:
    assert _longest_wait(state) == 0.0


def test_a_task_with_two_residuals_does_not_wait_long_for_the_first_one() -> None:
    assert _longest_wait(_state(), due=2) == math.inf
    assert _longest_wait(_state(), due=3) == 0.0
