"""Requests to the driver of a pipeline that runs elsewhere: small files in its checkpoint folder.

    requests/000000000012.stop      written by `penstock stop`, for the driver of generation 12
    requests/000000000013.drain

A request is for one driver, which its generation names: a pipeline that is started again is not stopped by an old
request. The driver deletes its requests when it has ended, so a request that is gone was obeyed.
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


class Requests:
    """The requests of one checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._files, self._folder = checkpoint.filesystem, f"{checkpoint.folder}/requests"

    def put(self, generation: int, request: Request) -> None:
        """Ask the driver of a generation. Asking again changes nothing.

        Raises:
            OSError: the folder cannot be written.
        """
        if not self._files.list(self._folder):
            self._files.make_private(self._folder)
        self._files.create_if_absent(f"{self._folder}/{generation:012d}.{request}", b"")

    def of(self, generation: int) -> frozenset[Request]:
        """Return the requests to the driver of a generation that it has not yet obeyed."""
        return frozenset(request for number, request, _ in self._all() if number == generation)

    def delete(self, up_to_generation: int) -> None:
        """Delete the requests to drivers up to a generation (inclusive)."""
        for number, _, name in self._all():
            if number <= up_to_generation:
                self._files.delete(f"{self._folder}/{name}")

    def _all(self) -> list[tuple[int, Request, str]]:
        found = [(name, _NAME.fullmatch(name)) for name in self._files.list(self._folder)]
        # A request of a newer version of Penstock has a word that this one does not know.
        return [
            (int(match[1]), Request(match[2]), name)
            for name, match in found
            if match and match[2] in set(Request)
        ]


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
