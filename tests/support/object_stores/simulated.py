"""An object store in memory whose requests fail as a test says. It implements `penstock.object_stores.requests`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.object_stores.requests import (
    Listed,
    ObjectExistsError,
    ObjectMissingError,
    RequestRefusedError,
    RequestUncertainError,
)
from penstock.object_stores.store import ObjectStore

Answer = TypeVar("Answer")

LOST_BEFORE, LOST_AFTER = "lost before the effect", "lost after the effect"
OVERLOADED, CONFLICT, REFUSED = "503", "409 without an object", "403"


@dataclass(eq=False)
class SimulatedRequests:
    """Objects in memory. `faults` are taken one by one, one for each request; None is an answer as it should be.

    `log` holds each request as (operation, key).
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    faults: list[str | None] = field(default_factory=list)
    log: list[tuple[str, str]] = field(default_factory=list)
    copies_if_absent: bool = False
    ignores_conditions: bool = False

    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        def put() -> None:
            if key in self.objects and not self.ignores_conditions:
                raise ObjectExistsError
            self.objects[key] = bytes(data)

        self._answer("put", key, put)

    def get(self, key: str) -> bytes:
        return self._answer("get", key, lambda: self._existing(key))

    def size(self, key: str) -> int:
        return self._answer("head", key, lambda: len(self._existing(key)))

    def list_objects(self, folder: str) -> list[Listed]:
        return self._answer("list", folder, lambda: self._below(folder))

    def list_children(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        return self._answer(
            "list",
            folder,
            lambda: [key[len(prefix) :].split("/")[0] for key in self.objects if key.startswith(prefix)],
        )

    def delete(self, keys: Sequence[str]) -> None:
        def delete() -> None:
            for key in keys:
                self.objects.pop(key, None)

        self._answer("delete", keys[0], delete)

    def copy_if_absent(self, source: str, target: str) -> None:
        def copy() -> None:
            content = self._existing(source)
            if target in self.objects:
                raise ObjectExistsError
            self.objects[target] = content

        self._answer("copy", source, copy)

    def _existing(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectMissingError
        return self.objects[key]

    def _below(self, folder: str) -> list[Listed]:
        prefix = f"{folder}/"
        return [Listed(k[len(prefix) :], len(v)) for k, v in self.objects.items() if k.startswith(prefix)]

    def _answer(self, operation: str, key: str, effect: Callable[[], Answer]) -> Answer:
        self.log.append((operation, key))
        fault = self.faults.pop(0) if self.faults else None
        if fault == REFUSED:
            raise RequestRefusedError("403 Forbidden")
        if fault == CONFLICT:
            raise ObjectExistsError
        if fault in (LOST_BEFORE, OVERLOADED):
            raise RequestUncertainError(fault)
        answer = effect()
        if fault == LOST_AFTER:
            raise RequestUncertainError(fault)
        return answer


@dataclass(eq=False)
class SimulatedClock:
    """A clock that only pauses move."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def store_of(
    requests: SimulatedRequests, clock: SimulatedClock, unavailable_seconds: float = 60.0
) -> ObjectStore:
    """Return a store whose time passes only in its pauses."""
    return ObjectStore("s3://bucket/prefix", requests, unavailable_seconds, clock, clock.pause)
