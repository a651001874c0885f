"""Staging on a model of an object store, crashed before and after every request.

The model has conditional puts and copies and no rename, as S3, GCS and Azure Blob Storage. It shows that the verbs of
`FileStore` are enough for such a store. The price is the rule for consumers, who must not remove a file before the
commit after its publication: a crash between copy and delete would otherwise publish the file a second time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from penstock.io.staging import publish
from penstock.io.staging.errors import OutputError
from penstock.io.staging.names import STAGING
from tests.simulation.staging.epochs import CrashPoint, World, play

Objects = dict[str, bytes]


@dataclass
class ObjectStore:
    """A `FileStore` on objects. Each request takes effect as a whole, and a crash may lose its answer."""

    crash: CrashPoint
    objects: Objects = field(default_factory=dict)
    output: str = "s3://bucket/out"

    def check_location(self) -> None:
        """Nothing to check: there are no folders."""

    def check_writable(self) -> None:
        """Nothing to check: it is always writable."""

    def create(self, name: str, content: Iterable[bytes]) -> None:
        if not self._put_if_absent(name, b"".join(content)):
            raise OutputError(f"{name} exists")

    def sync(self, names: Iterable[str]) -> None:
        """Objects are durable at once."""

    def length(self, name: str) -> int | None:
        found: bytes | None = self.crash.request(lambda: self.objects.get(name))
        return None if found is None else len(found)

    def move(self, source: str, target: str) -> bool:
        content: bytes | None = self.crash.request(lambda: self.objects.get(source))
        if content is None:
            return False
        if not self._put_if_absent(target, content):
            existing: bytes = self.crash.request(lambda: self.objects[target])
            if existing != content:
                raise OutputError(f"will not overwrite {target}")
        self.delete([source])
        return True

    def check_moved(self, source: str, target: str) -> None:
        """A missing source was always moved: a bucket is not a disk that may be missing."""

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.crash.request(lambda name=name: self.objects.pop(name, None))

    def names_in(self, folder: str) -> list[str]:
        listed: list[str] = self.crash.request(lambda: sorted(self.objects))
        return [name for name in listed if name.startswith(f"{folder}/")]

    def _put_if_absent(self, name: str, content: bytes) -> bool:
        def put() -> bool:
            if name in self.objects:
                return False
            self.objects[name] = content
            return True

        return bool(self.crash.request(put))


class Bucket:
    """The objects, as programs other than the pipeline see them."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def published(self) -> Objects:
        return {name: content for name, content in self._objects.items() if not name.startswith(STAGING)}

    def take(self, name: str) -> None:
        del self._objects[name]

    def staged(self) -> list[str]:
        return [name for name in self._objects if name.startswith(STAGING)]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Callable[[], World]:
    def fresh() -> World:
        store = ObjectStore(CrashPoint())
        monkeypatch.setattr(publish, "store_of", lambda output: store)
        return World(store, Bucket(store.objects), store.crash, take_at_once=False)

    return fresh


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_before_or_after_any_request_loses_nothing_doubles_nothing_and_keeps_order(fresh, seed):
    requests = play(fresh(), seed, None, True)
    assert requests > 20
    for crash_at in range(requests):
        for before in (True, False):
            play(fresh(), seed, crash_at, before)


@pytest.mark.parametrize("seed", range(60))
def test_zombies_paused_publishers_and_late_clean_ups_change_nothing(fresh, seed):
    crash_at = random.Random(seed).randrange(100)
    play(fresh(), seed, crash_at, bool(seed % 2), twists=True)


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
