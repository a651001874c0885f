"""The command line: starts the front and, unless one is named, Google's emulator as its backend."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import click

from penstock.emulators.bigtable.process import find_binary
from penstock.emulators.command_line import (
    announced,
    ended_by_signal,
    parent_option,
    port_option,
    until_the_end,
)
from penstock.emulators.gcloud import EmulatorNotFoundError
from penstock.emulators.server_process import EmulatorStartError, free_port, listens
from penstock.errors import ServiceError

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 30.0


class _BackendEndedError(ServiceError):
    """Google's emulator has ended without a request to do so."""


@click.command(name="bigtable")
@port_option(8086)
@click.option("--backend", metavar="HOST:PORT", help="A running cbtemulator. Default: one is started.")
@click.option(
    "--churn-seconds",
    type=click.FloatRange(min=0),
    help="Seconds between random changes of the partitions. 0 means none.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random changes.")
@parent_option()
def command(
    port: int, backend: str | None, churn_seconds: float | None, seed: int, parent: int | None
) -> None:
    """Start a Bigtable emulator with change streams.

    Clients reach it through BIGTABLE_EMULATOR_HOST=localhost:PORT. It ends on SIGTERM and SIGINT. All data
    is in memory.
    """
    try:
        asyncio.run(_run(port, backend, churn_seconds or 0, seed, parent))
    except (EmulatorNotFoundError, EmulatorStartError, _BackendEndedError) as error:
        raise click.ClickException(str(error)) from None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with these arguments (those of the process, if None)."""
    command.main(args=None if argv is None else list(argv), prog_name="penstock emulator bigtable")


async def _run(port: int, backend: str | None, churn_seconds: float, seed: int, parent: int | None) -> None:
    ended = ended_by_signal()
    async with _backend(backend, ended) as host:
        from penstock.emulators.bigtable.front import Front

        front = Front(host)
        await announced(front.start, port)
        if churn_seconds:
            front.churn.set(churn_seconds, seed)
        # Loaded modules stay, and the log holds objects that are no garbage: frequent collections would find nothing.
        gc.freeze()
        gc.set_threshold(50_000, 50, 100)
        await until_the_end(ended, parent)
        await front.stop()


@asynccontextmanager
async def _backend(backend: str | None, ended: asyncio.Event) -> AsyncIterator[str]:
    """Provide the address of a cbtemulator. If it is started here and dies, the front ends too."""
    if backend is not None:
        yield backend
        return
    with started() as (process, host):
        watch = asyncio.ensure_future(_set_at_end(process, ended))
        try:
            yield host
        finally:
            watch.cancel()
        if process.returncode is not None:
            raise _BackendEndedError(
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
