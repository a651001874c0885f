"""Requests to the driver of a pipeline that runs elsewhere: small files in its checkpoint folder.

    requests/000000000012.stop            written by `penstock stop`, for the driver of generation 12
    requests/000000000013.drain
    requests/000000000013.ping_4f21ab     written by a start that asks whether the driver of generation 13 still runs

A request is for one driver, which its generation names: a pipeline that is started again is not stopped by an old
request. The driver deletes its requests when it has ended, so a request that is gone was obeyed. It deletes a ping at
once, also while an epoch runs: a ping that is gone was answered.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.compat import StrEnum
from penstock.runner.store.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{12,})\.([a-z]+)(_[0-9a-f]+)?")

SECONDS_ON_DISK, SECONDS_ON_OBJECT_STORES = 1.0, 10.0
"""Time between two looks. A listing of an object store costs money: at this interval about 0.04 dollars a day."""


class Request(StrEnum):
    """A request to a driver: a method of `PySparkPipelineResult`."""

    STOP = "stop"
    DRAIN = "drain"


_PING = "ping"
_WORDS = {*Request, _PING}


class Requests:
    """The requests of one checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._files, self._folder = checkpoint.filesystem, f"{checkpoint.folder}/requests"

    def put(self, generation: int, request: Request) -> None:
        """Ask the driver of a generation. Asking again changes nothing.

        Raises:
            OSError: the folder cannot be written.
        """
        self._create(f"{generation:012d}.{request}")

    def of(self, generation: int) -> frozenset[Request]:
        """Return the requests to the driver of a generation that it has not yet obeyed."""
        return frozenset(
            Request(word) for number, word, _ in self._all() if number == generation and word != _PING
        )

    def delete(self, up_to_generation: int) -> None:
        """Delete the requests to drivers up to a generation (inclusive)."""
        for number, _, name in self._all():
            if number <= up_to_generation:
                self._files.delete(f"{self._folder}/{name}")

    def ping(self, generation: int) -> str:
        """Ask whether the driver of a generation runs; return the name of the request. Raises OSError as `put` does."""
        name = f"{generation:012d}.{_PING}_{uuid.uuid4().hex[:8]}"
        self._create(name)
        return name

    def is_answered(self, ping: str) -> bool:
        """Return whether a ping is gone."""
        return not self._files.exists(f"{self._folder}/{ping}")

    def withdraw(self, ping: str) -> None:
        """Delete a ping."""
        self._files.delete(f"{self._folder}/{ping}")

    def answer(self, generation: int) -> frozenset[Request]:
        """Answer the pings to the driver of a generation; return its other requests."""
        found = [(word, name) for number, word, name in self._all() if number == generation]
        for word, name in found:
            if word == _PING:
                self.withdraw(name)
        return frozenset(Request(word) for word, _ in found if word != _PING)

    def _create(self, name: str) -> None:
        if not self._files.list(self._folder):
            self._files.make_private(self._folder)
        self._files.create_if_absent(f"{self._folder}/{name}", b"")

    def _all(self) -> list[tuple[int, str, str]]:
        """Return generation, word and name of each file."""
        found = [(name, _NAME.fullmatch(name)) for name in self._files.list(self._folder)]
        # A request of a newer version of Penstock has a word that this one does not know.
        return [(int(match[1]), match[2], name) for name, match in found if match and match[2] in _WORDS]


class RequestWatch:
    """Reads the requests to one driver, at most once per interval, because the driver asks several times a second."""

    def __init__(
        self, checkpoint: Checkpoint, generation: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests, self._generation, self._clock = Requests(checkpoint), generation, clock
        self._seconds = seconds_between_looks(checkpoint)
        self._next = clock()
        self._found: frozenset[Request] = frozenset()
        self._lock = threading.Lock()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Look in a thread too within the block: an epoch may take minutes, and a ping wants an answer at once."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(self._seconds):
                self.look()

        threading.Thread(target=look, name="penstock-requests", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def look(self) -> frozenset[Request]:
        """Answer pings; return the requests to this driver that the last look has found.

        None is found if the storage does not answer.
        """
        with self._lock:
            now = self._clock()
            if now >= self._next:
                self._next = now + self._seconds
                self._found = self._look()
            return self._found

    def _look(self) -> frozenset[Request]:
        try:
            return self._requests.answer(self._generation)
        # Not fatal: if the storage stays away, the next commit fails.
        except OSError as error:
            logger.warning("could not look for requests in the checkpoint folder: %s", error)
            return frozenset()

    def delete(self) -> None:
        """Delete the requests to this driver and to those before it."""
        try:
            self._requests.delete(self._generation)
        except OSError as error:
            logger.warning("could not delete requests in the checkpoint folder: %s", error)


def seconds_between_looks(checkpoint: Checkpoint) -> float:
    """Return how often the driver of a checkpoint looks for requests."""
    return SECONDS_ON_DISK if checkpoint.lists_cheaply else SECONDS_ON_OBJECT_STORES
