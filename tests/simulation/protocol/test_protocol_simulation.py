"""Our own coordinator, records, checkpoint and state store under crashes, pauses, lost answers and second
drivers.

`PENSTOCK_SEED=<n>` with the seed that a failure prints replays the run (and those after it).
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest
from protocol_epoch import Driver
from protocol_objects import object_files
from protocol_scheduler import Scheduler, Temper, Violation
from protocol_world import SOURCE, World

from penstock.runner.store.runs import RunCache

WRITES = ("write", "put")
"""How a trace names the writing of a file, on a disk and on an object store."""


def temper(rng: random.Random, *, drivers: int) -> Temper:
    """Draw the probabilities of faults in a run."""
    return Temper(
        switch=rng.choice([0.3, 0.1, 0.03, 0.01]) if drivers else 0.0,
        fault=rng.choice([0.1, 0.03, 0.01]),
        faults=rng.randint(0, 6),
        starts=drivers,
        steps=rng.choice([100, 300, 600]),
    )


def simulate(seed: str, *, drivers: int, objects: bool = False) -> Scheduler:
    """Run one simulation, on files or on objects; a Violation carries seed and trace."""
    rng = random.Random(seed)
    nonces = (f"n{i:04d}" for i in itertools.count())
    caches = [RunCache(), RunCache()]

    def start(name: str) -> Callable[[], None]:
        return Driver(world, name, caches, nonces).run

    schedule = Scheduler(rng, temper(rng, drivers=drivers), start)
    world = World(schedule)
    if objects:
        world.file_system_of = object_files
    try:
        schedule.play(world.complete)
        world.check_state()
        everything = Counter(key for keys in SOURCE.values() for key in keys)
        if world.published != everything:
            raise Violation(f"P published {dict(world.published)} of {dict(everything)}")
    except Violation as violation:
        raise AssertionError("\n".join([f"seed {seed!r}: {violation}", *schedule.trace[-200:]])) from None
    finally:
        schedule.violation = ""
        schedule.bury()
    return schedule


def run_many(campaign, salt: str, runs: int, *, drivers: int, objects: bool = False) -> dict[str, int]:
    """Run many simulations; return counts of their events, so that the test can require that faults occurred."""
    figures = Counter(runs=runs)
    for number in range(runs):
        trace = simulate(f"{campaign.seed}/{salt}/{number}", drivers=drivers, objects=objects).trace
        figures["steps"] += len(trace)
        figures["crashed"] += sum(line.endswith(": crashed") for line in trace)
        figures["superseded"] += sum(line.endswith(": superseded") for line in trace)
        figures["aborted"] += sum(": failed EpochAbortedError" in line for line in trace)
        figures["unknown"] += sum(": ! no answer" in line for line in trace)
        figures["listings lagged"] += sum(": ! the listing lags" in line for line in trace)
        figures["stopped without an answer"] += sum(
            line.endswith(": no answer for too long") for line in trace
        )
        figures["side files"] += sum(
            f": {verb} checkpoint/side/" in line for line in trace for verb in WRITES
        )
        figures["cleaned up"] += sum(": delete " in line for line in trace)
    return dict(figures)


@pytest.mark.long(seconds=5)
def test_one_driver_publishes_exactly_once_despite_crashes(campaign):
    figures = run_many(campaign, "one", campaign.size(300, 20_000), drivers=0)
    assert min(figures["crashed"], figures["aborted"], figures["unknown"], figures["side files"]) > 20
    campaign.record("protocol-simulation-one-driver", **figures)


@pytest.mark.slow
def test_two_drivers_paused_anywhere_publish_exactly_once(campaign):
    figures = run_many(campaign, "two", campaign.size(400, 60_000), drivers=3)
    assert min(figures["crashed"], figures["superseded"], figures["unknown"], figures["side files"]) > 100
    campaign.record("protocol-simulation-two-drivers", **figures)


@pytest.mark.long(seconds=5)
def test_one_driver_on_an_object_store_publishes_exactly_once_despite_crashes(campaign):
    figures = run_many(campaign, "one-object", campaign.size(300, 20_000), drivers=0, objects=True)
    assert min(figures["crashed"], figures["aborted"], figures["unknown"], figures["side files"]) > 20
    campaign.record("protocol-simulation-objects-one-driver", **figures)


@pytest.mark.long(seconds=20)
def test_two_drivers_on_an_object_store_publish_exactly_once(campaign):
    figures = run_many(campaign, "two-object", campaign.size(400, 60_000), drivers=3, objects=True)
    assert min(figures["crashed"], figures["superseded"], figures["unknown"], figures["side files"]) > 100
    assert figures["listings lagged"] > 10
    campaign.record("protocol-simulation-objects-two-drivers", **figures)


def test_a_seed_replays_its_run():
    for number in range(20):
        assert simulate(f"replay/{number}", drivers=3).trace == simulate(f"replay/{number}", drivers=3).trace
