"""The emulator as a context manager: a front and Google's `cbtemulator`, in one process group."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from typing_extensions import Self

from penstock.emulators.bigtable.control import Control
from penstock.emulators.emulator import Emulator
from penstock.emulators.gcloud import BIGTABLE


def find_binary() -> Path:
    """Return the path of `cbtemulator`, see `Component.find_binary`; raises EmulatorNotFoundError."""
    return BIGTABLE.find_binary()


class BigtableEmulator(Emulator):
    """A running emulator: two processes in one new process group.

    `host` is ``localhost:port``, `control` a client of its control service, `process_group` the id that `stop`
    ends. It ends when the context is left, or when the process that started it ends for any reason.
    """

    name = "Bigtable"

    def __init__(self, options: tuple[str, ...], log: Path | None) -> None:
        """Use `start`; this only records what to run."""
        super().__init__(log)
        self._options = options
        self.host = ""

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
        find_binary()
        options = ("--port", str(port), "--seed", str(seed), "--parent", str(os.getpid()))
        churn = () if churn_seconds is None else ("--churn-seconds", str(churn_seconds))
        emulator = cls((*options, *churn), log)
        command = [sys.executable, "-m", "penstock.emulators.bigtable", *emulator._options]
        emulator.host = emulator._launch(command, timeout_seconds)
        return emulator

    @property
    def control(self) -> Control:
        """A client of the control service; another process makes its own with `Control(host)`."""
        return Control(self.host)

    def environment(self) -> dict[str, str]:
        """Return the variables that point Bigtable clients in a child process at this emulator."""
        return {"BIGTABLE_EMULATOR_HOST": self.host}
