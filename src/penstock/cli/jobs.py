"""Commands for a job that runs elsewhere or has stopped: `stop`, `drain`, `status`, `checkpoints`.

They read the checkpoint folder. They change nothing in it, except that `stop` and `drain` write a request.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from penstock.cli.ask import ask
from penstock.cli.common import (
    checkpoint_of,
    complete_file,
    is_job_file,
    job_argument,
    refuse,
    refuse_options_of_one_job,
    remote_job,
    write_file,
)
from penstock.cli.job_places import jobs_below
from penstock.cli.job_views import WatchedJob, WatchedJobs
from penstock.cli.table import as_table
from penstock.compat import UTC
from penstock.errors import PenstockError
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.run import ExitCode
from penstock.object_stores.location import is_url, locate, shown_url
from penstock.telemetry.state import Condition
from penstock.telemetry.status import as_fields, as_line, span
from penstock.ui import render
from penstock.ui.view import JobView, by_urgency

_JOBS_HEADER = ("JOB", "STATE", "LAG", "LAST COMMIT", "COMPLETE UNTIL", "DEAD LETTERS")


@click.command()
@job_argument
@click.option(
    "--wait",
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="How long to wait until the job has ended. 0: send the request and return.",
)
def stop(job: str, wait: float) -> None:
    """Stop a job that runs elsewhere, at its next checkpoint.

    The same command that started the job continues it.
    """
    _ask(job, "stop", wait)


@click.command()
@job_argument
@click.option(
    "--wait",
    metavar="SECONDS",
    default=600.0,
    show_default=True,
    help="How long to wait until the job has ended. 0: send the request and return.",
)
def drain(job: str, wait: float) -> None:
    """Drain a job that runs elsewhere. It cannot continue.

    The job reads no further, closes its windows, and publishes everything that it has read.
    """
    _ask(job, "drain", wait)


def _ask(job: str, what: str, wait: float) -> None:
    ignore_import_warnings()
    try:
        code = ask(remote_job(job), what, wait, click.echo)
    except (PenstockError, OSError) as error:
        refuse(error)
    sys.exit(code)


@click.command()
@click.argument(
    "places", metavar="JOB.YAML|CHECKPOINT|FOLDER…", nargs=-1, required=True, shell_complete=complete_file
)
@click.option(
    "--seconds",
    metavar="SECONDS",
    default=0.0,
    help="Watch the job for this time. Default: show the checkpoint and return.",
)
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page of the job, as `penstock ui` shows it, to this file. It needs nothing besides.",
)
@click.option("--lineage", metavar="FOLDER", help="The lineage log. Default: lineage_log of the job file.")
def status(
    places: Sequence[str], seconds: float, json_: bool, html: Path | None, lineage: str | None
) -> None:
    """Show a job that runs elsewhere or has ended, or a table of many.

    The numbers are as of its last commit. With a job file, partitions are shown too: only the pipeline can read the
    positions of its sources.

    Several arguments, or a FOLDER with job files or checkpoints directly in it, give a table. Its exit code is 4 if a
    job has failed or was killed, 2 if one cannot be read.
    """
    ignore_import_warnings()
    try:
        if len(places) > 1 or not _is_one_job(places[0]):
            refuse_options_of_one_job("json_")
            sys.exit(_show_jobs(by_urgency(WatchedJobs(places).all()), json_))
        (job,) = places
        watched = WatchedJob(checkpoint_of(job), job if is_job_file(job) else "", lineage)
        # Before the look, which would show a job file that cannot be used as a note.
        watched.pipeline()
        watched.watch(seconds)
        view = watched.look(whole=True)
        if html:
            write_file(html, render.job_file(view))
    except (PenstockError, OSError, ValueError) as error:
        refuse(error)
    if json_:
        click.echo(json.dumps({**_facts(view), **_progress(view)}, indent=2))
        return
    facts = _facts(view)
    if view.samples:
        facts["progress"] = as_line(view.samples[0], view.samples[-1])
        for sink, until in _progress(view)["complete_until"].items():
            facts[f"{sink} is complete until"] = until or "not known"
        for table in view.samples[-1].parked:
            facts[f"parked table {table.source}"] = view.text_of_parked(table)
        for move in _progress(view)["moved_tables"]:
            facts[f"table {move['table']}"] = f"{move['event']} at {move['at']}"
    for name, text in facts.items():
        click.echo(f"{name}: {text}")


def _is_one_job(place: str) -> bool:
    """Return whether an argument is a job file or a checkpoint, and not a folder that has such.

    Raises:
        PenstockError, OSError: it is neither.
    """
    files, checkpoints = jobs_below(place)
    return [place] == files or (not files and [str(locate(place))] == checkpoints)


def _facts(view: JobView) -> dict[str, str]:
    return {"job": view.job, "checkpoint": _folder(view), "state": view.state.text}


def _progress(view: JobView) -> dict[str, Any]:
    """Return the fields of the last commit; none if nothing is committed."""
    return as_fields(view.samples[0], view.samples[-1]) if view.samples else {}


def _show_jobs(views: Sequence[JobView], json_: bool) -> ExitCode:
    """Print a table of jobs, or a list of what the status of one job prints as JSON; return the worst exit code."""
    if json_:
        shown = [
            {"job_file": each.job_file, **_facts(each), **_progress(each), "exit_code": _exit_code(each)}
            for each in views
        ]
        click.echo(json.dumps(shown, indent=2))
    else:
        notes = [(_place(each), each.warnings) for each in views]
        click.echo(as_table(_JOBS_HEADER, list(map(_row, views)), notes))
    return max(map(_exit_code, views))


def _place(view: JobView) -> str:
    """Return the argument that names the job."""
    return view.job_file or _folder(view)


def _folder(view: JobView) -> str:
    # Not `display_name`: a text that is no location is refused by it, and would hide the other jobs.
    return shown_url(view.folder) if is_url(view.folder) else view.folder


def _row(view: JobView) -> tuple[str, ...]:
    now = view.now
    if now is None:
        return (_place(view), view.label, "", "", "", "")
    return (
        _place(view),
        view.label,
        "" if view.lag is None else span(view.lag),
        "" if now.committed_at is None else f"{span(now.at - now.committed_at)} ago",
        "" if now.all_complete_until is None else _time(int(now.all_complete_until * 1e6)),
        f"{now.dead_letters:,}",
    )


def _exit_code(view: JobView) -> ExitCode:
    """Return the code that one job gives the table: the exit code of `run`, if the checkpoint has it."""
    if view.condition is Condition.UNREADABLE:
        return ExitCode.CONFIGURATION
    if view.condition in (Condition.FAILED, Condition.KILLED):
        return ExitCode.FAILED
    return ExitCode.DONE


@click.group()
def checkpoints() -> None:
    """Look into checkpoint folders."""


@checkpoints.command("show")
@job_argument
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def show_checkpoint(job: str, json_: bool) -> None:
    """Show the commit records of a checkpoint folder.

    A driver deletes old records. The oldest one that is left comes first.
    """
    ignore_import_warnings()
    try:
        remote = remote_job(job)
        records = remote.records()
    except (PenstockError, OSError) as error:
        refuse(error)
    if json_:
        shown = {
            "job": remote.name,
            "checkpoint": remote.folder,
            "records": [asdict(each) for each in records],
        }
        click.echo(json.dumps(shown, indent=2))
        return
    click.echo(f"{remote.name} in {remote.folder}")
    click.echo(
        f"{'record':>8}  {'kind':<14}  {'committed':<24}  {'generation':>10}  {'epochs':>7}  {'watermark':<24}  "
        f"{'residuals':>9}  {'publications':>12}  state"
    )
    for each in records:
        ended = " drained" if each.done and each.draining else " done" if each.done else ""
        # A replaced record with a large state has no counts any more.
        counts = f"{'?':>9}  {'?':>12}  large, replaced"
        if each.state_bytes is not None:
            counts = f"{each.residuals:>9}  {each.publications:>12}  {each.state_bytes:,} bytes"
        click.echo(
            f"{each.number:>8}  {each.kind + ended:<14}  {_time(each.committed_us):<24}  {each.generation:>10}  "
            f"{each.epochs:>7}  {_time(each.watermark_us):<24}  {counts}"
        )


def _time(micros: int | None) -> str:
    if micros is None or not 0 < micros < 253_370_764_800_000_000:  # Beam's lowest and highest watermarks
        return "-"
    return f"{datetime.fromtimestamp(micros / 1e6, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
