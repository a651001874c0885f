"""The command line of Google's Spanner emulator: `penstock emulator spanner`."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from penstock.emulators.gcloud import EmulatorNotFoundError
from penstock.emulators.spanner import find_binary, server_command

_ALTERNATIVE = "`penstock emulator spanner --simulated` starts a simulated service that needs only Python."


@click.command(name="spanner")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=9010,
    show_default=True,
    help="Port on loopback.",
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
def command(port: int, token_life_seconds: int | None, simulated: bool) -> None:
    """Start the Spanner emulator of the Google Cloud SDK.

    Clients reach it through SPANNER_EMULATOR_HOST=localhost:PORT. It ends on SIGTERM and SIGINT. All data
    is in memory.
    """
    assert not simulated, "the caller starts the other command; this option is here for --help"
    try:
        binary = find_binary()
    except EmulatorNotFoundError as error:
        raise click.ClickException(f"{error} {_ALTERNATIVE}") from None
    server = server_command(binary, f"localhost:{port}", token_life_seconds)
    # The server replaces this process: signals reach it directly, and it cannot outlive its launcher.
    os.execv(server[0], server)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with these arguments (those of the process, if None)."""
    command.main(args=None if argv is None else list(argv), prog_name="penstock emulator spanner")
