"""Requests to the driver of a pipeline that runs elsewhere: small files in its checkpoint folder.

    requests/000000000012.stop      written by `penstock stop`, for the driver of generation 12
    requests/000000000013.drain
    requests/000000000013.stopped   written by the driver of generation 13 when it has stopped

A request is for one driver, which its generation names: a pipeline that is started again is not stopped by an old
request. The driver deletes its requests when it has ended, so a request that is gone was obeyed. A driver that stops
with a checkpoint also leaves a note, which `penstock status` shows. A killed one leaves none.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from penstock.compat import StrEnum
from penstock.runner.store.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{12,})\.(\w+)")

SECONDS_ON_DISK, SECONDS_ON_OBJECT_STORES = 1.0, 10.0
"""Time between two looks. A listing of an object store costs money: at this interval about 0.04 dollars a day."""


class Request(StrEnum):
    """A request to a driver: a method of `PySparkPipelineResult`."""

    STOP = "stop"
    DRAIN = "drain"


_STOPPED = "stopped"
_WORDS = {*Request, _STOPPED}


class Requests:
    """The requests of one checkpoint, and the notes of its drivers."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._files, self._folder = checkpoint.filesystem, f"{checkpoint.folder}/requests"

    def put(self, generation: int, request: Request) -> None:
        """Ask the driver of a generation. Asking again changes nothing.

        Raises:
            OSError: the folder cannot be written.
        """
        self._create(generation, request)

    def note_stop(self, generation: int) -> None:
        """Note that the driver of a generation has stopped. Raises OSError as `put` does."""
        self._create(generation, _STOPPED)

    def stopped(self, generation: int) -> bool:
        """Return whether the driver of a generation has noted that it stopped."""
        return any(number == generation and word == _STOPPED for number, word, _ in self._all())

    def of(self, generation: int) -> frozenset[Request]:
        """Return the requests to the driver of a generation that it has not yet obeyed."""
        found = [word for number, word, _ in self._all() if number == generation]
        return frozenset(Request(word) for word in found if word != _STOPPED)

    def delete(self, up_to_generation: int) -> None:
        """Delete the requests to drivers up to a generation (inclusive), and their notes."""
        for number, _, name in self._all():
            if number <= up_to_generation:
                self._files.delete(f"{self._folder}/{name}")

    def _create(self, generation: int, word: str) -> None:
        if not self._files.list(self._folder):
            self._files.make_private(self._folder)
        self._files.create_if_absent(f"{self._folder}/{generation:012d}.{word}", b"")

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
        self._seconds = SECONDS_ON_DISK if checkpoint.lists_cheaply else SECONDS_ON_OBJECT_STORES
        self._next = clock()

    def look(self) -> frozenset[Request]:
        """Return the requests to this driver; none if it looked a moment ago, or if the storage does not answer."""
        now = self._clock()
        if now < self._next:
            return frozenset()
        self._next = now + self._seconds
        try:
            return self._requests.of(self._generation)
        except OSError as error:  # not fatal: if the storage stays away, the next commit fails
            logger.warning("could not look for requests in the checkpoint folder: %s", error)
            return frozenset()

    def delete(self) -> None:
        """Delete the requests to this driver and to those before it."""
        try:
            self._requests.delete(self._generation)
        except OSError as error:
            logger.warning("could not delete requests in the checkpoint folder: %s", error)

    def note_stop(self) -> None:
        """Note that this driver has stopped. Without the note `penstock status` only sees that no commit comes."""
        try:
            self._requests.note_stop(self._generation)
        except OSError as error:
            logger.warning("could not note the stop in the checkpoint folder: %s", error)
