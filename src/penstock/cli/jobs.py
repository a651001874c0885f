"""Commands for a job that runs elsewhere or has stopped: `stop`, `drain`, `status`, `checkpoints`.

They read the checkpoint folder. They change nothing in it, except that `stop` and `drain` write a request.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from penstock.cli.ask import ask
from penstock.cli.common import build, configuration_of, job_argument, refuse, remote_job, write_file
from penstock.cli.folders import published_lines
from penstock.compat import UTC
from penstock.errors import PenstockError
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.run import committed_counters
from penstock.telemetry.lineage import PartitionSpan, partition_spans
from penstock.telemetry.page import status_page
from penstock.telemetry.status import PipelineStatus, as_fields, as_line, pipeline_status, span

SILENT_SECONDS = 30.0
"""A stream commits about once a second. After this time without a commit no driver seems to run."""


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
    help="Write a page to this file: watermark lag, throughput, and the lineage of partitions.",
)
@click.option("--lineage", metavar="FOLDER", help="The lineage log. Default: lineage_log of the job file.")
def status(job: str, seconds: float, json_: bool, html: Path | None, lineage: str | None) -> None:
    """Show a job that runs elsewhere or has ended.

    The numbers are as of its last commit. With a job file, partitions are shown too: only the pipeline can read the
    positions of its sources.
    """
    ignore_import_warnings()
    try:
        remote, configuration = remote_job(job), configuration_of(job)
        pipeline = None if configuration is None else build(configuration, to_run=False)
        samples = list(_samples(remote, pipeline, seconds))
        record = remote.last()
        requested = [] if record is None else remote.requested(record.generation)
        ended = None if record is None else remote.ended(record.generation)
        state = _state(record, requested, time.time(), ended)
        if lineage is None and configuration is not None:
            lineage = str(configuration.parameters.get("lineage_log", "")) or None
        partitions = _partitions(lineage) if html else []
    except (PenstockError, OSError, ValueError) as error:
        refuse(error)
    facts = {"job": remote.name, "checkpoint": remote.folder, "state": state}
    if html:
        page = status_page(
            f"penstock: {remote.name}",
            _facts(facts, samples),
            _while_it_ran(samples),
            partitions,
            time.time(),
        )
        write_file(html, page)
    if json_:
        shown = as_fields(samples[0], samples[-1]) if samples else {}
        click.echo(json.dumps({**facts, **shown}, indent=2))
        return
    for name, text in _facts(facts, samples).items():
        click.echo(f"{name}: {text}")


def _facts(facts: dict[str, str], samples: list[PipelineStatus]) -> dict[str, str]:
    return {**facts, "progress": as_line(samples[0], samples[-1])} if samples else facts


def _while_it_ran(samples: list[PipelineStatus]) -> list[PipelineStatus]:
    """Return the samples from when the job ran: hours of silence after it has stopped would squeeze the rest."""
    return [
        each for each in samples if each.committed_at is None or each.at - each.committed_at < SILENT_SECONDS
    ]


def _samples(job: Any, pipeline: Any, seconds: float) -> Iterator[PipelineStatus]:
    """Yield the status of each record as of its commit, then of the last record as of now, one a second for `seconds`.

    There is at least one if there is a record. The samples of the commits show how fast the job was.
    """
    for record in job.history():
        counters = committed_counters(job.metrics(record))
        yield pipeline_status(record.committed_us / 1e6, job.progress(record), counters)
    end = time.time() + seconds
    while True:
        record = job.last()
        if record is None:
            return
        progress, counters = job.progress(record, pipeline), committed_counters(job.metrics(record))
        yield pipeline_status(time.time(), progress, counters)
        if time.time() >= end:
            return
        time.sleep(min(1.0, max(0.0, end - time.time())))


def _state(record: Any, requested: list[str], now: float, ended: Any = None) -> str:
    """Return the state of a job in words. `ended` is the note of its last driver, if that has left one."""
    if record is None:
        return "not begun: the checkpoint has no record"
    if record.state.done:
        return "drained" if record.state.draining else "done"
    age = now - record.committed_us / 1e6
    if ended is not None and ended.reason:
        return f"{ended.state.lower()}: {ended.reason}"
    if ended is not None:
        return f"{ended.state.lower()} with a checkpoint: the same command that started it continues it"
    words = ["draining" if record.state.draining else "running"]
    if age > SILENT_SECONDS:
        words = [f"no commit for {span(age)}: killed, or in a long epoch"]
    return ", ".join([*words, *(f"{each} requested" for each in requested)])


def _partitions(lineage: str | None) -> list[PartitionSpan]:
    return partition_spans(line.content for line in published_lines(lineage)) if lineage else []


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
