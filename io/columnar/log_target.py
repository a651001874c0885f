"""`LogFilesTarget`: what targets share whose change logs are data files that tasks have written. Needs pyarrow.

A task writes a file with the columns of the table, which it has read some time before. The driver compares them with
the columns at the commit, and commits the names of files that fit. It reads rows and writes them itself if the columns
have changed in between, the table has partitions, or an earlier version of the sink has staged events.
"""

from __future__ import annotations

import io
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from penstock.errors import UnwritableError
from penstock.event.change_rows import change_row_schema, change_rows
from penstock.event.model import NO_COLUMNS, ChangeEvent, Source, TableSchema
from penstock.event.replica import by_table
from penstock.event.schema_changes import SchemaChangedError
from penstock.io.columnar.arrow_rows import columns_of_arrow
from penstock.io.columnar.data_files import DataFile, PlannedFile, files_of
from penstock.io.columnar.log_shape import LogShape, fits, fitted, shape_after, source_columns
from penstock.io.columnar.one_schema import with_one_schema
from penstock.io.columnar.parquet import parquet_file
from penstock.io.columnar.replica import (
    TableEvents,
    check_source,
    events_of_epoch,
    image_columns,
    publish_tables_of_epoch,
    table_name,
)
from penstock.io.columnar.row_runs import TableRows
from penstock.io.columnar.table_target import EpochTableTarget, TableCommit, committing_rows
from penstock.io.staging.batch import StagedBatch
from penstock.io.staging.delivery import TargetUnavailableError
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.errors import OutputError
from penstock.object_stores.store import in_parallel


class Folder(Protocol):
    """The files in the folder of a table; see `penstock.io.staging.store.FileStore`.

    `create` replaces a file of the same name, which an earlier try has left.
    """

    def create(self, name: str, content: Iterable[bytes]) -> None: ...
    def sync(self, names: Iterable[str]) -> None: ...
    def read(self, name: str) -> bytes: ...
    def length(self, name: str) -> int | None: ...
    def delete(self, names: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Part:
    """Change rows that an epoch adds to a table. `file` is None if they are staged as events."""

    columns: TableSchema
    rows: Callable[[], pa.Table]
    file: DataFile | None = None


@dataclass(frozen=True, slots=True)
class _TableLog:
    """What an epoch adds to a table."""

    table: str
    source: Source
    parts: list[_Part] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Known:
    """The columns of a table, and when this process has read them, in seconds of `time.monotonic`."""

    columns: TableSchema
    read_at: float


_known: dict[str, _Known] = {}
"""By table. A process has an entry for each table that it writes files for; a wrong one costs time, not rows."""

_MAX_ALTERED = 3
"""How often the columns of a table are compared in one try."""

_REREAD_SECONDS = 600.0
"""A column that a person has made wider is noticed after this time. Until then the driver writes the files again."""


class LogCommit(TableCommit):
    """A commit that can add data files."""

    @abstractmethod
    def alter(self, shape: LogShape, source: Source) -> None:
        """Give the table the columns of `shape`, in a commit without a ledger."""

    @property
    @abstractmethod
    def takes_files(self) -> bool:
        """Whether a file with the columns of the table may be added as it is: the table has no partitions or rules."""

    @abstractmethod
    def add_files(self, files: Sequence[DataFile]) -> None:
        """Commit the names of files, with the ledger."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Write rows with the columns of the table and commit them, with the ledger."""


class LogFilesTarget(EpochTableTarget):
    """See `penstock.io.columnar.data_files.DataFileTarget`. In the modes *current* and *history* the driver writes."""

    @abstractmethod
    def _begin(self, table: Any, name: str, delivery: EpochDelivery) -> LogCommit: ...

    @abstractmethod
    def _folder(self, table: str) -> Folder:
        """Return the folder of a table."""

    @abstractmethod
    def _statistics(self, content: bytes, schema: pa.Schema) -> str:
        """Return the statistics of a Parquet file, in the words of the format."""

    @abstractmethod
    def _columns(self, table: Any) -> TableSchema:
        """Return the plain columns of an open table."""

    @abstractmethod
    def _named(self, table: Any) -> Collection[str]:
        """Return the paths of the files that an open table has, relative to its folder."""

    def plan_files(
        self, events: Iterable[ChangeEvent], stem: str, rows: Iterable[TableRows] = ()
    ) -> list[PlannedFile]:
        files: dict[tuple[str, str, str, pa.Schema], tuple[Source, list[Callable[[], pa.Table]]]] = {}

        def add(source: Source, shape: pa.Schema, part: Callable[[], pa.Table]) -> None:
            key = source.database, source.schema, source.table, shape
            files.setdefault(key, (source, []))[1].append(part)

        tables = [TableEvents(each[0].source, each) for each in by_table(events).values()]
        # A message of the log belongs to no table.
        for part in (part for table in tables if table.source.table for part in _with_one_schema_each(table)):
            schema = part.schema
            add(part.source, change_row_schema(schema), partial(change_rows, part.events, schema))
        for each in rows:
            add(each.source, each.rows.schema, partial(_itself, each.rows))
        return [
            PlannedFile(
                table_name(self.pattern, source),
                f"penstock-{stem}-{number}.parquet",
                source,
                columns_of_arrow(shape),
                tuple(parts),
            )
            for number, ((*_, shape), (source, parts)) in enumerate(files.items())
        ]

    def write_file(self, planned: PlannedFile) -> DataFile:
        table, path, source = planned.table, planned.path, planned.source
        with self.errors(table):
            rows = self._with_known_columns(table, source, _rows_of(planned))
            content, folder = parquet_file([rows], rows.schema), self._folder(table)
            folder.create(path, [content])
            folder.sync([path])
        columns, statistics = columns_of_arrow(rows.schema).columns, self._statistics(content, rows.schema)
        return DataFile(table, source, path, len(content), rows.num_rows, columns, statistics)

    def delete_unnamed(self, files: Collection[tuple[str, str]]) -> None:
        for table in sorted({table for table, _ in files}):
            with self.errors(table):
                found = self._open(table)
                # Without a table no file is named, but the folder may have some.
                named = frozenset() if found is None else self._named(found)
                self._folder(table).delete(
                    path for each, path in files if each == table and path not in named
                )

    def publish(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> None:
        if self.mode == "log":
            self.publish_files(delivery, batches)
        else:
            super().publish(delivery, batches)

    def publish_files(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> Collection[str]:
        given: dict[str, Source] = {}
        committed: list[str] = []

        def publish(log: _TableLog) -> None:
            check_source(log.table, log.source, given)
            self._note(log.table, log.source)
            with committing_rows(), self.errors(log.table):
                committed.extend(file.path for file in self._publish_log(log, delivery))

        publish_tables_of_epoch(self._logs(delivery, batches), publish, self.schema_changes)
        return committed

    def _logs(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> list[_TableLog]:
        """Return what an epoch adds, by table."""
        logs: dict[tuple[str, str, str], _TableLog] = {}

        def log_of(table: str, source: Source) -> _TableLog:
            # Without the database: a table that gets the changes of several has one commit for all of them.
            return logs.setdefault((table, source.schema, source.table), _TableLog(table, source))

        for batch in batches:
            if (files := files_of(batch)) is None:
                events = [each for table in events_of_epoch([batch], self.selection) for each in table.events]
                for planned in self.plan_files(events, ""):
                    part = _Part(planned.columns, partial(_rows_of, planned))
                    log_of(planned.table, planned.source).parts.append(part)
                continue
            for file in files:
                if self.selection.has(file.source.schema, file.source.table):
                    part = _Part(file.schema, partial(self._read, file), file)
                    log_of(file.table, file.source).parts.append(part)
        return list(logs.values())

    def _publish_log(self, log: _TableLog, delivery: EpochDelivery) -> Sequence[DataFile]:
        """Commit what an epoch adds to a table; return the files that are committed as they are."""
        columns = [part.columns for part in log.parts]
        table = self._open(log.table)
        # Created from the first epoch's columns: no table of a source is known before its first event.
        if table is None:
            new = shape_after(log.table, NO_COLUMNS, columns, log.source, self.schema_changes)
            table = self._create(log.table, source_columns(new.columns))
        for _ in range(_MAX_ALTERED):
            commit = self._begin(table, log.table, delivery)
            # Before anything is read: a repeated epoch costs only the metadata.
            if delivery.is_delivered(commit.ledger()):
                return ()
            shape = shape_after(log.table, commit.columns(), columns, log.source, self.schema_changes)
            if shape.columns == commit.columns():
                return self._commit(commit, log, shape)
            # A commit before the rows. Then the ledger is compared again, on the snapshot that the rows begin at.
            commit.alter(shape, log.source)
            table = self._open(log.table)
        raise TargetUnavailableError(f"another writer alters the columns of the table {log.table}")

    def _commit(self, commit: LogCommit, log: _TableLog, shape: LogShape) -> Sequence[DataFile]:
        files = [
            each.file for each in log.parts if each.file is not None and fits(each.columns, shape.columns)
        ]
        if commit.takes_files and len(files) == len(log.parts):
            self._check_files(log.table, files)
            commit.add_files(files)
            return files
        rows = [
            fitted(part.rows(), shape.columns, left_out, log.source)
            for part, left_out in zip(log.parts, shape.left_out, strict=True)
        ]
        # A part without images has no columns for them.
        commit.append(pa.concat_tables(rows, promote_options="default"))
        return ()

    def _read(self, file: DataFile) -> pa.Table:
        return pyarrow.parquet.read_table(io.BytesIO(self._folder(file.table).read(file.path)))

    def _check_files(self, table: str, files: Sequence[DataFile]) -> None:
        """Check that the files are there: a table that names a missing file cannot be read any more."""
        folder = self._folder(table)
        for file, length in zip(
            files, in_parallel(lambda each: folder.length(each.path), files), strict=True
        ):
            if length != file.length:
                raise OutputError(
                    f"the file {file.path} of the table {table} is gone or was changed before its commit. Restore it, "
                    "then resume the pipeline; or leave the table out (without_tables) and write it to another place"
                )

    def _with_known_columns(self, table: str, source: Source, rows: pa.Table) -> pa.Table:
        """Return change rows with the columns of the table, if they are known and the policy allows the change."""
        own = columns_of_arrow(rows.schema)
        known, now = _known.get(table), time.monotonic()
        held = NO_COLUMNS if known is None or known.read_at < now - _REREAD_SECONDS else known.columns
        images = {(column.name, column.type) for column in image_columns(held, "log")}
        # Columns that are not known may be in the table by now.
        if not images or any((each.name, each.type) not in images for each in source_columns(own)):
            found = self._open(table)
            if found is None:
                return rows
            held = self._columns(found)
            _known[table] = _Known(held, now)
        try:
            shape = shape_after(table, held, [own], source, self.schema_changes)
            return fitted(rows, shape.columns, shape.left_out[0], source)
        # The driver meets the same error, after all other tables of the epoch.
        except (SchemaChangedError, UnwritableError):
            return rows


def _rows_of(planned: PlannedFile) -> pa.Table:
    """Return the rows of a file in the order of their versions."""
    rows = pa.concat_tables([part() for part in planned.rows])
    versions = pc.struct_field(rows.column("metadata"), "version")
    # Nearly always true: a table has one reader, or few.
    if (
        pc.all(pc.less_equal(versions.slice(0, max(len(versions) - 1, 0)), versions.slice(1))).as_py()
        is not False
    ):
        return rows
    return rows.take(pc.sort_indices(versions))


def _itself(rows: pa.Table) -> pa.Table:
    return rows


def _with_one_schema_each(table: TableEvents) -> list[TableEvents]:
    """Return the events of a table in parts with one schema each: nearly always one."""
    name = table.source.qualified_table
    try:
        return [with_one_schema(name, table, NO_COLUMNS, "evolve")]
    # Which types the table takes is decided at the commit.
    except SchemaChangedError:
        parts: dict[TableSchema, list[ChangeEvent]] = {}
        for event in table.events:
            parts.setdefault(event.schema, []).append(event)
        return [TableEvents(table.source, each) for each in parts.values()]
