"""`penstock wait`: returns when the targets of a job are complete up to a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime

import click

from penstock.cli.common import job_argument, refuse, remote_job
from penstock.cli.moment import Moment
from penstock.cli.span import Span
from penstock.errors import PenstockError
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.run import ExitCode
from penstock.telemetry.status import span

_SAY_EVERY_SECONDS = 60.0
"""Time between two lines about a wait that goes on."""


@click.command()
@job_argument
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
    "--timeout", metavar="SPAN", type=Span(), help="Exit with 4 after this time (90s, 10m). Default: never."
)
def wait(job: str, until: datetime, sinks: Sequence[str], timeout: float | None) -> None:
    """Wait until a job's targets have every change before a time.

    Exits with 0 when they have. The time is the commit time in the source. Rows that were refused and became dead
    letters are not in the target. The command reads the checkpoint folder, and waits also while the job is stopped.
    """
    ignore_import_warnings()
    progress = _Progress(until)
    try:
        remote = remote_job(job)
        complete = remote.wait_until_complete(until, sinks=sinks, seconds=timeout, on_look=progress.look)
        record = remote.last()
    except (PenstockError, OSError) as error:
        refuse(error)
    if complete:
        click.echo(f"complete until {_text(until)}")
        return
    if record is not None and record.state.done:
        click.echo(
            "the job has ended: it has published everything that it has read. What it did not read is not known",
            err=True,
        )
        sys.exit(ExitCode.FAILED)
    click.echo(f"not complete after {span(timeout or 0.0)}: {progress.text}", err=True)
    sys.exit(ExitCode.FAILED)


class _Progress:
    """Says once a minute how far the targets are."""

    def __init__(self, until: datetime) -> None:
        self._until, self._said = until, float("-inf")
        self.text = ""

    def look(self, complete: Mapping[str, datetime | None]) -> None:
        behind = {step: at for step, at in complete.items() if at is None or at < self._until}
        self.text = "; ".join(
            f"{step} is complete until {_text(at)}" if at else f"{step} has no time"
            for step, at in behind.items()
        )
        if not complete:
            self.text = "no epoch is committed yet"
        now = time.monotonic()
        if self.text and now - self._said >= _SAY_EVERY_SECONDS:
            self._said = now
            click.echo(f"waiting for {_text(self._until)}: {self.text}", err=True)


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
