"""`LogFilesTarget`: what targets share whose change logs are data files that tasks have written. Needs pyarrow.

A task writes a file for each partition, with the columns of the table, which it has read some time before. The driver
compares them with the table at the commit, and commits the names of files that fit. It reads rows and writes them
itself if columns or partitions have changed in between, or if an earlier version of the sink has staged events.

A log has one of two layouts (`penstock.io.columnar.log_layout`).

A format adds `LogFilesTarget` with `LogCommit`, and `TableFiles` for the files of a table.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from penstock.errors import PenstockError, UnwritableError, UsageError
from penstock.event.model import NO_COLUMNS, ChangeEvent, Source, TableSchema
from penstock.event.replica import by_table
from penstock.event.schema_changes import SchemaChangedError
from penstock.event.schema_policies import EVOLVE
from penstock.io.columnar.arrow_rows import columns_of_arrow
from penstock.io.columnar.data_files import DataFile, PlannedFile, files_of
from penstock.io.columnar.log_layout import LOG_LAYOUTS, LogLayout, check_layout
from penstock.io.columnar.log_parts import PARKED_PARTS, Folder, LogPart
from penstock.io.columnar.log_shape import LogShape, fits, fitted, shape_after
from penstock.io.columnar.one_schema import with_one_schema
from penstock.io.columnar.partitions import MANY_FILES, Partition, warn_of_many_files
from penstock.io.columnar.replica import (
    COMMITS_AT_ONCE,
    TableEvents,
    check_source,
    events_of_epoch,
    raise_refused,
    table_name,
)
from penstock.io.columnar.row_runs import TableRows
from penstock.io.columnar.table_commit import TableCommit
from penstock.io.columnar.table_target import EpochTableTarget, committing_rows
from penstock.io.staging.batch import StagedBatch
from penstock.io.staging.delivery import TargetUnavailableError
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.errors import OutputError
from penstock.io.staging.parked_files import ChangeCodec, EpochChanges, TableEpochs
from penstock.io.staging.table_parking import refusals_of_tables
from penstock.object_stores.store import in_parallel


class TableFiles(ABC):
    """The data files of one table: where they are, and what they have in its format."""

    @property
    @abstractmethod
    def folder(self) -> Folder:
        """The files."""

    def path(self, name: str) -> str:
        """Return the path of a file from its name, which is unique."""
        return name

    @property
    @abstractmethod
    def is_partitioned(self) -> bool:
        """Whether a file has rows of one partition."""

    @abstractmethod
    def divided(self, rows: pa.Table) -> list[tuple[Partition, pa.Table]] | None:
        """Return rows by their partitions, each as its file has them; None: only the driver can write them."""

    @abstractmethod
    def content(self, rows: pa.Table) -> tuple[bytes, str]:
        """Return a Parquet file of rows of the log, and its statistics in the words of the format."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The files and columns of a table, and when this process has read them, in seconds of `time.monotonic`.

    There are no columns if there is no table yet.
    """

    files: TableFiles
    columns: TableSchema
    read_at: float


_known: dict[Hashable, _Known] = {}
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

    @abstractmethod
    def takes(self, file: DataFile) -> bool:
        """Return whether a file with the columns of the table may be added as it is.

        It may not if the table has rules, or partitions by which the file was not divided.
        """

    @abstractmethod
    def add_files(self, files: Sequence[DataFile]) -> None:
        """Commit the names of files, with the ledger."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Write rows with the columns of the table and commit them, with the ledger."""


class LogFilesTarget(EpochTableTarget):
    """See `penstock.io.columnar.data_files.DataFileTarget`. In the modes *current* and *history* the driver writes.

    `_creates_in_tasks`: whether only a table tells the place of its files, so that a task creates the table.
    """

    _creates_in_tasks: ClassVar[bool]

    @property
    def _rows(self) -> LogLayout:
        return LOG_LAYOUTS[self.layout]

    @abstractmethod
    def _begin(self, table: Any, name: str, delivery: EpochDelivery) -> LogCommit: ...

    @abstractmethod
    def _files(self, name: str, table: Any, source: Source | None = None) -> TableFiles:
        """Return the files of a table that `_open` returned.

        It may be None unless `_creates_in_tasks`. `source`: the table of the source, for new files.
        """

    def _identity(self, name: str) -> Hashable:
        """Return what tells a table from all other ones that this process may write."""
        return name

    @abstractmethod
    def _named(self, table: Any) -> Collection[str]:
        """Return the names of the files that an open table has."""

    def plan_files(
        self, events: Iterable[ChangeEvent], stem: str, rows: Iterable[TableRows] = ()
    ) -> list[PlannedFile]:
        files: dict[tuple[str, str, str, pa.Schema], tuple[Source, list[Callable[[], pa.Table]]]] = {}

        def add(source: Source, shape: pa.Schema, part: Callable[[], pa.Table]) -> None:
            key = source.database, source.schema, source.table, shape
            files.setdefault(key, (source, []))[1].append(part)

        own = by_table(each for each in events if self._rows.has_row(each))
        tables = [TableEvents(each[0].source, each) for each in own.values()]
        # A message of the log belongs to no table.
        divide = _by_schema if self.layout == "table" else _with_one_schema_each
        for part in (part for table in tables if table.source.table for part in divide(table)):
            schema = part.schema
            add(part.source, self._rows.schema(schema), partial(self._rows.rows, part.events, schema))
        for each in rows:
            self._check_staged(columns_of_arrow(each.rows.schema))
            add(each.source, each.rows.schema, partial(_itself, each.rows))
        together: dict[str, list[TableSchema]] = {}
        planned = []
        for number, ((*_, shape), (source, parts)) in enumerate(files.items()):
            table, columns = table_name(self.pattern, source), columns_of_arrow(shape)
            together.setdefault(table, []).append(columns)
            planned.append(
                PlannedFile(table, f"penstock-{stem}-{number}.parquet", source, columns, tuple(parts))
            )
        return [msgspec.structs.replace(each, together=tuple(together[each.table])) for each in planned]

    def divided(self, planned: PlannedFile) -> list[PlannedFile]:
        table, source = planned.table, planned.source
        with self.errors(table):
            known = self._known_table(planned, planned.columns)
            # A table that exists decides by what it is partitioned. The commit compares that with `partition_by`.
            if not known.files.is_partitioned:
                return [planned]
            parts = known.files.divided(
                self._with_columns(known.columns, table, source, self._rows_of(planned))
            )
        if parts is None:
            return [planned]
        stem = planned.name.removesuffix(".parquet")
        return [
            msgspec.structs.replace(
                planned,
                name=f"{stem}-{number}.parquet",
                columns=columns_of_arrow(rows.schema),
                rows=(partial(_itself, rows),),
                partition=partition,
            )
            for number, (partition, rows) in enumerate(parts)
        ]

    def write_file(self, planned: PlannedFile) -> DataFile:
        table, source = planned.table, planned.source
        with self.errors(table):
            rows = self._rows_of(planned)
            known = self._known_table(planned, columns_of_arrow(rows.schema))
            rows = self._with_columns(known.columns, table, source, rows)
            (content, statistics), folder = known.files.content(rows), known.files.folder
            path = known.files.path(planned.name)
            # Durable before the driver gets the name: a table that names a missing file cannot be read any more.
            folder.create(path, [content])
            folder.sync([path])
        columns = columns_of_arrow(rows.schema).columns
        return DataFile(
            table, source, path, len(content), rows.num_rows, columns, statistics, planned.partition
        )

    def delete_unnamed(self, files: Collection[tuple[str, str]]) -> None:
        for table in sorted({table for table, _ in files}):
            with self.errors(table):
                found = self._open(table)
                if found is None and self._creates_in_tasks:
                    continue
                # Without a table no file is named, but the folder may have some.
                named = frozenset() if found is None else self._named(found)
                place = self._files(table, found)
                place.folder.delete(
                    place.path(name) for each, name in files if each == table and name not in named
                )

    def publish(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> None:
        if self.mode == "log":
            self.publish_files(delivery, batches)
        else:
            super().publish(delivery, batches)

    def publish_files(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> Collection[str]:
        committed: list[str] = []
        logs = self.logs_of(delivery, batches)
        raise_refused([each.source for each in logs], self.publish_logs(logs, committed), self.schema_changes)
        return committed

    @property
    def parked_changes(self) -> ChangeCodec:
        return PARKED_PARTS

    def logs_of(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> list[TableEpochs]:
        # Without the database: a table that gets the changes of several has one commit for all of them.
        logs: dict[tuple[str, str, str], tuple[str, Source, list[LogPart]]] = {}

        def add(table: str, part: LogPart) -> None:
            source = part.source
            logs.setdefault((table, source.schema, source.table), (table, source, []))[2].append(part)

        for batch in batches:
            if (files := files_of(batch)) is None:
                events = [each for table in events_of_epoch([batch], self.selection) for each in table.events]
                for planned in self.plan_files(events, ""):
                    rows = partial(self._planned_rows, planned)
                    add(planned.table, LogPart(planned.source, planned.columns, rows))
                continue
            for file in files:
                if self.selection.has(file.source.schema, file.source.table):
                    self._check_staged(file.schema)
                    add(file.table, LogPart.of_file(file))
        given: dict[str, Source] = {}
        for table, source, _ in logs.values():
            check_source(table, source, given)
        return [
            TableEpochs(table, source, (EpochChanges(delivery, parts),))
            for table, source, parts in logs.values()
            # A message of the log belongs to no table.
            if source.table
        ]

    def publish_logs(self, tables: Sequence[TableEpochs], committed: list[str]) -> list[PenstockError | None]:
        def publish(log: TableEpochs) -> None:
            # Parked changes of a table that is left out by now.
            if not self.selection.has(log.source.schema, log.source.table):
                return
            self._note(log.name, log.source)
            with self.errors(log.name):
                committed.extend(file.path for file in self._publish_log(log))
                self._tidy(log.name)

        with committing_rows():
            return refusals_of_tables(tables, publish, COMMITS_AT_ONCE)

    def _publish_log(self, log: TableEpochs) -> Sequence[DataFile]:
        """Commit what epochs add to a table; return the files that are committed as they are."""
        table = self._open(log.name)
        # Created from the first epoch's columns: no table of a source is known before its first event.
        if table is None:
            table = self._created(log.name, [part.schema for part in log.missing(None)], log.source)
        self._check_partitions(log.name, table, log.source)
        for _ in range(_MAX_ALTERED):
            commit = self._begin(table, log.name, log.newest)
            # Before anything is read: a repeated epoch costs only the metadata.
            ledger = commit.ledger()
            if log.is_delivered(ledger):
                return ()
            parts = log.missing(ledger)
            shape = self._shape(log.name, commit.columns(), [part.schema for part in parts], log.source)
            if shape.columns == commit.columns():
                return self._commit(commit, log, parts, shape)
            # A commit before the rows. Then the ledger is compared again, on the snapshot that the rows begin at.
            commit.alter(shape, log.source)
            table = self._open(log.name)
        raise TargetUnavailableError(f"another writer alters the columns of the table {log.name}")

    def _created(self, name: str, columns: Sequence[TableSchema], source: Source) -> Any:
        """Create a table for rows with these columns, and return it.

        Raises:
            SchemaChangedError: the types of a column have no common one.
        """
        new = self._shape(name, NO_COLUMNS, columns, source)
        return self._create(name, self._rows.source_columns(new.columns), source)

    def _shape(self, table: str, held: TableSchema, files: Sequence[TableSchema], source: Source) -> LogShape:
        return shape_after(table, held, files, source, self._policies(source), self.layout)

    def _check_staged(self, columns: TableSchema) -> None:
        """Raise UsageError if an earlier start has staged rows of the other layout."""
        fix = "start the pipeline once with the other layout, which writes them, and change it then"
        check_layout(f"a file for {self.pattern} in the checkpoint", columns, self.layout, fix)

    def _commit(
        self, commit: LogCommit, log: TableEpochs, parts: Sequence[LogPart], shape: LogShape
    ) -> Sequence[DataFile]:
        files = [part.file for part in parts if part.file is not None]
        folder = self._files(log.name, commit.table).folder
        _check_files(log.name, folder, files)
        fitting = [each for each in files if fits(each.schema, shape.columns) and commit.takes(each)]
        if len(fitting) == len(parts):
            commit.add_files(files)
            if len(files) > MANY_FILES:
                warn_of_many_files(log.name)
            return files
        rows = [
            fitted(part.rows(folder), shape.columns, left_out, log.source)
            for part, left_out in zip(parts, shape.left_out, strict=True)
        ]
        # A part without images has no columns for them.
        commit.append(pa.concat_tables(rows, promote_options="default"))
        return ()

    def _known_table(self, planned: PlannedFile, own: TableSchema) -> _Known:
        """Return what this process knows of the table of a file with the columns `own`."""
        name, now = planned.table, time.monotonic()
        identity = self._identity(name)
        known = _known.get(identity)
        if known is not None and known.read_at >= now - _REREAD_SECONDS:
            source_columns = self._rows.source_columns
            images = {(column.name, column.type) for column in source_columns(known.columns)}
            # Columns that are not known may be in the table by now.
            if images and all((each.name, each.type) in images for each in source_columns(own)):
                return known
        table = self._open(name)
        if table is None and self._creates_in_tasks:
            table = self._created_for(planned)
        files = self._files(name, table, planned.source)
        if table is None:
            return _Known(files, NO_COLUMNS, now)
        found = _known[identity] = _Known(files, self._columns(table), now)
        return found

    def _created_for(self, planned: PlannedFile) -> Any:
        """Create the table of a file with the columns of all files for it that are planned together."""
        try:
            return self._created(planned.table, planned.together, planned.source)
        # Which of the types the table gets is decided at the commit.
        except SchemaChangedError:
            return self._created(planned.table, planned.together[:1], planned.source)

    def _with_columns(self, held: TableSchema, table: str, source: Source, rows: pa.Table) -> pa.Table:
        """Return rows with the columns `held` of the table, and new ones if the policy allows the change."""
        if not held.columns:
            return rows
        try:
            shape = self._shape(table, held, [columns_of_arrow(rows.schema)], source)
            return fitted(rows, shape.columns, shape.left_out[0], source)
        # The driver meets the same error, after all other tables of the epoch.
        except (SchemaChangedError, UnwritableError, UsageError):
            return rows

    def _rows_of(self, planned: PlannedFile) -> pa.Table:
        """Return the rows of a file in the order of their versions."""
        rows = pa.concat_tables([part() for part in planned.rows])
        versions = self._rows.versions(rows)
        # Nearly always true: a table has one reader, or few.
        if (
            pc.all(pc.less_equal(versions.slice(0, max(len(versions) - 1, 0)), versions.slice(1))).as_py()
            is not False
        ):
            return rows
        # The sort is stable: both rows of an update have one version.
        return rows.take(pc.sort_indices(versions))

    def _planned_rows(self, planned: PlannedFile, folder: Folder) -> pa.Table:
        return self._rows_of(planned)


def _check_files(table: str, folder: Folder, files: Sequence[DataFile]) -> None:
    """Check that the files are there: a table that names a missing file cannot be read any more."""
    lengths = in_parallel(lambda each: folder.length(each.path), files)
    for file, length in zip(files, lengths, strict=True):
        if length != file.length:
            raise OutputError(
                f"the file {file.path} of the table {table} is gone or was changed before its commit. Restore it, "
                "then resume the pipeline; or leave the table out (without_tables) and write it to another place"
            )


def _itself(rows: pa.Table) -> pa.Table:
    return rows


def _with_one_schema_each(table: TableEvents) -> list[TableEvents]:
    """Return the events of a table in parts with one schema each: nearly always one."""
    name = table.source.qualified_table
    try:
        return [with_one_schema(name, table, NO_COLUMNS, EVOLVE)]
    # Which types the table takes is decided at the commit.
    except SchemaChangedError:
        return _by_schema(table)


def _by_schema(table: TableEvents) -> list[TableEvents]:
    """Return the events of a table in parts with one schema each.

    Under a later schema a change would seem to lack the columns that were added since.
    """
    parts: dict[TableSchema, list[ChangeEvent]] = {}
    for event in table.events:
        parts.setdefault(event.schema, []).append(event)
    return [TableEvents(table.source, each) for each in parts.values()]
