"""The base of all emulators: a server process that ends with its context."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from typing_extensions import Self

from penstock_emulators.server_process import ServerProcess, did_not_listen


class Closable(Protocol):
    """A client with connections."""

    def close(self) -> None: ...


ControlT = TypeVar("ControlT", bound=Closable)


class Emulator:
    """A server in a new process group. It ends when the context is left, or when this process ends for any reason.

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


class Service(Emulator, Generic[ControlT]):
    """A service of this package in a new process, with a control service by which a test drives it.

    `host` is ``localhost:port``.
    """

    command: tuple[str, ...]
    """The words after `penstock emulator` that start the service."""
    connect: Callable[[str], ControlT]
    """Makes the client of the control service."""

    def __init__(self, log: Path | None, **options: object) -> None:
        """Use `start`; this only records what to run. Options that are None have the defaults of the command."""
        super().__init__(log)
        self._control: ControlT | None = None
        given = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
        self._options = [f"--{name}={value}" for name, value in given.items()]
        self.host = ""

    @property
    def control(self) -> ControlT:
        """A client of the control service; another process makes another one with `Control(host)`."""
        if self._control is None:
            self._control = type(self).connect(self.host)
        return self._control

    def stop(self) -> None:
        """Kill the processes (they have nothing to save) and wait. Stopping twice changes nothing."""
        control, self._control = self._control, None
        if control is not None:
            # The client first, so that it does not report the end of the server as an error.
            control.close()
        super().stop()

    def _launch(self, port: int, timeout_seconds: float) -> Self:
        """Start the process on `port`, or on a free one for 0; return this service.

        Raises:
            EmulatorStartError: it did not print its address within `timeout_seconds`.
        """
        words = [*self.command, *self._options, "--port", str(port)]
        command: Sequence[str] = [sys.executable, "-m", "penstock_emulators", *words]
        self._process = ServerProcess(command, self._log, prints_address=True)
        host = self._process.address(time.monotonic() + timeout_seconds)
        if host is None:
            self.stop()
            raise did_not_listen(self.name, timeout_seconds)
        self.host = host
        return self
