"""The test service as a context manager: a separate process on a free port of loopback."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import Self

from penstock_emulators.emulator import Service
from penstock_emulators.ydb.control import Control


class YdbEmulator(Service[Control]):
    """A running service. `database` is the path of its database. See `Service`."""

    name = "YDB"
    command = ("ydb",)
    connect = Control
    database = "/local"

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
        return cls(log, scan_rows=scan_rows)._launch(port, timeout_seconds)

    @property
    def endpoint(self) -> str:
        """The endpoint for clients, ``grpc://localhost:port``."""
        return f"grpc://{self.host}"
