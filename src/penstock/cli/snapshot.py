"""`penstock snapshot`: ask a running job to read tables again, or stop, pause or resume that."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import click

from penstock.cli.common import is_job_file, refuse
from penstock.cli.configuration import ConfigurationError
from penstock.cli.inputs import MAX_JOB_CHARACTERS, read_job
from penstock.errors import UsageError
from penstock.io.change_streams.incremental.signal_folder import write_signal
from penstock.io.change_streams.incremental.signals import SignalError, parse_signal
from penstock.secrets import read_shown_references

_ACTIONS = ("execute", "stop", "pause", "resume")


@click.command()
@click.argument("job", metavar="JOB.YAML|FOLDER")
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="PATTERN",
    help="Regular expression for schema.table. Repeat it for more.",
)
@click.option(
    "--condition", "conditions", multiple=True, metavar="TABLE=SQL", help="Rows of a table to read."
)
@click.option(
    "--surrogate-key",
    metavar="COLUMNS",
    default="",
    help="Columns by which the tables are read, separated by commas. Default: the primary key.",
)
@click.option(
    "--chunk-size", type=int, default=0, help="Rows that are read at once. Default: as the job sets it."
)
@click.option(
    "--action",
    type=click.Choice(_ACTIONS),
    default="execute",
    show_default=True,
    help="Start, stop, pause or resume the snapshot.",
)
def snapshot(
    job: str,
    tables: Sequence[str],
    conditions: Sequence[str],
    surrogate_key: str,
    chunk_size: int,
    action: str,
) -> None:
    """Ask a running job to read tables again.

    This is an incremental snapshot: the job reads rows while it reads changes. The job finds the request in its
    signal_folder: JOB.YAML sets that parameter, or name the FOLDER itself. A request is kept if the job does not run,
    and is applied once.
    """
    data: dict[str, object] = {}
    if tables:
        data["data-collections"] = list(tables)
    if conditions:
        pairs = [condition.partition("=") for condition in conditions]
        data["additional-conditions"] = [{"data-collection": table, "filter": sql} for table, _, sql in pairs]
    if surrogate_key:
        data["surrogate-key"] = surrogate_key
    if chunk_size:
        data["chunk-size"] = chunk_size
    id_, type_ = uuid4().hex[:12], f"{action}-snapshot"
    try:
        parse_signal(id_, type_, data)
        path = write_signal(signal_folder(job), id_, type_, data, time.time_ns())
    except SignalError as error:
        refuse(error)
    except OSError as error:
        refuse(
            f"{error.filename or job}: {error.strerror}. Give a job file with a signal_folder, or that folder"
        )
    click.echo(f"requested: {type_} {id_} in {path.parent}")


def existing_folder(path: Path, purpose: str) -> Path:
    """Return a signal_folder; raise UsageError if there is no such folder here. `purpose`: repair, refill."""
    if not path.is_dir():
        raise UsageError(
            f"there is no signal_folder {path}: the job makes it when it starts. Start the job with this job file, and "
            f"{purpose} on a machine that has the folder"
        )
    return path


def signal_folder(job: str) -> Path:
    """Return the signal_folder of a job file, or the folder `job` itself; end the command if there is none."""
    if not is_job_file(job):
        # No job looks into a folder whose name is misspelt, so none is made here.
        if not Path(job).is_dir():
            refuse(
                f"there is no folder {job}: check the name, or make the folder that the job has as signal_folder"
            )
        return Path(job)
    # A job file may lack parameters that its `run` gets from flags, so only this one is looked at.
    with Path(job).open(encoding="utf-8") as file:
        read = read_job(file.read(MAX_JOB_CHARACTERS + 1), job)
    found = read.parameters.get("signal_folder")
    if found is None and read.problems:
        refuse(ConfigurationError(read.problems))
    if found is None:
        refuse(
            f"{job} has no signal_folder: add it and start the job again, or name the folder instead of the file"
        )
    return Path(read_shown_references(found.texts[0]))
