"""The emulator as a context manager: a front and Google's `cbtemulator` behind it, in one process group."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.emulators.bigtable.control import Control

BIN_VARIABLE = "BIGTABLE_EMULATOR_BIN"
"""Environment variable: the path of `cbtemulator`, or the folder that holds it; looked at first."""

READY = "listening on "
"""What the front prints, followed by ``localhost:port``, when it accepts connections."""

_NAME = "cbtemulator"
_HOW_TO_GET_IT = (
    "Install the Google Cloud SDK and run `gcloud components install bigtable` "
    f"(or install the package google-cloud-cli-bigtable-emulator), or set {BIN_VARIABLE} to the path of "
    f"{_NAME}."
)


class EmulatorNotFoundError(RuntimeError):
    """The emulator is not on this machine; the message says how to get it."""


class EmulatorStartError(RuntimeError):
    """The emulator is here, but no server listened in time."""


class BigtableEmulator:
    """A running emulator: two processes, in a process group of their own.

    `host` is ``localhost:port``, `control` a client of its control service, `process_group` the id that `stop`
    ends. Leaving the context ends it; so does the end of the process that started it, however that comes.
    """

    def __init__(self, options: tuple[str, ...], log: Path | None) -> None:
        """Use `start`; this only records what to run."""
        self._options = options
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
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
        every so many seconds, from `seed`. What the processes print is appended to `log`, or dropped.

        Raises:
            EmulatorNotFoundError: Google's emulator is not on this machine.
            EmulatorStartError: nothing listened within `timeout_seconds`.
        """
        find_binary()
        options = ("--port", str(port), "--seed", str(seed), "--parent", str(os.getpid()))
        churn = () if churn_seconds is None else ("--churn-seconds", str(churn_seconds))
        emulator = cls((*options, *churn), log)
        emulator._launch(timeout_seconds)
        return emulator

    @property
    def control(self) -> Control:
        """A client of the control service; another process makes its own with `Control(host)`."""
        return Control(self.host)

    @property
    def process_group(self) -> int:
        """The process group of the emulator; 0 when stopped."""
        return self._process.pid if self._process else 0

    def environment(self) -> dict[str, str]:
        """Return the variables that point Bigtable clients in a child process at this emulator."""
        return {"BIGTABLE_EMULATOR_HOST": self.host}

    def stop(self) -> None:
        """Kill both processes (they have nothing to save) and wait. Stopping twice changes nothing."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, timeout_seconds: float) -> None:
        command = [sys.executable, "-m", "penstock.emulators.bigtable", *self._options]
        with open(self._log or os.devnull, "ab") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out, start_new_session=True
            )
        line = self._first_line(time.monotonic() + timeout_seconds)
        if not line.startswith(READY):
            self.stop()
            raise EmulatorStartError(
                f"the Bigtable emulator did not listen within {timeout_seconds:g} s; pass log=Path(…) to "
                "start() and read what it printed"
            )
        self.host = line.removeprefix(READY).strip()

    def _first_line(self, deadline: float) -> str:
        """Return what the front prints first, or "" if it ends or is silent until `deadline`."""
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        return self._process.stdout.readline().decode() if ready else ""


def find_binary() -> Path:
    """Return the path of `cbtemulator`.

    Looked for in `BIGTABLE_EMULATOR_BIN`, beside the real path of `gcloud`, and in the SDK root that
    `gcloud info` names.

    Raises:
        EmulatorNotFoundError: found nowhere; the message says how to get it.
    """
    named = os.environ.get(BIN_VARIABLE)
    if named:
        path = Path(named)
        return _existing(
            path / _NAME if path.is_dir() else path, f"{BIN_VARIABLE} is {named!r}, no {_NAME} there."
        )
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        raise EmulatorNotFoundError(f"No gcloud on PATH, so no Bigtable emulator. {_HOW_TO_GET_IT}")
    beside = _below(Path(gcloud).resolve().parent.parent)
    if beside.exists():
        return beside
    return _existing(_below(_sdk_root(gcloud)), "The Bigtable emulator is not among gcloud's components.")


def _below(root: Path) -> Path:
    return root / "platform" / "bigtable-emulator" / _NAME


def _existing(binary: Path, otherwise: str) -> Path:
    if not os.access(binary, os.X_OK):
        raise EmulatorNotFoundError(f"{otherwise} {_HOW_TO_GET_IT}")
    return binary


def _sdk_root(gcloud: str) -> Path:
    command = [gcloud, "info", "--format=value(installation.sdk_root)"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return Path(answer.stdout.strip() or os.devnull)
