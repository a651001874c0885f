"""`penstock verify`: compares the rows of a job's target with its source, while the job runs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.common import build, checkpoint_of, is_job_file, refuse, remote_job
from penstock.cli.configuration import ConfigurationError
from penstock.cli.resolve import resolve
from penstock.cli.row_requests import NotReadError, RowRequests, signal_folder
from penstock.cli.span import Span
from penstock.errors import PenstockError, UsageError
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.run import ExitCode
from penstock.object_stores import locate
from penstock.telemetry.status import span
from penstock.timestamps import EPOCH, format_timestamp
from penstock.verify.rounds import Finding, Kind

if TYPE_CHECKING:
    from penstock.verify.folder import DigestFolder
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
    "--rows-per-second",
    type=click.IntRange(min=1),
    metavar="N",
    help="Rows of the source that are read in a second at most, through one connection. Default: no limit.",
)
@click.option(
    "--continue",
    "continue_",
    is_flag=True,
    help="Continue a comparison that was interrupted: rows that were read are not read again.",
)
@click.option(
    "--folder",
    metavar="FOLDER",
    help="Folder of this machine for digests and keys of rows, until the comparison ends. Default: one beside the "
    "checkpoint folder, with -verify at the end of its name.",
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
    rows_per_second: int | None,
    continue_: bool,
    folder: str | None,
    timeout: float,
    show_values: bool,
    json_: bool,
) -> None:
    """Compare the rows of a job's target with its source.

    The job goes on, and rows may change: a change that is on its way is not a difference. Nothing is locked or
    stopped. For PostgreSQL and Spanner to PostgreSQL and Spanner, to Delta and Iceberg tables with mode=current, and to
    files.

    With --repair the job reads the rows that differ again, in an incremental snapshot, and writes them to the target.
    A row that only the target has is not repaired.

    A comparison that was interrupted, or that did not get an answer in time, is continued with --continue.

    Exits with 0 if all rows are equal, if wanted after a repair, with 1 if there are differences, and with 4 if rows
    changed all the time or the target did not become complete.
    """
    if not is_job_file(job):
        refuse(f"{job} is not a job file: the command needs one, because it reads source and target")
    progress = _Progress()
    results: list[TableResult] = []
    place: _Place | None = None
    try:
        place = _Place.chosen(job, folder, continue_)
        choices = _Choices(tables, limit, repair, rows_per_second, timeout)
        for result in _compared(job, sets, choices, place, progress):
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
        _say_how_to_continue(place)
        sys.exit(ExitCode.FAILED)
    except KeyboardInterrupt:
        progress.clear()
        _say_how_to_continue(place)
        sys.exit(ExitCode.INTERRUPTED)
    except (PenstockError, OSError) as error:
        progress.clear()
        click.echo(f"Error: {error}", err=True)
        _say_how_to_continue(place)
        sys.exit(ExitCode.PREFLIGHT)
    if json_:
        click.echo(json.dumps([_as_json(result, show_values) for result in results], indent=2))
    if not all(result.is_equal for result in results):
        sys.exit(_DIFFERENT)
    if any(result.changing for result in results):
        sys.exit(ExitCode.FAILED)


@dataclass(frozen=True, slots=True)
class _Choices:
    """Options of the command; see their help."""

    tables: Sequence[str]
    limit: int
    repair: bool
    rows_per_second: int | None
    timeout: float


@dataclass(frozen=True, slots=True)
class _Place:
    """Where digests are until the comparison ends. `folder`: None for temporary files."""

    folder: Path | None
    is_named: bool
    continues: bool

    @classmethod
    def chosen(cls, job: str, folder: str | None, continues: bool) -> _Place:
        """Return the place for the options of the command.

        Raises:
            UsageError: a comparison with temporary files cannot be continued.
        """
        if folder is not None:
            return cls(Path(folder), True, continues)
        checkpoint = locate(checkpoint_of(job))
        if isinstance(checkpoint, str):
            return cls(Path(f"{checkpoint.rstrip('/')}-verify"), False, continues)
        if continues:
            raise UsageError(
                "--continue: the checkpoint is in an object store, so digests are in temporary files. Compare with "
                "--folder, a folder of this machine, from the start on"
            )
        return cls(None, False, False)

    def opened(self, stack: ExitStack) -> DigestFolder:
        """Return the folder, which `stack` closes."""
        from penstock.verify.folder import DigestFolder

        if self.folder is not None:
            try:
                return stack.enter_context(DigestFolder.opened(self.folder, keeps=self.continues))
            except OSError:
                # A comparison needs no right to write beside the checkpoint, unless it is to be continued.
                if self.is_named or self.continues:
                    raise
        return DigestFolder(None)

    @property
    def can_continue(self) -> bool:
        """Whether digests are there that a later command continues with."""
        return self.folder is not None and any(self.folder.glob("*.digests"))


def _compared(
    job: str, sets: Sequence[str], choices: _Choices, place: _Place, progress: _Progress
) -> Iterator[TableResult]:
    """Yield the result of each table."""
    ignore_import_warnings()
    # Imported here because it imports Beam, which takes two seconds that no other command need spend.
    from penstock.verify.job import check_job, prepared

    configuration = resolve(job, sets, {}, os.environ)
    source, sink = configuration.template.source, configuration.template.sink
    check_job(source, sink, configuration.parameters)
    remote = remote_job(job)
    wait = _Wait(remote, choices.timeout)
    read_again = None
    if choices.repair:
        folder = signal_folder(job, configuration.parameters)
        pipeline = build(configuration, to_run=False)
        read_again = RowRequests(remote, pipeline, folder, choices.timeout, progress.waiting)
        read_again.check()
    with ExitStack() as stack:
        digests = place.opened(stack)
        comparison = prepared(
            source,
            sink,
            configuration.parameters,
            remote.name,
            choices.tables,
            stack,
            folder=digests,
            rows_per_second=choices.rows_per_second,
        )
        wait.check()
        yield from comparison.results(wait, progress, limit=choices.limit, read_again=read_again)
        digests.remove()


def _say_how_to_continue(place: _Place | None) -> None:
    if place is not None and place.can_continue:
        click.echo("to continue, run the same command with --continue", err=True)


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
        self._what, self._first = ("", ""), (0.0, 0)

    def __call__(self, table: str, side: str, rows: int) -> None:
        """Say how many rows of a side were read, and how many in a second since its first ones."""
        now = time.monotonic()
        if (table, side) != self._what:
            self._what, self._first = (table, side), (now, rows)
        if now - self._at > 0.2:
            self._at = now
            since, before = self._first
            pace = f", {(rows - before) / (now - since):,.0f} rows/s" if now > since else ""
            self._show(f"{table}: {rows:,} rows of the {side} read{pace}")

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
    if result.since_ns is not None:
        since = format_timestamp(result.since_ns)
        click.echo(
            f"  continued: equal rows were equal at some time since {since}, when this comparison began"
        )
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
        "continued_since": None if result.since_ns is None else format_timestamp(result.since_ns),
    }
