"""`penstock wait`: returns when the targets of a job, or one target, are complete up to a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime

import click

from penstock.cli.common import complete_file, refuse, remote_job
from penstock.cli.marked_targets import KINDS, marks_of
from penstock.cli.moment import Moment
from penstock.cli.span import Span
from penstock.complete import wait_until_complete
from penstock.errors import PenstockError, UsageError
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.run import ExitCode
from penstock.telemetry.status import span

_SAY_EVERY_SECONDS = 60.0
"""Time between two lines about a wait that goes on."""


@click.command()
@click.argument("job_or_target", metavar="JOB.YAML|CHECKPOINT|TARGET", shell_complete=complete_file)
@click.option(
    "--until",
    metavar="TIME",
    required=True,
    type=Moment(),
    help="RFC 3339 in UTC (2026-01-31T12:00:00Z), or now.",
)
@click.option(
    "--sink",
    "sinks",
    metavar="NAME",
    multiple=True,
    help="A part of the name of a sink, as `penstock status` shows it; may be repeated. Default: all sinks.",
)
@click.option(
    "--target",
    "kind",
    type=click.Choice(KINDS),
    help="TARGET is a folder of files, a Delta table or an Iceberg table with marks (mark_complete).",
)
@click.option(
    "--catalog",
    metavar="NAME",
    help="Catalogue of the Iceberg table, as pyiceberg is configured. Default: default.",
)
@click.option(
    "--job",
    "jobs",
    metavar="NAME",
    multiple=True,
    help="A part of the name of a job that marks TARGET; may be repeated. Default: all jobs that have marked it.",
)
@click.option(
    "--timeout", metavar="SPAN", type=Span(), help="Exit with 4 after this time (90s, 10m). Default: never."
)
def wait(
    job_or_target: str,
    until: datetime,
    sinks: Sequence[str],
    kind: str | None,
    catalog: str | None,
    jobs: Sequence[str],
    timeout: float | None,
) -> None:
    """Wait until a job's targets, or one target, have every change before a time.

    Exits with 0 when they have. The time is the commit time in the source. Rows that were refused and became dead
    letters are not in the target. The command reads the checkpoint folder, and waits also while the job is stopped.
    With --target it reads the marks of a target instead, and needs no checkpoint.
    """
    ignore_import_warnings()
    progress = _Progress(until, "no mark is in the target yet" if kind else "no epoch is committed yet")
    try:
        if kind is None:
            _refuse("without --target", {"--catalog": catalog, "--job": jobs})
            remote = remote_job(job_or_target, ". Or pass --target for a target with marks")
            complete = remote.wait_until_complete(until, sinks=sinks, seconds=timeout, on_look=progress.look)
            ended = not complete and remote.has_ended()
        else:
            _refuse("with --target", {"--sink": sinks})
            look = marks_of(kind, job_or_target, catalog)
            complete = wait_until_complete(
                look, until, what="job", names=jobs, seconds=timeout, on_look=progress.look
            )
            ended = False
    except (PenstockError, OSError) as error:
        refuse(error)
    if complete:
        click.echo(f"complete until {_text(until)}")
        return
    if ended:
        click.echo(
            "the job has ended: it has published everything that it has read. What it did not read is not known",
            err=True,
        )
        sys.exit(ExitCode.FAILED)
    click.echo(f"not complete after {span(timeout or 0.0)}: {progress.text}", err=True)
    sys.exit(ExitCode.FAILED)


def _refuse(where: str, options: Mapping[str, object]) -> None:
    """Refuse options that have a value and no meaning.

    Raises:
        UsageError: there is one.
    """
    if refused := [name for name, value in options.items() if value]:
        raise UsageError(f"{', '.join(refused)} has no meaning {where}: leave it out")


class _Progress:
    """Says once a minute how far the targets are; `nothing` is said while there is no time."""

    def __init__(self, until: datetime, nothing: str) -> None:
        self._until, self._said = until, float("-inf")
        self.text, self._nothing = "", nothing

    def look(self, complete: Mapping[str, datetime | None]) -> None:
        behind = {step: at for step, at in complete.items() if at is None or at < self._until}
        self.text = "; ".join(
            f"{step} is complete until {_text(at)}" if at else f"{step} has no time"
            for step, at in behind.items()
        )
        if not complete:
            self.text = self._nothing
        now = time.monotonic()
        if self.text and now - self._said >= _SAY_EVERY_SECONDS:
            self._said = now
            click.echo(f"waiting for {_text(self._until)}: {self.text}", err=True)


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
