"""A server for tests as a child process: start it, wait until it listens, end it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.errors import ServiceError
from penstock_emulators.guard import guarded

READY = "listening on "
"""What a server of ours prints, followed by ``localhost:port``, when it accepts connections."""


class EmulatorStartError(ServiceError):
    """The emulator is on this machine, but it did not listen in time."""


class ServerProcess:
    """A child process in a new process group.

    It holds nothing that must be saved, so it is ended by SIGKILL. It also ends when this process ends for any reason.
    Its output is appended to `log`, or dropped.
    """

    def __init__(self, command: Sequence[str], log: Path | None, *, prints_address: bool = False) -> None:
        with open(log or os.devnull, "ab") as out:
            self._process = subprocess.Popen(
                guarded(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if prints_address else out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def group(self) -> int:
        """The id of the process group."""
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float | None = None) -> int:
        """Wait for the end of the process; return its exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: it still runs after `seconds`.
        """
        return self._process.wait(seconds)

    def address(self, deadline: float) -> str | None:
        """Return the ``localhost:port`` that the process prints after `READY`, or None at the deadline or its end."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        line = self._process.stdout.readline().decode() if ready else ""
        return line.removeprefix(READY).strip() if line.startswith(READY) else None

    def listens(self, port: int, deadline: float) -> bool:
        """Wait until a connection to `port` of loopback succeeds; False at the deadline or when the process ends."""
        return listens(port, deadline, lambda: self.runs)

    def stop(self) -> None:
        """Kill the process group and wait for the end of the process."""
        with suppress(ProcessLookupError):  # it has ended already
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def did_not_listen(name: str, timeout_seconds: float) -> EmulatorStartError:
    """Return the error of an emulator that did not start in time."""
    return EmulatorStartError(
        f"the {name} emulator did not listen within {timeout_seconds:g} s; pass log=Path(…) to start() and read what "
        "it printed"
    )


def free_port() -> int:
    """Return a port of loopback that nothing listens on now. Another process may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int) -> bool:
    """Return whether nothing listens on a port of loopback now."""
    with socket.socket() as probe:
        # As servers do: connections of an earlier server may still wait for their end.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def listens(port: int, deadline: float, runs: Callable[[], bool]) -> bool:
    """Wait until a connection to `port` succeeds while the server `runs`; `deadline` is in monotonic seconds."""
    while time.monotonic() < deadline and runs():
        with suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            # The port may belong to another process, if ours has ended because it was taken.
            return runs()
        time.sleep(0.02)
    return False
