"""Google's `cbtemulator`, which keeps the data behind the front."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from penstock.errors import ServiceError
from penstock_emulators.gcloud import BIGTABLE
from penstock_emulators.server_process import EmulatorStartError, free_port, listens

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 30.0


class BackendEndedError(ServiceError):
    """Google's emulator has ended without a request to do so."""


def find_binary() -> Path:
    """Return the path of `cbtemulator`, see `Component.find_binary`; raises EmulatorNotFoundError."""
    return BIGTABLE.find_binary()


@asynccontextmanager
async def backend_of(host: str | None, ended: asyncio.Event) -> AsyncIterator[str]:
    """Provide the address of a cbtemulator: `host`, or one that is started here. If that one dies, `ended` is set.

    Raises:
        BackendEndedError: it died.
    """
    if host is not None:
        yield host
        return
    with started() as (process, address):
        watch = asyncio.ensure_future(_set_at_end(process, ended))
        try:
            yield address
        finally:
            watch.cancel()
        if process.returncode is not None:
            raise BackendEndedError(
                f"cbtemulator ended with exit code {process.returncode}, so the front ends too"
            )


async def _set_at_end(process: subprocess.Popen[bytes], ended: asyncio.Event) -> None:
    while process.poll() is None:
        await asyncio.sleep(0.2)
    ended.set()


@contextmanager
def started() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run Google's cbtemulator alone, without change streams. Yields its process and its ``host:port``.

    Raises:
        EmulatorNotFoundError: it is not on this machine.
        EmulatorStartError: it does not listen.
    """
    process, host = _launched(find_binary().as_posix(), time.monotonic() + _START_SECONDS)
    try:
        yield process, host
    finally:
        process.kill()
        process.wait()


def _launched(binary: str, deadline: float) -> tuple[subprocess.Popen[bytes], str]:
    while time.monotonic() < deadline:
        port = free_port()
        process = subprocess.Popen(
            [binary, "-host", "127.0.0.1", "-port", str(port)],
            stdin=subprocess.DEVNULL,
            # Standard error: standard output has the address of the front, which its caller reads.
            stdout=sys.stderr,
            preexec_fn=_die_with_parent,
        )
        if listens(port, deadline, partial(_runs, process)):
            return process, f"127.0.0.1:{port}"
        process.kill()  # another process may have taken the port: try another one
        process.wait()
    raise EmulatorStartError(f"cbtemulator did not listen within {_START_SECONDS:g} s")


def _die_with_parent() -> None:
    """Let the kernel end this child when the front dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _runs(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is None
