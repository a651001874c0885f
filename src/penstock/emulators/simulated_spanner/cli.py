"""The command line of the simulated service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from penstock.emulators.command_line import (
    announced,
    ended_by_signal,
    parent_option,
    port_option,
    until_the_end,
)
from penstock.emulators.server_process import EmulatorStartError


@click.command(name="simulated-spanner")
@port_option(9010)
@click.option(
    "--churn-seconds",
    type=click.FloatRange(min=0),
    default=0,
    help="Seconds between random changes of the partitions of each change stream; 0: never.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything that is random.")
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
@parent_option()
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
        asyncio.run(_run(service, port, churn_seconds, seed, parent))
    except EmulatorStartError as error:
        raise click.ClickException(str(error)) from None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with these arguments (those of the process, if None)."""
    command.main(args=None if argv is None else list(argv), prog_name="penstock emulator spanner --simulated")


async def _run(service: object, port: int, churn_seconds: float, seed: int, parent: int | None) -> None:
    from penstock.emulators.simulated_spanner.churn import ChurnLimits
    from penstock.emulators.simulated_spanner.control_service import freeze_garbage
    from penstock.emulators.simulated_spanner.server import Server
    from penstock.emulators.simulated_spanner.service import Service

    assert isinstance(service, Service)
    ended = ended_by_signal()
    server = Server(service)
    await announced(server.start, port)
    service.start_churn(churn_seconds, seed, ChurnLimits())
    freeze_garbage()
    await until_the_end(ended, parent)
    await server.stop()
