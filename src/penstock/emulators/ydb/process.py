"""The test service as a context manager: a separate process on a free port of loopback."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from typing_extensions import Self

from penstock.emulators.emulator import Emulator
from penstock.emulators.ydb.control import Control


class YdbEmulator(Emulator):
    """A running service.

    `endpoint` is ``grpc://localhost:port``, `database` the path of its database, `control` a client of its control
    service. It ends when the context is left, or when the process that started it ends.
    """

    name = "YDB"
    database = "/local"

    def __init__(self, options: tuple[str, ...], log: Path | None) -> None:
        """Use `start`; this only records what to run."""
        super().__init__(log)
        self._options = options
        self._control: Control | None = None
        self.host = ""

    @classmethod
    def start(
        cls,
        *,
        port: int = 0,
        scan_rows: int = 1000,
        log: Path | None = None,
        timeout_seconds: float = 60.0,
    ) -> Self:
        """Start a service and return when it accepts connections.

        `port` 0 is a free one. `scan_rows`: how many rows an initial scan delivers every 50 milliseconds. The output
        of the process is appended to `log`, or dropped.

        Raises:
            EmulatorStartError: nothing listened within `timeout_seconds`.
        """
        emulator = cls(("--scan-rows", str(scan_rows), "--parent", str(os.getpid())), log)
        emulator._launch_service(port, timeout_seconds)
        return emulator

    @property
    def endpoint(self) -> str:
        """The endpoint for clients."""
        return f"grpc://{self.host}"

    @property
    def control(self) -> Control:
        """A client of the control service; another process makes its own with `Control(host)`."""
        if self._control is None:
            self._control = Control(self.host)
        return self._control

    def stop(self) -> None:
        """Kill the process (it has nothing to save) and wait for it. Stopping twice changes nothing."""
        control, self._control = self._control, None
        if control is not None:
            control.close()
        super().stop()

    def _launch_service(self, port: int, timeout_seconds: float) -> None:
        command = [sys.executable, "-m", "penstock.emulators.ydb", "--port", str(port), *self._options]
        self.host = self._launch(command, timeout_seconds)
