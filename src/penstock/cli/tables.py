"""`penstock tables`: the parked tables of a job, and requests to resume, to refill or to skip them."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import click

from penstock.cli.common import is_job_file, job_argument, refuse, remote_job
from penstock.cli.snapshot import existing_folder, signal_folder
from penstock.cli.table import as_table
from penstock.errors import PenstockError, UsageError
from penstock.io.change_streams.incremental.signal_folder import write_signal
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.run import ExitCode
from penstock.parked import ParkedTable, TableAction
from penstock.telemetry.status import parked_fields, span

LOOK_SECONDS = 1.0
"""Time between two looks at the checkpoint folder."""
_HEADER = ("TABLE", "STATE", "SINCE", "CHANGES", "BYTES", "TARGET", "REASON")


@click.command()
@job_argument
@click.argument("action", required=False, type=click.Choice([each.value for each in TableAction]))
@click.argument("names", metavar="NAME…", nargs=-1)
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.option(
    "--wait",
    "wait_seconds",
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="How long to wait until the tables go on. 0: leave the request and return.",
)
def tables(job: str, action: str | None, names: Sequence[str], json_: bool, wait_seconds: float) -> None:
    """Show the parked tables of a job; resume, refill or skip them.

    A table is parked if its target refuses it and the sink has on_refused_table='park'.

    resume writes its changes to the target, oldest first, and the table goes on. Correct the target before.

    refill drops the changes that wait, empties the table in the target, and asks the running job for all its rows. The
    job needs a signal_folder.

    skip drops the changes, and the table continues with the next ones.

    NAME is a table of the source or of the target.

    A request waits for the next start if the job does not run. The exit code is 4 if a table is still parked after
    --wait.
    """
    ignore_import_warnings()
    try:
        remote = remote_job(job)
        if action is None:
            _show(remote.parked(), json_)
            return
        chosen = [table for name in names for table in _named(remote, name)]
        if not chosen:
            raise UsageError(f"name the tables to {action}; there are: {_names(remote.parked())}.")
        folder = _refill_folder(job, wait_seconds) if action == TableAction.REFILL else None
        for table in chosen:
            remote.request_table(action, table)
            click.echo(f"asked to {action} {table.source}, {table.changes:,} changes since {_since(table)}")
        answers = answered(remote, action, chosen, wait_seconds, click.echo)
        if folder is not None:
            _read_again(job, folder, answers)
        goes_on = len(answers.going) == len(chosen)
        sys.exit(ExitCode.DONE if goes_on or not wait_seconds else ExitCode.FAILED)
    except (PenstockError, OSError) as error:
        refuse(error)


class Answers(NamedTuple):
    """Tables that go on, and tables whose request still waits for a driver. The others are refused again."""

    going: Sequence[ParkedTable]
    waiting: Sequence[ParkedTable]


def answered(
    remote: Any,
    action: str,
    tables: Sequence[ParkedTable],
    wait_seconds: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Answers:
    """Wait until tables that were asked for go on, or are refused again; say for each which."""
    waiting, began = list(tables), clock()
    going: list[ParkedTable] = []
    while waiting and clock() - began < wait_seconds:
        pause(LOOK_SECONDS)
        # Before the tables: a request that is gone was obeyed in the record that is read then.
        requested = [remote.requested_table(action, table) for table in waiting]
        now = {(each.name, each.since_us): each for each in remote.parked()}
        for table, is_requested in zip(list(waiting), requested, strict=True):
            found = now.get((table.name, table.since_us))
            if found is None:
                say(f"{table.source} goes on")
                waiting.remove(table)
                going.append(table)
            elif not (is_requested or found.resuming):
                say(f"{table.source} is refused again: {found.reason}")
                waiting.remove(table)
    if waiting and wait_seconds:
        say(
            f"no answer in {span(wait_seconds)} for {_names(waiting)}: the request stays, for this run of the job or "
            "the next one"
        )
    return Answers(going, waiting)


def _refill_folder(job: str, wait_seconds: float) -> Path:
    """Return the folder in which the job is asked for rows; refuse before anything is dropped."""
    if not is_job_file(job):
        raise UsageError(
            "refill needs the job file: it names the signal_folder in which the job is asked for rows"
        )
    if not wait_seconds:
        raise UsageError(
            "refill asks for the rows when the table is empty, so it must wait: leave out --wait 0"
        )
    return existing_folder(signal_folder(job), "refill")


def _read_again(job: str, folder: Path, answers: Answers) -> None:
    """Ask the job for the rows of tables that are empty; say how to ask for those that will be."""
    if answers.going:
        id_ = f"refill-{uuid4().hex[:12]}"
        patterns = [re.escape(each.source) for each in answers.going]
        write_signal(folder, id_, "execute-snapshot", {"data-collections": patterns}, time.time_ns())
        click.echo(f"asked the job to read all rows of {_names(answers.going)} (snapshot {id_})")
    for table in answers.waiting:
        click.echo(
            f"the rows of {table.source} are not asked for yet. When it goes on, run: penstock snapshot {job} --table "
            f"'{re.escape(table.source)}'"
        )


def _named(remote: Any, name: str) -> list[ParkedTable]:
    found: list[ParkedTable] = remote.parked(name)
    if not found:
        raise UsageError(f"no table {name} is parked; there are: {_names(remote.parked())}.")
    return found


def _names(tables: Sequence[ParkedTable]) -> str:
    return ", ".join(each.source for each in tables) or "none"


def _show(parked: Sequence[ParkedTable], json_: bool) -> None:
    if json_:
        click.echo(json.dumps(list(map(parked_fields, parked)), indent=2))
    elif parked:
        click.echo(as_table(_HEADER, list(map(_row, parked)), ()))
    else:
        click.echo("no table is parked")


def _row(table: ParkedTable) -> tuple[str, ...]:
    state = "resuming" if table.resuming else "parked"
    counts = f"{table.changes:,}", f"{table.size:,}"
    return (table.source, state, _since(table), *counts, table.name, table.reason)


def _since(table: ParkedTable) -> str:
    return str(parked_fields(table)["since"])
