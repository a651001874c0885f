"""Tasks of level 0 that have nothing to read help the tasks of their executor that read, until these have ended.

A task that reads listens on a loopback port, and writes port and key into a file that only this user can read, in the
folder of `input_exchange`. An idle task connects and makes the calls that it is sent (`helper_calls`). All of it lasts
for one epoch, and happens only while the readers catch up: a short epoch is not worth it.

A helper makes what the reader makes otherwise, so nothing depends on it. If it dies, the reader makes the rest.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from penstock.helpers import Helpers
from penstock.runner.spark.helper_calls import REFUSALS, HelperPool, answer_calls, connect
from penstock.runner.spark.input_exchange import inputs_taken, shared_file, write_shared
from penstock.runner.tasks.epoch import EpochInput
from penstock.timeline import trace

FoundT = TypeVar("FoundT")

_MAX_WAIT_SECONDS = 0.5
"""How long an idle task waits for the readers. Spark starts the tasks of a level within a few milliseconds."""
_PAUSE_SECONDS = 0.005


class IdleTasks:
    """The help for the task that runs the input `index`, or by it. `folder`: see `input_exchange.input_of`."""

    def __init__(
        self,
        index: int,
        epoch: EpochInput,
        *,
        folder: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index, self._epoch, self._folder, self._clock = index, epoch, folder, clock
        self._reading = frozenset(i for i, task in enumerate(epoch.inputs) if task.residuals)
        self._possible = epoch.limits.catches_up and 0 < len(self._reading) < epoch.partitions

    @contextlib.contextmanager
    def taken(self) -> Iterator[Helpers | None]:
        """See `penstock.runner.tasks.help.Help`."""
        if not self._possible or self._index not in self._reading:
            yield None
            return
        with contextlib.ExitStack() as stack:
            helpers = None
            # Without a port or room on the disk the task reads alone.
            with contextlib.suppress(OSError):
                pool = stack.enter_context(HelperPool())
                address = {"attempt": self._epoch.attempt.nonce, "port": pool.port, "key": pool.key.hex()}
                write_shared(self._path(self._index), json.dumps(address))
                helpers = pool
            yield helpers

    def give(self) -> None:
        """See `penstock.runner.tasks.help.Help`."""
        if not self._possible or self._index in self._reading:
            return
        # If a reader has not begun here, its task may wait for the slot that this one has.
        if not self._until(lambda: self._reading <= inputs_taken(self._epoch, folder=self._folder)):
            return
        readers = sorted(self._reading)
        for number in range(len(readers)):
            # Each idle task begins with another reader.
            self._help(readers[(self._index + number) % len(readers)])

    def _help(self, reader: int) -> None:
        """Help one reader until it has ended."""
        path = self._path(reader)
        if (address := self._until(lambda: self._address(path))) is None:
            return
        # It may have ended already.
        with contextlib.suppress(*REFUSALS), connect(*address) as connection:
            calls = answer_calls(connection)
            trace("helped", epoch=self._epoch.attempt.epoch, calls=calls)

    def _address(self, path: Path) -> tuple[int, bytes] | None:
        """Return port and key of a reader; None: it does not listen in this attempt of the epoch."""
        try:
            address = json.loads(path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        if address["attempt"] != self._epoch.attempt.nonce:
            return None
        return address["port"], bytes.fromhex(address["key"])

    def _path(self, reader: int) -> Path:
        return shared_file(f"helped-{reader}", self._epoch.attempt, self._folder)

    def _until(self, look: Callable[[], FoundT]) -> FoundT:
        """Return what `look` returns as soon as that is true, or after the wait."""
        end = self._clock() + _MAX_WAIT_SECONDS
        while not (found := look()) and self._clock() < end:
            time.sleep(_PAUSE_SECONDS)
        return found
