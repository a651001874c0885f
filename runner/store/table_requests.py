"""Requests about parked tables: small files in the checkpoint folder, for whichever driver runs the job next.

    table_requests/resume_4f21ab…      {"step": "To Delta/…", "name": "/lake/orders", "since_us": …, "action": "resume"}

A request is about one parking of a table, and is deleted after the commit that follows it. A driver that is killed
between the two finds it again, and it has no effect then (`TableRequest`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import asdict

from penstock.parked import TableAction, TableRequest
from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.store.requests import seconds_between_looks

logger = logging.getLogger(__name__)


class TableRequests:
    """The requests about tables in one checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._files, self._folder = checkpoint.filesystem, f"{checkpoint.folder}/table_requests"

    def put(self, request: TableRequest) -> None:
        """Leave a request. The same request again changes nothing.

        Raises:
            OSError: the folder cannot be written.
        """
        if not self._files.list(self._folder):
            self._files.make_private(self._folder)
        content = json.dumps(asdict(request), sort_keys=True).encode()
        self._files.create_if_absent(f"{self._folder}/{_name(request)}", content)

    def has(self, request: TableRequest) -> bool:
        """Return whether a request waits for a driver."""
        return self._files.exists(f"{self._folder}/{_name(request)}")

    def all(self) -> list[TableRequest]:
        """Return the requests, in no order."""
        return [
            TableRequest(**{**content, "action": TableAction(content["action"])})
            for content in (
                json.loads(self._files.read(f"{self._folder}/{name}"))
                for name in self._files.list(self._folder)
                if name.partition("_")[0] in set(TableAction)
            )
        ]

    def delete(self, requests: Collection[TableRequest]) -> None:
        """Delete requests. Those that are gone are not an error."""
        self._files.delete_all(f"{self._folder}/{_name(each)}" for each in requests)


class TableRequestWatch:
    """Gives the requests to each try of an epoch, and deletes them after its commit.

    The folder is looked at once per interval, and only while tables are parked.
    """

    def __init__(self, checkpoint: Checkpoint, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests, self._clock = TableRequests(checkpoint), clock
        self._seconds, self._next = seconds_between_looks(checkpoint), clock()
        self._found: tuple[TableRequest, ...] = ()

    def look(self) -> tuple[TableRequest, ...]:
        """Return the requests of the last look; none if the storage does not answer."""
        now = self._clock()
        if now >= self._next:
            self._next = now + self._seconds
            try:
                self._found = tuple(self._requests.all())
            # Not fatal: if the storage stays away, the next commit fails.
            except OSError as error:
                logger.warning("could not look for requests in the checkpoint folder: %s", error)
        return self._found

    def committed(self) -> None:
        """Delete the requests that the last try got: its epoch is committed."""
        found, self._found = self._found, ()
        if found:
            try:
                self._requests.delete(found)
            except OSError as error:
                logger.warning("could not delete requests in the checkpoint folder: %s", error)


def _name(request: TableRequest) -> str:
    text = f"{request.step}\n{request.name}\n{request.since_us}"
    return f"{request.action}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
