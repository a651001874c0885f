"""`penstock ui`: a page over any number of jobs, from their checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import click

from penstock.cli.common import complete_file, refuse
from penstock.cli.job_views import WatchedJobs, load_runner
from penstock.errors import PenstockError
from penstock.launch.reporter import ignore_import_warnings
from penstock.ui import server

PORT = 8642


@click.command()
@click.argument("places", metavar="JOB.YAML|FOLDER…", nargs=-1, required=True, shell_complete=complete_file)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0: a free one.",
)
@click.option(
    "--refresh",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="How often a page reads the checkpoints again while it is open; 0: only when it is loaded.",
)
def ui(places: Sequence[str], host: str, port: int, refresh: float) -> None:
    """Show jobs on a web page, until Ctrl-C.

    FOLDER is a checkpoint, or a folder that has checkpoints or job files directly in it: a path or a URL. The page
    only reads, and changes nothing. With job files it also shows partitions, dead letters and the configuration.
    """
    ignore_import_warnings()
    if not server.is_loopback(host):
        click.echo(
            f"Warning: {host} is reachable from other machines, and the page has no access control", err=True
        )
    try:
        load_runner()
        server.serve(WatchedJobs(places), host, port, refresh_seconds=refresh, say=click.echo)
    except PenstockError as error:
        refuse(error)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
