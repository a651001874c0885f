"""Commands for a job that runs elsewhere or has stopped: `stop`, `drain`, `status`, `checkpoints`.

They read the checkpoint folder. They change nothing in it, except that `stop` and `drain` write a request.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from penstock.cli.ask import ask
from penstock.cli.common import checkpoint_of, is_job_file, job_argument, refuse, remote_job, write_file
from penstock.cli.job_views import WatchedJob
from penstock.compat import UTC
from penstock.errors import PenstockError
from penstock.launch.reporter import ignore_import_warnings
from penstock.object_stores.location import display_name
from penstock.telemetry.status import as_fields, as_line
from penstock.ui import render


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
@job_argument
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
def status(job: str, seconds: float, json_: bool, html: Path | None, lineage: str | None) -> None:
    """Show a job that runs elsewhere or has ended.

    The numbers are as of its last commit. With a job file, partitions are shown too: only the pipeline can read the
    positions of its sources.
    """
    ignore_import_warnings()
    try:
        watched = WatchedJob(checkpoint_of(job), job if is_job_file(job) else "", lineage)
        # Before the look, which would show a job file that cannot be used as a note.
        watched.pipeline()
        watched.watch(seconds)
        view = watched.look(whole=True)
        if html:
            write_file(html, render.job_file(view))
    except (PenstockError, OSError, ValueError) as error:
        refuse(error)
    facts = {"job": view.job, "checkpoint": display_name(view.folder), "state": view.state.text}
    first, last = (view.samples[0], view.samples[-1]) if view.samples else (None, None)
    if json_:
        shown = as_fields(first, last) if first and last else {}
        click.echo(json.dumps({**facts, **shown}, indent=2))
        return
    if first and last:
        facts["progress"] = as_line(first, last)
        for sink, until in as_fields(first, last)["complete_until"].items():
            facts[f"{sink} is complete until"] = until or "not known"
    for name, text in facts.items():
        click.echo(f"{name}: {text}")


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
