"""The base of all emulators: a server process that ends with its context."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from penstock.emulators.server_process import ServerProcess, did_not_listen


class Emulator:
    """A server in a new process group. Leaving the context ends it.

    The output of its processes is appended to `log`, or dropped.
    """

    name: str
    """The name of the service, for errors."""

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self._process: ServerProcess | None = None

    @property
    def process_group(self) -> int:
        """The id of the process group; 0 when stopped."""
        return self._process.group if self._process else 0

    def stop(self) -> None:
        """Kill the processes (they have nothing to save) and wait. Stopping twice changes nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, command: Sequence[str], timeout_seconds: float) -> str:
        """Start a server that prints its address; return the ``localhost:port`` that it prints.

        Raises:
            EmulatorStartError: it printed none within `timeout_seconds`.
        """
        self._process = ServerProcess(command, self._log, prints_address=True)
        host = self._process.address(time.monotonic() + timeout_seconds)
        if host is None:
            self.stop()
            raise did_not_listen(self.name, timeout_seconds)
        return host
