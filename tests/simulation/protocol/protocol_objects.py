"""The shared storage of the simulation as an object store: the runner's own code, on requests with faults.

A request may be lost before or after its effect, arrive much later, or be answered with 503. A listing may miss the
newest objects. (The listings of today's stores do not. But no decision of a commit may depend on one.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from protocol_scheduler import Scheduler
from protocol_world import FOLDER, World, require

from penstock.object_stores.requests import (
    Listed,
    ObjectExistsError,
    ObjectMissingError,
    RequestUncertainError,
)
from penstock.object_stores.store import ObjectStore
from penstock.runner.store import FileSystem
from penstock.runner.store.object_filesystem import ObjectFileSystem

Answer = TypeVar("Answer")

UNAVAILABLE_SECONDS = 2.0
"""Five tries. A run has at most six faults, so a store may stay silent for long enough to end a driver."""


def object_files(world: World) -> FileSystem:
    """Return the file system of one driver. Its clock moves only in its own pauses."""
    clock = _Clock(world.schedule)
    store = ObjectStore(FOLDER, SharedObjects(world), UNAVAILABLE_SECONDS, clock, clock.pause)
    return UncheckedFileSystem(store)


class UncheckedFileSystem(ObjectFileSystem):
    """The simulation lets one thread run at a time, and the check of the guarantees uses several.

    All are equal, as they are in the processes of a cluster, so that the drivers share caches of runs.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UncheckedFileSystem)

    def __hash__(self) -> int:
        return hash(UncheckedFileSystem)

    def check_guarantees(self) -> None:
        pass


@dataclass
class _Clock:
    schedule: Scheduler
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.schedule.point("pause")


@dataclass
class SharedObjects:
    """The requests of one driver. Keys are paths below the checkpoint."""

    world: World
    copies_if_absent: bool = field(default=False, init=False)

    def put_if_absent(self, key: str, data: bytes) -> None:
        path = f"{FOLDER}/{key}"

        def put() -> None:
            if path in self.world.files:
                raise ObjectExistsError
            self.world.files[path] = data
            if path.endswith(".record"):
                self.world.record_created(path, data)

        def put_later() -> None:
            try:
                put()
            except ObjectExistsError:
                return

        self._request(f"put {path}", put, put_later)

    def get(self, key: str) -> bytes:
        return self._request(f"get {FOLDER}/{key}", lambda: self._existing(key))

    def size(self, key: str) -> int:
        return self._request(f"head {FOLDER}/{key}", lambda: len(self._existing(key)))

    def list_objects(self, folder: str) -> list[Listed]:
        raise NotImplementedError("only the start of a runner needs the sizes")

    def list_children(self, folder: str) -> list[str]:
        prefix = f"{FOLDER}/{folder}/" if folder else f"{FOLDER}/"

        def listed() -> list[str]:
            paths = list(self.world.files)
            if folder and self.world.schedule.fault("the listing lags behind"):
                paths = paths[: -self.world.schedule.rng.randint(1, 4)]
            return [path.removeprefix(prefix).split("/")[0] for path in paths if path.startswith(prefix)]

        return self._request(f"list {prefix}", listed)

    def delete(self, keys: Sequence[str]) -> None:
        def delete() -> None:
            for key in keys:
                self.world.files.pop(f"{FOLDER}/{key}", None)
            self.world.check_named()

        self._request(f"delete {FOLDER}/{keys[0]}", delete, delete)

    def copy_if_absent(self, source: str, target: str) -> None:
        require(False, "a checkpoint copies nothing")

    def _existing(self, key: str) -> bytes:
        try:
            return self.world.files[f"{FOLDER}/{key}"]
        except KeyError:
            raise ObjectMissingError from None

    def _request(
        self, what: str, effect: Callable[[], Answer], later: Callable[[], None] | None = None
    ) -> Answer:
        schedule = self.world.schedule
        schedule.point(what)
        if schedule.fault("no answer, nothing happened"):
            raise RequestUncertainError("503")
        if later is not None and schedule.fault("no answer, the request is still under way"):
            schedule.later(f"late {what}", later)
            raise RequestUncertainError("a time-out")
        answer = effect()
        if schedule.fault("no answer, but it happened"):
            raise RequestUncertainError("a lost connection")
        return answer
