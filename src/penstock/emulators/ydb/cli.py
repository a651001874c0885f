"""The command line of the test service."""

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


@click.command(name="ydb")
@port_option(2136)
@click.option(
    "--database", default="/local", show_default=True, help="Path of the database, which begins with a slash."
)
@click.option(
    "--scan-rows",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    help="Rows that an initial scan delivers every 50 milliseconds.",
)
@parent_option()
def command(port: int, database: str, scan_rows: int, parent: int | None) -> None:
    """Start a YDB test service with changefeeds.

    Clients reach it at grpc://localhost:PORT. It has discovery and the calls that describe and read tables and
    changefeeds, but runs no queries: a program drives it through penstock.emulators.ydb.control. It ends on SIGTERM and
    SIGINT. All data is in memory.
    """
    try:
        asyncio.run(_run(port, database, scan_rows, parent))
    except EmulatorStartError as error:
        raise click.ClickException(str(error)) from None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with these arguments (those of the process, if None)."""
    command.main(args=None if argv is None else list(argv), prog_name="penstock emulator ydb")


async def _run(port: int, database: str, scan_rows: int, parent: int | None) -> None:
    import time

    from penstock.emulators.ydb.database import Database
    from penstock.emulators.ydb.server import Server

    ended = ended_by_signal()
    server = Server(Database(database, time.time_ns), scan_rows=scan_rows)
    await announced(server.start, port)
    await until_the_end(ended, parent)
    await server.stop()
