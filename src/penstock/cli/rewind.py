"""`penstock rewind`: puts a stopped job and its target back to an earlier time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from typing import Any

import click

from penstock.cli.common import build, checkpoint_of, is_job_file, refuse
from penstock.cli.configuration import ConfigurationError
from penstock.cli.moment import Moment
from penstock.cli.resolve import resolve
from penstock.cli.runner_options import RUNNER_PACKAGE
from penstock.cli.verify import SINK
from penstock.errors import PenstockError, UsageError
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.run import ExitCode
from penstock.rewind import RewindPlan, TableRewind
from penstock.timestamps import EPOCH, format_timestamp


@click.command()
@click.argument("job", metavar="JOB.YAML")
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a parameter of the template, as for run."
)
@click.option(
    "--to",
    metavar="TIME",
    required=True,
    type=Moment(),
    help="Commit time of the source from which changes are read again, RFC 3339 in UTC (2026-01-31T12:00:00Z).",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option(
    "--accept-lost-snapshots",
    is_flag=True,
    help="Go back although rows of snapshots that the job has read since then may be lost.",
)
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def rewind(
    job: str, sets: Sequence[str], to: datetime, dry_run: bool, accept_lost_snapshots: bool, json_: bool
) -> None:
    """Put a stopped job and its target back to an earlier time.

    The next run reads the changes from then on again. For Spanner to Delta and Iceberg tables with mark_complete. The
    command shows first what it does. If it is killed, repeat it: until then the job does not start.

    Exits with 2 if the job cannot go back, and with 4 if it has failed after its first change.
    """
    if not is_job_file(job):
        refuse(f"{job} is not a job file: the command needs one, because it changes the target")
    ignore_import_warnings()
    try:
        planned = _planned(job, sets, (to - EPOCH) // EPOCH.resolution)
    except (ConfigurationError, PenstockError, OSError) as error:
        refuse(error)
    _show(planned.plan, planned.has_begun, dry_run, json_)
    if planned.lost and not accept_lost_snapshots:
        refuse(
            f"{planned.lost}. If it has read none, or if you ask for it again afterwards, add --accept-lost-snapshots"
        )
    if dry_run:
        return
    try:
        planned.perform()
    except UsageError as error:
        refuse(error)
    except (PenstockError, OSError) as error:
        click.echo(f"Error: {error}. Repeat the command: the job does not start before", err=True)
        sys.exit(ExitCode.FAILED)
    if not json_:
        click.echo("done: the next run continues from there")


def _planned(job: str, sets: Sequence[str], to_us: int) -> Any:
    """Return the `penstock.runner.rewind.Rewind` of a job. By name: the command line does not import the runner."""
    folder = checkpoint_of(job)
    pipeline = build(resolve(job, sets, {}, os.environ))
    return import_module(f"{RUNNER_PACKAGE}.rewind").Rewind.planned(pipeline, folder, to_us, SINK)


def _show(plan: RewindPlan, has_begun: bool, dry_run: bool, json_: bool) -> None:
    if json_:
        click.echo(json.dumps(_document(plan, dry_run), indent=2))
        return
    again = " (continued from an earlier try)" if has_begun else ""
    click.echo(f"back to {_text(plan.to_us)}: changes from then on are read again{again}")
    for table in plan.tables:
        click.echo(f"  {table.name}: {_what(table)}")


def _what(table: TableRewind) -> str:
    if table.version is None:
        return "rows from then on are deleted"
    return f"version {table.version}, committed at {_text(table.committed_us)}"


def _document(plan: RewindPlan, dry_run: bool) -> dict[str, Any]:
    tables = [
        {
            "name": each.name,
            "version": each.version,
            "committed": None if each.version is None else _text(each.committed_us),
        }
        for each in plan.tables
    ]
    return {"to": _text(plan.to_us), "dry_run": dry_run, "tables": tables}


def _text(time_us: int) -> str:
    return format_timestamp(time_us * 1000)
