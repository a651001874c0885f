"""The emulator as a context manager: a front and Google's `cbtemulator`, in one process group."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import Self

from penstock_emulators.bigtable.control import Control
from penstock_emulators.bigtable.google import find_binary
from penstock_emulators.emulator import Service


class BigtableEmulator(Service[Control]):
    """A running emulator: two processes in one new process group. See `Service`."""

    name = "Bigtable"
    command = ("bigtable",)
    connect = Control

    @classmethod
    def start(
        cls,
        *,
        port: int = 0,
        churn_seconds: float | None = None,
        seed: int = 0,
        log: Path | None = None,
        timeout_seconds: float = 60.0,
    ) -> Self:
        """Start an emulator and return when it accepts connections.

        `port` 0 is a free one. With `churn_seconds`, the layout of one table after the other changes at random
        at that interval, from `seed`. The output of the processes is appended to `log`, or dropped.

        Raises:
            EmulatorNotFoundError: Google's emulator is not on this machine.
            EmulatorStartError: nothing listened within `timeout_seconds`.
        """
        # Before the process starts, so that the caller gets the error and not a log.
        find_binary()
        return cls(log, churn_seconds=churn_seconds, seed=seed)._launch(port, timeout_seconds)

    def environment(self) -> dict[str, str]:
        """Return the variables that point Bigtable clients in a child process at this emulator."""
        return {"BIGTABLE_EMULATOR_HOST": self.host}
