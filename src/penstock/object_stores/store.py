"""Repeat requests until the outcome is known. Pure: requests, clock and pauses are arguments.

A conditional put whose answer is lost has three outcomes that look alike: it had no effect, it took effect, or another
writer was first. So the same put is sent again, and after "exists" the object is read and compared. The bytes must name
their writer; then equal bytes are the caller's own. `tests/simulation/protocol` runs the protocol on this code.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from penstock.object_stores.errors import StoreRefusedError, StoreUnavailableError
from penstock.object_stores.requests import (
    Listed,
    ObjectExistsError,
    ObjectMissingError,
    RequestRefusedError,
    Requests,
    RequestUncertainError,
)

DELETE_AT_ONCE = 1000
"""Number of objects in one delete. It is the limit of S3."""

PARALLEL = 16
"""Number of requests of one caller at the same time. A store answers in tens of ms, whatever the number."""

_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")


def pause_before(tried: int) -> float:
    """Return the pause in seconds after this number of failed tries: 0.1 s, doubled each time, at most 5 s."""
    return min(5.0, 0.1 * 2.0 ** min(tried - 1, 6))


def with_jitter(seconds: float) -> None:
    """Sleep for 50 to 100 % of the time, so that the tasks of an epoch do not all ask again at the same moment."""
    time.sleep(seconds * random.uniform(0.5, 1.0))


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Objects below one prefix. For any number of threads.

    Every method may raise StoreUnavailableError after `unavailable_seconds` without a usable answer, and
    StoreRefusedError at once. FileNotFoundError always means: there is no such object.
    """

    url: str
    requests: Requests
    unavailable_seconds: float
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = with_jitter

    def create(
        self, key: str, data: bytes | memoryview, on_lost_answer: Callable[[], None] = lambda: None
    ) -> bool:
        """Create an object; return whether it has exactly `data`, created now or by an earlier try of the caller.

        False: another writer was first. The object is durable in both cases. `on_lost_answer` is called for each try
        without an answer: the store may still carry it out, at any later time, if the object is deleted until then.

        Raises:
            StoreUnavailableError: it is unknown whether the object was created, or will be.
        """

        def create() -> bool:
            try:
                self.requests.put_if_absent(key, data)
                return True
            except RequestUncertainError:
                on_lost_answer()
                raise
            except ObjectMissingError:
                raise RequestRefusedError("404 Not Found, so the bucket is missing") from None
            except ObjectExistsError:
                # The answer of the store does not tell whose object it is.
                try:
                    return self.requests.get(key) == data
                except ObjectMissingError:
                    # S3 answers 409 if two requests meet, and then there may be no object. Or it was deleted.
                    raise RequestUncertainError("409 Conflict, but there is no object") from None

        return self._repeat(f"create {key}", create)

    def read(self, key: str) -> bytes:
        """Return the content of an object, or raise FileNotFoundError."""
        return self._find("read", key, lambda: self.requests.get(key))

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes; None if there is none."""
        try:
            return self._find("look for", key, lambda: self.requests.size(key))
        except FileNotFoundError:
            return None

    def exists(self, key: str) -> bool:
        """Return whether there is an object."""
        return self.size(key) is not None

    def list_objects(self, folder: str) -> list[Listed]:
        """Return the objects below a folder, sorted by name."""
        listed = self._repeat(f"list {folder or 'objects'}", lambda: self.requests.list_objects(folder))
        return sorted(listed, key=lambda each: each.name)

    def list_children(self, folder: str) -> list[str]:
        """Return the sorted names directly below a folder. "" is the prefix itself."""
        return sorted(
            set(self._repeat(f"list {folder or 'objects'}", lambda: self.requests.list_children(folder)))
        )

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects in any order. Missing ones are not an error."""
        doomed = list(keys)
        for begin in range(0, len(doomed), DELETE_AT_ONCE):
            some = doomed[begin : begin + DELETE_AT_ONCE]
            self._repeat(f"delete {some[0]}", functools.partial(self.requests.delete, some))

    def copy(self, source: str, target: str) -> bool:
        """Give the content of `source` to `target` too, if there is no `target`; True if it has this content now.

        Raises:
            FileNotFoundError: there is no `source`.
        """
        if not self.requests.copies_if_absent:
            # S3 and its relatives ignore the condition of a copy, so the content goes through this process. As a
            # multipart upload the condition would hold, but a killed process would leave parts that cost money.
            return self.create(target, self.read(source))

        def copy() -> bool:
            try:
                self.requests.copy_if_absent(source, target)
                return True
            except ObjectExistsError:
                return self.read(source) == self.read(target)

        return self._find("copy", source, copy)

    def _find(self, doing: str, key: str, ask: Callable[[], _Answer]) -> _Answer:
        try:
            return self._repeat(f"{doing} {key}", ask)
        except ObjectMissingError:
            raise FileNotFoundError(f"there is no {key} in {self.url}") from None

    def _repeat(self, doing: str, ask: Callable[[], _Answer]) -> _Answer:
        """Ask until there is an answer. ObjectMissingError passes; so do the errors of a missing object."""
        start, tried = self.clock(), 0
        while True:
            try:
                return ask()
            except RequestRefusedError as error:
                raise StoreRefusedError(
                    f"the object store refused to {doing} in {self.url}: {error}. Check that the bucket, its region "
                    "and endpoint, the credentials in the environment and their rights fit (docs/object-stores.md)"
                ) from None
            except RequestUncertainError as error:
                tried += 1
                pause = pause_before(tried)
                if self.clock() - start + pause > self.unavailable_seconds:
                    raise StoreUnavailableError(
                        f"the object store of {self.url} gave no answer for {self.unavailable_seconds:g} s "
                        f"({tried} tries to {doing}; the last one: {error}). When it answers again, start the pipeline "
                        "again; to wait longer, add ?unavailable_seconds=600 to the URL"
                    ) from None
            self.pause(pause)


def in_parallel(
    act: Callable[[_Item], _Answer], items: Sequence[_Item], limit: int = PARALLEL
) -> list[_Answer]:
    """Return the results for all items, in their order; up to `limit` at the same time. Raises the first error."""
    if len(items) < 2:
        return [act(item) for item in items]
    # The pool ends here, so that no thread is left when a worker's process forks or ends.
    with ThreadPoolExecutor(min(limit, len(items)), thread_name_prefix="penstock-store") as pool:
        return list(pool.map(act, items))
