"""The command line of the simulated service."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

import click

from penstock.emulators.simulated_spanner.process import READY

_WATCH_SECONDS = 0.5


@click.command(name="simulated-spanner")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9010,
    show_default=True,
    help="Port on loopback; 0 is a free one.",
)
@click.option(
    "--churn-seconds",
    type=click.FloatRange(min=0),
    default=0,
    help="Change the partitions of every change stream at random, every so many seconds; 0: never.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all that is random.")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Partitions that a new change stream begins with.",
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0),
    default=1,
    show_default=True,
    help="How many times as fast as the system's clock; 0 stands still.",
)
@click.option(
    "--granularity-us",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Microseconds between commit timestamps; with more than 1, transactions share them.",
)
@click.option("--parent", type=int, hidden=True, help="End when this process is no longer the parent.")
def command(
    port: int,
    churn_seconds: float,
    seed: int,
    partitions: int,
    speed: float,
    granularity_us: int,
    parent: int | None,
) -> None:
    """Start a simulated Cloud Spanner with change streams.

    Clients reach it through SPANNER_EMULATOR_HOST=localhost:PORT. It ends on SIGTERM and SIGINT, and keeps
    nothing.
    """
    from penstock.emulators.simulated_spanner.clock import Clock
    from penstock.emulators.simulated_spanner.service import Defaults, Service

    service = Service(clock=Clock(speed=speed), defaults=Defaults(seed, partitions, granularity_us))
    try:
        asyncio.run(_run(service, port, churn_seconds, seed, parent or 0))
    except _PortInUseError as error:
        raise click.ClickException(str(error)) from None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with these arguments (those of the process, if None)."""
    command.main(args=None if argv is None else list(argv), prog_name="penstock emulator spanner --simulated")


class _PortInUseError(RuntimeError):
    """The port is taken."""


async def _run(service: object, port: int, churn_seconds: float, seed: int, parent: int) -> None:
    from penstock.emulators.simulated_spanner.churn import ChurnLimits
    from penstock.emulators.simulated_spanner.control_service import freeze_garbage
    from penstock.emulators.simulated_spanner.server import Server
    from penstock.emulators.simulated_spanner.service import Service

    assert isinstance(service, Service)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = Server(service)
    try:
        bound = await server.start(port)
    except RuntimeError:
        raise _PortInUseError(f"port {port} is in use; pass another, or --port 0") from None
    service.start_churn(churn_seconds, seed, ChurnLimits())
    print(f"{READY}localhost:{bound}", flush=True)
    freeze_garbage()
    await _until(ended, parent)
    await server.stop()


async def _until(ended: asyncio.Event, parent: int) -> None:
    """Return when `ended` is set, or when the process that started this one is gone."""
    while not ended.is_set():
        if parent and os.getppid() != parent:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _WATCH_SECONDS if parent else None)
