"""The tables of a job and their comparison. What cannot be compared is refused before anything is read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from typing import Any, NamedTuple

from penstock.errors import UsageError
from penstock.event.model import Source, TableSchema
from penstock.extras import extra_packages
from penstock.io.columnar.replica import table_name
from penstock.io.staging.names import folder_name, sink_name
from penstock.pipelines.event_options import NATIVE
from penstock.pipelines.sinks import SINKS
from penstock.pipelines.source_to_sink import WRITE, endpoints
from penstock.pipelines.sources import SOURCES
from penstock.tables import TableSelection, matches_table, unmatched
from penstock.verify.budget import RowBudget
from penstock.verify.fingerprints import Fingerprints, Progress, Stage
from penstock.verify.folder import DigestFolder
from penstock.verify.rounds import Finding, Kind, Wait, findings
from penstock.verify.source import PostgresSystem, SourceTable, SpannerSystem, System

ROUNDS = 10
_COLUMN_FILES = ("avro", "parquet")
_FILES = (*_COLUMN_FILES, "files")
"""Sinks whose files are replayed."""
_TARGETS = ("postgresql", "spanner", "delta", "iceberg", *_FILES)
_FORMATS = (NATIVE, "envelope")
"""Formats of lines that tell the version and all values of a change."""
_SYSTEMS: Mapping[str, Callable[[], System]] = {
    "postgres": PostgresSystem,
    "spanner": SpannerSystem,
}
_WHY_NO_SOURCE = {
    "bigtable": "changes of Bigtable have cells and not rows, so its targets have no current rows",
    "ydb": "a table of YDB is read at no time that is known in its changefeed",
}
_FILTERS = ("where", "operations", "without_tags", "mod_types", "exclude_transaction_tags")
"""Parameters that leave out changes of a row, and not whole rows."""
_WHY_NO_FORMAT = {
    "debezium": "its records do not tell all values exactly, nor in PostgreSQL the order of a change and a row of a "
    "snapshot",
    "change_feed": "its values are not read back",
    "cloudevents": "its records have the values of another format",
}
_NO_VERSION = "its records have no version that names the transaction of a change"
_NO_ROWS = (
    "it has no current rows that can be read by their keys: only PostgreSQL, Spanner, Delta and Iceberg have them, "
    "and files are replayed"
)

_KEYS_IN_REQUEST = 1_000
"""Rows that are read again at once: their keys are a part of the source's checkpoint until they are read."""

ReadAgain = Callable[[str, Sequence[str]], None]
"""Gets the name of a table, and keys as `ChunkRequest.keys` has them; returns when the pipeline has read these rows."""

OnProgress = Callable[[str, str, int], None]
"""Gets the name of a table, the side that is read, source or target, and how many of its rows were read."""


@dataclass(slots=True)
class TableResult:
    """The result for one table.

    - `rows`: of the source. `left_out`: columns that the target does not have, which were not compared.
    - `stopped`: there were more differences than wanted, and the rest was not looked at.
    - `remaining`: the differences after a repair; None: nothing was repaired. `changing` has rows of it too.
    """

    table: str
    target: str
    rows: int = 0
    differences: list[Finding] = field(default_factory=list)
    changing: list[str] = field(default_factory=list)
    left_out: Sequence[str] = ()
    stopped: bool = False
    no_table: bool = False
    """The target does not have the table, and the source has rows."""
    remaining: list[Finding] | None = None
    since_ns: int | None = None
    """When a comparison began that was continued, in nanoseconds; None: this one is from the start."""

    @property
    def is_equal(self) -> bool:
        """Whether there is no difference now."""
        differences = self.differences if self.remaining is None else self.remaining
        return not (differences or self.no_table or self.stopped)

    @property
    def repaired(self) -> list[Finding]:
        """The differences that a repair has removed."""
        if self.remaining is None:
            return []
        others = {*self.changing, *(each.key for each in self.remaining)}
        return [each for each in self.differences if each.key not in others]


class _Table(NamedTuple):
    """A table to compare. `target`: see `SqlTable`, `SpannerTable` and `ColumnarTable`, which have the same methods."""

    source: SourceTable
    target: Any
    schema: TableSchema
    name: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The tables of a job, with open connections."""

    tables: Sequence[_Table]
    tombstone_seconds: float
    folder: DigestFolder = field(default_factory=lambda: DigestFolder(None))
    identity: str = ""
    """Of the job and its choices: a comparison of another one is not continued."""

    def results(
        self,
        wait: Wait,
        progress: OnProgress,
        *,
        limit: int,
        rounds: int = ROUNDS,
        read_again: ReadAgain | None = None,
    ) -> Iterator[TableResult]:
        """Yield the result of each table. At most `limit` differences of a table are looked for.

        `read_again`: has rows that differ written again, which are then compared again.

        Raises:
            PenstockError: a service refused to answer.
        """
        for table in self.tables:
            result = self._result(table, wait, progress, limit, rounds)
            if read_again is not None and result.differences:
                self._repair(result, table, wait, read_again, rounds)
            yield result

    def _result(
        self, table: _Table, wait: Wait, progress: OnProgress, limit: int, rounds: int
    ) -> TableResult:
        result = TableResult(table.source.name, table.name)
        with self.folder.of(table.source.name, self._identity_of(table)) as digests:
            if digests.progress.shape:
                self._continue(result, table, digests)
            result.rows = digests.progress.rows
            if digests.progress.stage is Stage.SOURCE:
                self._read_source(result, table, digests, wait, progress)
            if result.no_table:
                return result
            wait(digests.progress.until_ns)
            if not table.target.is_open and not table.target.open(table.schema):
                return result
            result.left_out = table.target.left_out
            if digests.progress.stage is Stage.TARGET:
                self._read_target(table, digests, progress)
            self._recheck(result, digests.suspects(), table, wait, limit, rounds)
        return result

    def _identity_of(self, table: _Table) -> str:
        return f"{self.identity} {table.name} {table.schema!r}"

    def _continue(self, result: TableResult, table: _Table, digests: Fingerprints) -> None:
        """Take the digests of an earlier command, if they are of the columns that the target has now."""
        if table.target.open(table.schema) and table.target.shape == digests.progress.shape:
            result.since_ns = digests.progress.began_ns
        else:
            digests.clear()

    def _read_source(
        self,
        result: TableResult,
        table: _Table,
        digests: Fingerprints,
        wait: Wait,
        on_progress: OnProgress,
    ) -> None:
        source, target, began_ns = table.source, table.target, digests.progress.began_ns or time.time_ns()
        for chunk in source.chunks(digests.progress.cursor):
            until_ns = max(digests.progress.until_ns, chunk.snapshot.until_ns)
            result.rows += len(chunk.rows)
            # The sink creates a table with its first row, so the table is not looked for before there is one.
            if len(chunk.rows) and not target.is_open:
                wait(until_ns)
                if not target.open(table.schema):
                    result.no_table = True
                    return
            if len(chunk.rows):
                digests.add_source(target.expected(chunk.rows))
            stage = Stage.TARGET if chunk.is_last else Stage.SOURCE
            shape = target.shape if target.is_open else ""
            digests.save(Progress(stage, chunk.cursor, result.rows, until_ns, began_ns, shape))
            on_progress(source.name, "source", result.rows)

    def _read_target(self, table: _Table, digests: Fingerprints, on_progress: OnProgress) -> None:
        count = 0
        for part in table.target.fingerprints():
            digests.add_target(part)
            count += part.num_rows
            on_progress(table.source.name, "target", count)

    def _recheck(
        self, result: TableResult, suspects: Iterator[str], table: _Table, wait: Wait, limit: int, rounds: int
    ) -> None:
        for finding in self._findings(suspects, table, wait, rounds):
            if finding.kind is Kind.CHANGING:
                result.changing.append(finding.key)
            elif len(result.differences) < limit:
                result.differences.append(finding)
            else:
                result.stopped = True
                return

    def _findings(self, suspects: Iterator[str], table: _Table, wait: Wait, rounds: int) -> Iterator[Finding]:
        return findings(
            suspects,
            table.source,
            table.target,
            wait,
            rounds=rounds,
            tombstone_seconds=self.tombstone_seconds,
            clock=time.monotonic,
        )

    def _repair(
        self, result: TableResult, table: _Table, wait: Wait, read_again: ReadAgain, rounds: int
    ) -> None:
        # A row that the source does not have cannot be read again.
        keys = [each.key for each in result.differences if each.kind is not Kind.EXTRA]
        for start in range(0, len(keys), _KEYS_IN_REQUEST):
            read_again(result.table, table.source.request_keys(keys[start : start + _KEYS_IN_REQUEST]))
        result.remaining = []
        suspects = (each.key for each in result.differences)
        for finding in self._findings(suspects, table, wait, rounds):
            if finding.kind is Kind.CHANGING:
                result.changing.append(finding.key)
            else:
                result.remaining.append(finding)


def check_job(source: str, sink: str, parameters: Mapping[str, Any]) -> None:
    """Refuse a job whose target cannot be compared with its source.

    Raises:
        UsageError: the message says why.
    """
    if source not in _SYSTEMS:
        raise UsageError(f"{source}-to-{sink} cannot be compared: {_WHY_NO_SOURCE[source]}")
    if sink not in _TARGETS:
        raise UsageError(f"{source}-to-{sink} cannot be compared: {_NO_ROWS}")
    if sink == "files":
        _check_format(parameters)
    if (mode := parameters.get("mode", "current")) != "current":
        raise UsageError(
            f"a target with mode={mode} has versions of rows: only mode=current has a row for each row"
        )
    if parameters.get("layout", "events") != "events":
        raise UsageError(
            f"files with layout={parameters['layout']} are not replayed: only those with layout=events are"
        )
    if parameters.get("further_slots"):
        raise UsageError("a job with further_slots is not compared yet: only jobs with one slot are")
    filters = [name for name in _FILTERS if parameters.get(name)]
    if filters:
        raise UsageError(
            f"a job with {filters[0]} leaves out changes of a row, so its target has rows as they were at some time. "
            "Such rows cannot be compared with the source"
        )


def _check_format(parameters: Mapping[str, Any]) -> None:
    format = parameters.get("format", NATIVE)
    if format not in _FORMATS:
        raise UsageError(
            f"lines with format={format} are not replayed: {_WHY_NO_FORMAT.get(format, _NO_VERSION)}. Native lines and "
            "format=envelope in JSON are"
        )
    converter = parameters.get("envelope", {}).get("converter", "json")
    if converter != "json":
        raise UsageError(
            f"lines with envelope.converter={converter} are not replayed: only those in JSON are"
        )


def prepared(
    source: str,
    sink: str,
    parameters: Mapping[str, Any],
    job: str,
    patterns: Sequence[str],
    stack: ExitStack,
    *,
    folder: DigestFolder | None = None,
    rows_per_second: int | None = None,
) -> Comparison:
    """Return the comparison of a job's tables. Connections are closed with `stack`.

    Args:
        source, sink, parameters: of the template.
        job: the name in the checkpoint.
        patterns: of the tables to compare; all if there are none.
        folder: for digests that a later command can continue with; None: temporary files.
        rows_per_second: how many rows of the source are read at most; None: no limit.

    Raises:
        UsageError: the job, or a table, cannot be compared; the message says why.
        PenstockError: a service refused to answer.
    """
    transform, to_events, write = endpoints(source, sink, parameters)
    selection = TableSelection.of(parameters)
    known = [
        each
        for each in transform.source_tables()
        if selection.has(each.schema, each.name) and str(each) != parameters.get("signal_table")
    ]
    names, globs = unmatched("--table", patterns, known, transform.stream.short_name)
    if names or globs:
        raise UsageError("; ".join([*names, *globs]))
    chosen = [
        each for each in known if not patterns or matches_table(tuple(patterns), each.schema, each.name)
    ]
    if without := [str(each) for each in chosen if not each.has_key]:
        raise UsageError(
            f"{', '.join(without)}: no primary key, so a row of the target cannot be found in the source. Choose other "
            "tables with --table"
        )
    reader = transform.row_reader()
    stack.callback(reader.close)
    system = _SYSTEMS[source]()
    budget = RowBudget(rows_per_second)
    make_target = (
        _files_maker(source, sink, parameters, str(write.output), stack)
        if sink in _FILES
        else _target_maker(
            write.target, sink, job, stack, has_texts=system.has_texts and not to_events.has_steps
        )
    )
    database = getattr(transform.stream, "database", "")
    tables = []
    for each in chosen:
        rows = SourceTable(str(each), reader, system, to_events.of_record, budget, to_events.has_steps)
        if (schema := rows.open()) is not None:
            target = make_target(Source(source, "", database, each.schema, each.name), rows, schema)
            tables.append(_Table(rows, target, schema, str(target.name)))
    identity = _identity(source, sink, parameters, job)
    # Files keep all changes.
    tombstone_seconds = inf if sink in _FILES else write.target.tombstone_seconds
    return Comparison(tables, tombstone_seconds, folder or DigestFolder(None), identity)


def _identity(source: str, sink: str, parameters: Mapping[str, Any], job: str) -> str:
    """Return a digest of what decides which rows are compared, and in which form. It has no secrets."""
    kind = SINKS[sink]
    secrets = SOURCES[source].secrets | {kind.parameter(name) for name in kind.secrets}
    shown = {name: value for name, value in parameters.items() if name not in secrets}
    text = json.dumps([source, sink, job, sorted(shown.items())], default=repr)
    return sha256(text.encode()).hexdigest()


_MakeTarget = Callable[[Source, SourceTable, TableSchema], Any]
"""Opens the target of a table of the source. The columns are those that the sink gets."""


def _files_maker(
    source: str, sink: str, parameters: Mapping[str, Any], output: str, stack: ExitStack
) -> _MakeTarget:
    """Return what opens the files of a table of the source."""
    with extra_packages("arrow", *(set(_COLUMN_FILES) & {sink})):
        from penstock.verify.file_changes import KINDS
        from penstock.verify.replayed_files import ReplayedFiles
        from penstock.verify.replayed_lines import NATIVE_LINES, ReplayedLines, envelope_lines, lines_of

    def columns(of: Source, rows: SourceTable, schema: TableSchema) -> ReplayedFiles:
        return ReplayedFiles(KINDS[sink], output, folder_name(of.qualified_table), stack)

    def lines(of: Source, rows: SourceTable, schema: TableSchema) -> ReplayedFiles:
        if parameters.get("format", NATIVE) == NATIVE:
            read_line = NATIVE_LINES[source](rows.event_of, rows.null_row)
        else:
            read_line = envelope_lines(schema, messages=parameters.get("lines") == "messages")
        return ReplayedLines(lines_of(read_line), output, folder_name(of.qualified_table), stack)

    return lines if sink == "files" else columns


def _target_maker(target: Any, sink: str, job: str, stack: ExitStack, *, has_texts: bool) -> _MakeTarget:
    """Return what opens a table of the target for a table of the source. `has_texts`: see `SqlTable`."""
    # A job has the packages of its own target only.
    if sink == "postgresql":
        from penstock.io.postgres.text_values import SESSION_SETTINGS
        from penstock.io.sql.sender import connect
        from penstock.verify.sql_table import SqlTable

        session = connect(target)
        stack.callback(session.close)
        for name, value in {**SESSION_SETTINGS, "statement_timeout": "0"}.items():
            session.execute("select set_config(%s, %s, false)", (name, value))
        return lambda source, rows, schema: SqlTable(
            target, session, target.table_of_source(source), has_texts
        )
    if sink == "spanner":
        from penstock.io.spanner.sink.target import table_of
        from penstock.verify.spanner_table import SpannerTable, client_of

        client = client_of(target)
        return lambda source, rows, schema: SpannerTable(client, table_of(source))
    from penstock.verify.columnar_table import ColumnarTable

    writer = sink_name(f"{WRITE}/Publish")
    return lambda source, rows, schema: ColumnarTable(target, table_name(target.pattern, source), writer, job)
