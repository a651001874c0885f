"""Staging on objects: our own code on a simulated store, crashed before and after every request.

The simulated store has conditional puts and no rename, as S3, Google Cloud Storage and Azure Blob Storage. The price is
the rule for consumers, who must not remove a file before the commit after its publication: a crash between copy and
delete would otherwise publish the file a second time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from penstock.io.staging import operations, publish, remote
from penstock.io.staging.names import STAGING
from penstock.io.staging.remote import RemoteStore
from penstock.object_stores.location import Location
from penstock.object_stores.requests import RequestUncertainError
from penstock.object_stores.store import ObjectStore
from tests.simulation.staging.epochs import CrashPoint, World, play
from tests.support.object_stores.simulated import SimulatedClock, SimulatedRequests

Answer = TypeVar("Answer")
Objects = dict[str, bytes]

LOCATION = Location("s3", "bucket", "out")


@dataclass(eq=False)
class CrashingRequests(SimulatedRequests):
    """Requests that may kill the process, and from time to time lose their answer."""

    crash: CrashPoint = field(default_factory=CrashPoint)
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    lose: float = 0.0

    def _answer(self, operation: str, key: str, effect: Callable[[], Answer]) -> Answer:
        # Before and after the request: the chances must not depend on the crash.
        before, after = self.rng.random() < self.lose, self.rng.random() < self.lose
        if before:
            raise RequestUncertainError("503")
        answer: Answer = self.crash.request(effect)
        if after:
            raise RequestUncertainError("a lost connection")
        return answer


class Bucket:
    """The objects, as programs other than the pipeline see them."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def published(self) -> Objects:
        return {name: content for name, content in self._objects.items() if not name.startswith(STAGING)}

    def take(self, name: str) -> None:
        del self._objects[name]

    def staged(self) -> list[str]:
        return [name for name in self._objects if name.startswith(STAGING) and "/since_" not in name]


@pytest.fixture(params=[False, True], ids=["copies through the worker", "copies in the store"])
def fresh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    # A thread that a crash has ended must not be followed by another one.
    for module in (publish, operations):
        monkeypatch.setattr(module, "in_parallel", lambda act, items: [act(item) for item in items])

    def fresh(lose: float = 0.0, seed: int = 0) -> World:
        requests = CrashingRequests(copies_if_absent=request.param, rng=random.Random(seed), lose=lose)
        clock = SimulatedClock()
        objects = ObjectStore(LOCATION.url, requests, 60.0, clock, clock.pause)
        monkeypatch.setattr(remote, "store_at", lambda location: objects)
        monkeypatch.setattr(remote, "_marked", set())
        return World(RemoteStore(LOCATION), Bucket(requests.objects), requests.crash, take_at_once=False)

    return fresh


@pytest.mark.long_cases("1", seconds=5)
@pytest.mark.parametrize("seed", range(2))
def test_a_crash_before_or_after_any_request_loses_nothing_doubles_nothing_and_keeps_order(fresh, seed):
    requests = play(fresh(), seed, None, True)
    assert requests > 20
    for crash_at in range(requests):
        for before in (True, False):
            play(fresh(), seed, crash_at, before)


@pytest.mark.parametrize("seed", range(60))
def test_lost_answers_zombies_paused_publishers_and_late_clean_ups_change_nothing(fresh, seed):
    crash_at = random.Random(seed).randrange(100)
    play(fresh(lose=0.05, seed=seed), seed, crash_at, bool(seed % 2), twists=True)


def test_a_consumer_that_removes_files_before_the_next_commit_may_see_them_twice(fresh):
    """This is the reason for the rule; if it never fails, the simulation does not reach the crash that it is about."""
    outcomes = []
    for crash_at in range(play(fresh(), 0, None, True)):
        world = fresh()
        world.take_at_once = True
        try:
            play(world, 0, crash_at, False)
        except AssertionError as error:
            outcomes.append(str(error))
    assert any("appeared again" in outcome for outcome in outcomes)
