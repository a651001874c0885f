"""`penstock verify`: compares the rows of a job's target with its source, while the job runs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.common import build, is_job_file, refuse, remote_job
from penstock.cli.configuration import ConfigurationError
from penstock.cli.resolve import resolve
from penstock.cli.row_requests import NotReadError, RowRequests, signal_folder
from penstock.cli.span import Span
from penstock.errors import PenstockError, UsageError
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.run import ExitCode
from penstock.telemetry.status import span
from penstock.timestamps import EPOCH
from penstock.verify.rounds import Finding, Kind

if TYPE_CHECKING:
    from penstock.verify.job import TableResult

SINK = "Write/"
"""The step of the sink in a pipeline of a template."""
_DIFFERENT = 1
"""The exit code for a target that is not equal, as of diff and cmp."""


class _NotCompleteError(Exception):
    """The target did not become complete in time. The text says until when it is."""


@click.command()
@click.argument("job", metavar="JOB.YAML")
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a parameter of the template, as for run."
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="PATTERN",
    help="A name or a glob of a table of the source, such as public.orders. Repeat it for more. Default: all.",
)
@click.option(
    "--rows",
    "limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Differences of a table after which the rest of it is not looked at.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Have the job read the rows that differ again, and compare them again. The job needs a signal_folder.",
)
@click.option(
    "--timeout",
    metavar="SPAN",
    type=Span(),
    default="10m",
    show_default=True,
    help="Exit with 4 if the target is not complete, or rows are not read again, after this time (90s, 10m).",
)
@click.option("--show-values", is_flag=True, help="Show keys and values of rows that differ.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def verify(
    job: str,
    sets: Sequence[str],
    tables: Sequence[str],
    limit: int,
    repair: bool,
    timeout: float,
    show_values: bool,
    json_: bool,
) -> None:
    """Compare the rows of a job's target with its source.

    The job goes on, and rows may change: a change that is on its way is not a difference. Nothing is locked or
    stopped. For PostgreSQL and Spanner to PostgreSQL, Delta and Iceberg tables with mode=current.

    With --repair the job reads the rows that differ again, in an incremental snapshot, and writes them to the target.
    A row that only the target has is not repaired.

    Exits with 0 if all rows are equal, if wanted after a repair, with 1 if there are differences, and with 4 if rows
    changed all the time or the target did not become complete.
    """
    if not is_job_file(job):
        refuse(f"{job} is not a job file: the command needs one, because it reads source and target")
    progress = _Progress()
    results: list[TableResult] = []
    try:
        for result in _compared(job, sets, tables, limit, repair, timeout, progress):
            progress.clear()
            results.append(result)
            if not json_:
                _print(result, show_values)
    except (UsageError, ConfigurationError) as error:
        progress.clear()
        refuse(error)
    except (_NotCompleteError, NotReadError) as error:
        progress.clear()
        click.echo(f"Error: {error}", err=True)
        sys.exit(ExitCode.FAILED)
    except (PenstockError, OSError) as error:
        progress.clear()
        click.echo(f"Error: {error}", err=True)
        sys.exit(ExitCode.PREFLIGHT)
    if json_:
        click.echo(json.dumps([_as_json(result, show_values) for result in results], indent=2))
    if not all(result.is_equal for result in results):
        sys.exit(_DIFFERENT)
    if any(result.changing for result in results):
        sys.exit(ExitCode.FAILED)


def _compared(
    job: str,
    sets: Sequence[str],
    tables: Sequence[str],
    limit: int,
    repair: bool,
    timeout: float,
    progress: _Progress,
) -> Iterator[TableResult]:
    """Yield the result of each table; for the arguments see the options of the command."""
    ignore_import_warnings()
    # Imported here because it imports Beam, which takes two seconds that no other command need spend.
    from penstock.verify.job import check_job, prepared

    configuration = resolve(job, sets, {}, os.environ)
    source, sink = configuration.template.source, configuration.template.sink
    check_job(source, sink, configuration.parameters)
    remote = remote_job(job)
    wait = _Wait(remote, timeout)
    read_again = None
    if repair:
        folder = signal_folder(job, configuration.parameters)
        pipeline = build(configuration, to_run=False)
        read_again = RowRequests(remote, pipeline, folder, timeout, progress.waiting)
        read_again.check()
    with ExitStack() as stack:
        comparison = prepared(source, sink, configuration.parameters, remote.name, tables, stack)
        wait.check()
        yield from comparison.results(wait, progress, limit=limit, read_again=read_again)


class _Wait:
    """See `penstock.verify.rounds.Wait`."""

    def __init__(self, remote: Any, seconds: float) -> None:
        self._remote, self._seconds = remote, seconds
        self._known: Mapping[str, datetime | None] = {}

    def check(self) -> None:
        """Refuse a job that will not become complete."""
        record = self._remote.last()
        if record is None:
            raise UsageError(
                "the job has no checkpoint yet: start it, and compare when it has read its source"
            )
        if record.state.done:
            raise UsageError(
                "the job has ended, so nothing says which changes its target lacks. Start it without an end"
            )

    def __call__(self, until_ns: int) -> None:
        until = EPOCH + -(-until_ns // 1000) * EPOCH.resolution  # rounded up: never complete too early
        if not self._remote.wait_until_complete(
            until, sinks=(SINK,), seconds=self._seconds, on_look=self._look
        ):
            known = ", ".join(at.isoformat() if at else "no time" for at in self._known.values())
            raise _NotCompleteError(
                f"the target is not complete until {until.isoformat()} after {span(self._seconds)}; it is until "
                f"{known}. Does the job run? penstock status shows it. --timeout waits longer"
            )

    def _look(self, complete: Mapping[str, datetime | None]) -> None:
        self._known = complete


class _Progress:
    """Shows on a terminal how many rows were read, and how many are waited for."""

    def __init__(self) -> None:
        self._shown, self._at = sys.stderr.isatty(), 0.0

    def __call__(self, table: str, rows: int) -> None:
        if time.monotonic() - self._at > 0.2:
            self._at = time.monotonic()
            self._show(f"{table}: {rows:,} rows read")

    def waiting(self, table: str, rows: int) -> None:
        """Say that the job is to read rows again."""
        self._show(f"{table}: waiting until the job has read {_counted(rows, 'row')} again")

    def _show(self, text: str) -> None:
        if self._shown:
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)


def _print(result: TableResult, show_values: bool) -> None:
    name = f"{result.table} -> {result.target}"
    if result.no_table:
        click.echo(f"{name}: the target has no such table, and the source has rows")
        return
    count = len(result.differences)
    outcome = "equal" if not count else _counted(count, "difference")
    if result.stopped:
        outcome = f"{count} or more differences"
    if result.remaining is not None:
        outcome += f", {len(result.repaired)} repaired"
    click.echo(f"{name}: {result.rows:,} rows, {outcome}")
    repaired = {each.key for each in result.repaired}
    for finding in result.differences:
        state = "repaired  " if finding.key in repaired else ""
        key = _key(finding.key, show_values)
        click.echo(f"  {finding.kind:<9}  {state}{key}{_columns(finding, show_values)}")
    if extra := [each for each in result.remaining or () if each.kind is Kind.EXTRA]:
        click.echo(
            f"  not repaired: {_counted(len(extra), 'row')} that only the target has. Delete them there"
        )
    if others := len(result.remaining or ()) - len(extra):
        click.echo(
            f"  still different: {_counted(others, 'row')}. The page on verify says what a snapshot cannot repair"
        )
    if result.stopped and result.remaining is not None:
        click.echo("  The rest of the table was not looked at: repair again, or with more --rows")
    if result.changing:
        click.echo(
            f"  not known: {len(result.changing):,}. These rows changed each time they were compared. Compare again "
            "when fewer rows change"
        )
    if result.left_out:
        click.echo(f"  not compared: columns that the target does not have: {', '.join(result.left_out)}")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _columns(finding: Finding, show_values: bool) -> str:
    if not finding.columns:
        return ""
    if not show_values:
        return f"  {', '.join(each.column for each in finding.columns)}"
    return "".join(
        f"\n             {each.column}: source {_value(each.source)}, target {_value(each.target)}"
        for each in finding.columns
    )


def _value(text: str | None) -> str:
    return "NULL" if text is None else repr(text)


def _key(key: str, show_values: bool) -> str:
    """Return a key, or a digest of it: the same for the same key."""
    return key if show_values else f"key #{sha256(key.encode()).hexdigest()[:12]}"


def _as_json(result: TableResult, show_values: bool) -> dict[str, Any]:
    def finding(each: Finding) -> dict[str, Any]:
        shown: dict[str, Any] = {"kind": each.kind.value, "key": _key(each.key, show_values)}
        columns = [column._asdict() if show_values else {"column": column.column} for column in each.columns]
        return {**shown, "columns": columns}

    repair: dict[str, Any] = {}
    if result.remaining is not None:
        repair = {
            "repaired": [finding(each) for each in result.repaired],
            "not_repaired": [finding(each) for each in result.remaining],
        }
    return {
        "table": result.table,
        "target": result.target,
        "rows": result.rows,
        "equal": result.is_equal,
        "differences": [finding(each) for each in result.differences],
        **repair,
        "more_differences": result.stopped,
        "changing": [_key(key, show_values) for key in result.changing],
        "columns_not_compared": list(result.left_out),
        "target_has_table": not result.no_table,
    }
