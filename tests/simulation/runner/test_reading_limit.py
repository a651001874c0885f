"""How the limit of an epoch's records follows a slow step, with a simulated pipeline: no clock, no Spark."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.runner.driver.reading_limit import FIXED_SHARE, MAX_WORK, EpochCost, ReadingLimit, epoch_cost
from penstock.runner.tasks.epoch import TaskReport

READING, MOST = 0.5, 200_000
"""The defaults of `--epoch_seconds` and `--epoch_max_records`."""

PER_SECOND = 100_000
"""Records that a task can read in a second."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch of the simulation, in seconds."""

    records: int
    work: float
    seconds: float
    limit: int


def simulate(
    cost: Callable[[int], float],
    *,
    fixed: float = 0.15,
    hidden: Callable[[int], float] = lambda epoch: 0.02,
    tasks: tuple[float, ...] = (1.0, 1.0),
    epochs: int = 60,
    noise: float = 0.0,
    limited: bool = True,
    seed: int = 1,
) -> list[Epoch]:
    """Run epochs with an endless backlog.

    `cost` and `hidden` are the seconds of work for each record, and for each epoch, by the number of the epoch. A task
    reads its share `tasks` of what one can read. The limit is not exact: a reader reads on for 5 ms.
    """
    chance, limit, done = random.Random(seed), ReadingLimit(READING, MOST), []
    for number in range(epochs):
        allowed = limit.max_records if limited else MOST
        read = [int(min(share * PER_SECOND * READING, allowed + 500)) for share in tasks]
        work = (hidden(number) + cost(number) * sum(read)) * math.exp(chance.gauss(0, noise))
        limit.observe(EpochCost(tuple(read), work, fixed))
        done.append(Epoch(sum(read), work, max(read) / PER_SECOND + work + fixed, limit.max_records))
    return done


def throughput(epochs: list[Epoch]) -> float:
    return sum(each.records for each in epochs) / sum(each.seconds for each in epochs)


def test_a_fast_step_is_never_limited() -> None:
    assert {each.limit for each in simulate(lambda epoch: 1e-6, noise=0.4)} == {MOST}


def test_one_epoch_is_enough_to_find_the_limit_of_a_slow_step() -> None:
    first, *later = simulate(lambda epoch: 5e-4)
    assert first.seconds > 50
    assert all(2.0 < each.seconds < 4.0 for each in later)


def test_epochs_with_a_slow_step_do_not_swing_between_long_and_short() -> None:
    for noise in (0.0, 0.2):
        steady = [each.seconds for each in simulate(lambda epoch: 5e-4, noise=noise)[10:]]
        assert statistics.stdev(steady) <= 1.5 * noise * statistics.mean(steady) + 0.01


def test_shorter_epochs_cost_little_throughput() -> None:
    for cost in (5e-5, 5e-4):
        limited, free = (
            throughput(simulate(lambda epoch, cost=cost: cost, noise=0.1, limited=on)[1:])
            for on in (True, False)
        )
        assert limited > 0.93 * free


def test_a_limit_is_taken_back_when_the_step_becomes_fast() -> None:
    later = simulate(lambda epoch: 5e-4 if epoch < 15 else 1e-6)[15:]
    assert later[8].limit == MOST
    assert sum(each.seconds for each in later[:8]) < 5


def test_a_step_that_becomes_slow_is_limited_within_a_few_epochs() -> None:
    later = simulate(lambda epoch: 1e-6 if epoch < 15 else 5e-4)[15:]
    assert all(each.seconds < 8 for each in later[1:])
    assert all(each.seconds < 4 for each in later[8:])


def test_a_fixed_cost_of_each_epoch_does_not_make_epochs_tiny() -> None:
    for fixed, hidden in ((5.0, 0.02), (0.15, 5.0)):
        run = simulate(
            lambda epoch: 1e-6, fixed=fixed, hidden=lambda epoch, hidden=hidden: hidden, epochs=300
        )
        free = simulate(
            lambda epoch: 1e-6, fixed=fixed, hidden=lambda epoch, hidden=hidden: hidden, limited=False
        )
        assert throughput(run) > 0.9 * throughput(free), (fixed, hidden)


def test_one_odd_epoch_is_forgotten_soon() -> None:
    run = simulate(lambda epoch: 1e-6, hidden=lambda epoch: 80.0 if epoch == 10 else 0.02)
    assert sum(each.seconds for each in run[11:20]) < 5
    assert run[20].limit == MOST


def test_one_task_with_all_of_the_backlog_reads_what_the_others_do_not() -> None:
    even = simulate(lambda epoch: 5e-4)[-1]
    uneven = simulate(lambda epoch: 5e-4, tasks=(1.0, 0.0001, 0.0001, 0.0001))[-1]
    assert 0.8 < uneven.records / even.records < 1.2


def test_epochs_with_little_input_do_not_hide_how_slow_a_step_is() -> None:
    limit = ReadingLimit(READING, MOST)
    limit.observe(EpochCost((50_000, 50_000), 50.0, 0.15))
    known = limit.max_records
    for _ in range(1_000):
        limit.observe(EpochCost((5, 5), 0.02, 0.15))
    assert limit.max_records <= 2 * known


def test_an_epoch_that_has_read_nothing_changes_nothing() -> None:
    limit = ReadingLimit(READING, MOST)
    limit.observe(EpochCost((50_000, 50_000), 50.0, 0.15))
    known = limit.max_records
    limit.observe(EpochCost((0, 0), 100.0, 100.0))
    limit.observe(EpochCost((), 100.0, 100.0))
    assert limit.max_records == known


seconds = st.floats(0, 1e4, allow_nan=False)
costs = st.builds(EpochCost, st.lists(st.integers(0, 10**7), max_size=4).map(tuple), seconds, seconds)


@given(st.lists(costs, max_size=40))
def test_the_limit_is_always_between_one_record_and_that_of_the_user(epochs: list[EpochCost]) -> None:
    limit = ReadingLimit(READING, MOST)
    for epoch in epochs:
        limit.observe(epoch)
        assert 1 <= limit.max_records <= MOST


@given(
    cost=st.floats(1e-6, 1e-3),
    fixed=st.floats(0.05, 2.0),
    hidden=st.floats(0.0, 0.05),
    rates=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4),
)
def test_any_steady_cost_leads_to_a_steady_epoch_of_the_wanted_length(
    cost: float, fixed: float, hidden: float, rates: list[float]
) -> None:
    run = simulate(
        lambda epoch: cost, fixed=fixed, hidden=lambda epoch: hidden, tasks=tuple(rates), epochs=40
    )
    wanted = max(MAX_WORK * READING, FIXED_SHARE * fixed)
    # A limit of fewer records than a reader reads beyond it has no effect.
    assume(wanted / cost > 20 * 500 * len(rates))
    assert all(each.work <= 1.1 * (wanted + FIXED_SHARE * hidden) for each in run[-5:])
    at_most = min(wanted, run[0].work)
    assert all(each.work >= 0.5 * at_most for each in run[-5:])
    assert run[-1].limit <= 1.05 * run[-2].limit + 1


def test_what_tasks_do_side_by_side_is_no_fixed_cost_and_hides_none() -> None:
    reports = [
        TaskReport("a", records_read=100, reading_seconds=2.0),
        TaskReport("b", publishing_seconds=1.5),
        TaskReport("c", level=1, working_seconds=0.25),
    ]
    cost = epoch_cost(reports, 2.75, task_slots=2)
    assert (cost.work_seconds, cost.fixed_seconds) == (0.25, 0.5)
