"""Iceberg tables as a target of one commit per epoch. Needs the extra `iceberg`.

The ledger is a table property of the sink, ``<generation>:<epoch>:<driver>``, set in the commit of the rows. A
snapshot's summary would be lost when snapshots expire. pyiceberg 0.12 repeats a commit that meets another one after a
refresh, without a comparison of the ledger, so two drivers would both append. That is switched off on the handle of
the table; then everything is done again from the new metadata.

Only a table knows the place of its files and the ids of its columns, so a task that writes a log opens the table, or
creates it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from penstock.datasets import Dataset
from penstock.errors import SeveralProblemsError, UsageError
from penstock.event.column_numbers import ColumnMoves, Numbers, source_text
from penstock.event.feed_rows import Layout
from penstock.event.model import Source, TableSchema, Version
from penstock.event.schema_changes import SchemaChange, SchemaChangedError
from penstock.event.schema_policies import Entries
from penstock.folders import check_creatable
from penstock.io.columnar.arrow_rows import (
    arrow_schema,
    columns_of_arrow,
    new_table_schema,
    rows_of_arrow,
)
from penstock.io.columnar.data_files import DataFile
from penstock.io.columnar.followed_columns import decode_numbers, encode_numbers
from penstock.io.columnar.key_index import KeyIndex
from penstock.io.columnar.known_keys import SnapshotKeys
from penstock.io.columnar.log_shape import LogShape
from penstock.io.columnar.log_target import LogCommit, LogFilesTarget
from penstock.io.columnar.options import TableSinkOptions
from penstock.io.columnar.partitions import (
    MANY_FILES,
    PartitionField,
    check_columns,
    warn_of_many_files,
)
from penstock.io.columnar.partitions import Entries as PartitionEntries
from penstock.io.columnar.positions import NO_POSITIONS, Positions
from penstock.io.columnar.replica import schema_change
from penstock.io.columnar.row_commit import RowCommit
from penstock.io.columnar.table_rows import KEY, LOG_TIMES, Mode, StoredRow
from penstock.io.columnar.table_target import Tidied
from penstock.io.columnar.upkeep import GROUP_ROWS
from penstock.io.iceberg.errors import IcebergTargetError, classify_error, not_configured
from penstock.io.iceberg.field_ids import field_ids, with_field_ids
from penstock.io.iceberg.files import IcebergFiles
from penstock.io.iceberg.old_snapshots import forget_snapshots
from penstock.io.iceberg.partitions import by_partition, fields_of_table, record_of, schema_and_spec
from penstock.io.iceberg.rewind import (
    KNOWN,
    check_files,
    commits_of,
    delete_from,
    newest_mark,
    restore,
    with_mark,
)
from penstock.io.iceberg.snapshot_files import SnapshotFiles
from penstock.io.iceberg.statistics import entry_of, statistics_in
from penstock.io.iceberg.upkeep import entries_to_rewrite, new_file, rewritten
from penstock.io.staging.complete_marks import Mark, decode_mark
from penstock.io.staging.delivery import LedgerEntry, TargetUnavailableError
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.options import TombstoneOptions
from penstock.io.staging.table_notes import WrittenTable
from penstock.rewind import TableVersion, versions_of
from penstock.tables import EVERY_TABLE, TableSelection

# Properties of a table that decide how it is written.
_FORMAT, _PARQUET, _MERGE = "write.format.default", "parquet", "commit.manifest-merge.enabled"
_GROUP = "write.parquet.row-group-limit"

_MAIN = "main"
_DELETES_METADATA = "write.metadata.delete-after-commit.enabled"

_LAST_FORMAT = 2
"""The newest version of Iceberg's format that pyiceberg 0.12 writes."""


def unavailable_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of a catalogue or a storage that does not answer.

    Storages raise OSError. It is also the base class of the errors of `requests`, which REST catalogues use.
    """
    from pyiceberg import exceptions

    found = (
        OSError,
        exceptions.ServiceUnavailableError,
        exceptions.ServerError,
        exceptions.TooManyRequestsError,
        exceptions.WaitingForLockException,
    )
    try:
        from sqlalchemy.exc import IntegrityError, OperationalError
    except ImportError:  # only a catalogue in a database needs it
        return found
    # IntegrityError: another driver has created the namespace at the same moment.
    return (*found, IntegrityError, OperationalError)


_creating = threading.Lock()
"""Held while a catalogue is opened, which creates the tables of one in a database, and while it gets a namespace."""


@dataclass(frozen=True)
class IcebergTarget(LogFilesTarget):
    """See `LogFilesTarget`. `table` may have placeholders; one table is one commit."""

    _creates_in_tasks: ClassVar[bool] = True

    table: str
    catalog: str
    mode: Mode
    schema_changes: Entries
    # Not in the repr, because they may contain credentials.
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    tombstone_seconds: float = TombstoneOptions.tombstone_seconds
    mark_seconds: float | None = None
    selection: TableSelection = EVERY_TABLE
    partition_by: PartitionEntries = ()
    version_seconds: float = 0
    max_index_bytes: int = TableSinkOptions.max_index_bytes
    layout: Layout = TableSinkOptions.layout
    _tidied: dict[str, Tidied] = field(default_factory=dict, init=False, repr=False, compare=False)
    _keys: SnapshotKeys = field(default_factory=SnapshotKeys, init=False, repr=False, compare=False)
    _indexes: list[KeyIndex] = field(default_factory=list, init=False, repr=False, compare=False)
    _written: set[WrittenTable] = field(default_factory=set, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"the Iceberg table {self.table} of the catalogue {self.catalog}"

    def check(self) -> None:
        """Ask the catalogue for its namespaces, and whether a warehouse on this machine can be written.

        Raises:
            TargetUnavailableError: it does not answer.
            IcebergTargetError: it denies access, or is not configured, or the warehouse cannot be made.
            UsageError: the one table has other partitions than `partition_by` asks for.
        """
        errors: list[Exception] = []
        # Both are tried, so that a person sees all problems at once.
        for look in (self._check_warehouse, self._check_catalog):
            try:
                look()
            except Exception as error:  # also of a package that is missing
                errors.append(error)
        if errors:
            raise SeveralProblemsError.of(errors)

    def _check_warehouse(self) -> None:
        warehouse = self.properties.get("warehouse", "").removeprefix("file://")
        if warehouse.startswith("/"):
            try:
                check_creatable(warehouse)
            except OSError as error:
                raise IcebergTargetError(f"{self.name} cannot be created: {error.strerror}") from error

    def _check_catalog(self) -> None:
        with _errors(self.name):
            self._load_catalog().list_namespaces()
            self._check_one_table()

    @property
    def pattern(self) -> str:
        return self.table

    def _dataset(self, name: str) -> Dataset:
        # OpenLineage names Iceberg tables by their location, which only the catalogue knows.
        return Dataset(f"iceberg://{self.catalog}", name)

    def errors(self, name: str) -> AbstractContextManager[None]:
        return _errors(f"the Iceberg table {name} of the catalogue {self.catalog}")

    def _load_catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        try:
            with _creating:
                return load_catalog(self.catalog, **self.properties)
        except ValueError as error:  # no properties, an unknown type, or one that is missing
            raise not_configured(self.catalog, str(error)) from None

    def _open(self, name: str) -> Any:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return _as_written_here(self._load_catalog().load_table(name))
        except NoSuchTableError:
            return None

    def _create(self, name: str, columns: TableSchema, source: Source) -> Any:
        shape, fields = new_table_schema(columns, self.mode, self.layout), self._partitions_of_new(source)
        check_columns(name, fields, columns_of_arrow(shape))
        schema, spec = schema_and_spec(shape, fields)
        catalog = self._load_catalog()
        with _creating:
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        # Old versions of the metadata go too.
        properties = {_DELETES_METADATA: "true"} if self.version_seconds else {}
        return _as_written_here(
            catalog.create_table_if_not_exists(
                name, schema=schema, partition_spec=spec, properties=properties
            )
        )

    def _partitions(self, table: Any) -> tuple[PartitionField, ...]:
        return fields_of_table(table)

    def _mark(self, table: Any, mark: Mark) -> None:
        # No property is set twice: a catalogue does not compare properties when it commits, so a driver that was paused
        # could replace a newer time. The highest number counts.
        with table.transaction() as transaction:
            with_mark(transaction, table.metadata.properties, mark)

    def _versions(self, name: str, table: Any, writer: str, to_us: int) -> list[TableVersion]:
        # With its whole metadata, which the handle for commits does not have.
        whole = self._load_catalog().load_table(name)
        newest = newest_mark(whole.metadata.properties, writer)
        return versions_of(
            commits_of(whole, writer), None if newest is None else decode_mark(newest).until_us
        )

    def _check_version(self, name: str, table: Any, version: int) -> None:
        check_files(self._load_catalog().load_table(name), version)

    def _restore(self, commit: _Commit, mark: Mark, version: int) -> None:
        restore(self._load_catalog().load_table(commit.name), version, commit.entries(), mark)

    def _delete_from(self, commit: _Commit, mark: Mark) -> None:
        delete_from(commit.table, LOG_TIMES[self.layout], commit.summary, commit.entries(), mark)

    def _forget_versions(self, name: str, before_ms: int, since_ms: int) -> bool:
        # With its whole metadata, which the handle of the commit does not have.
        return forget_snapshots(name, self._load_catalog().load_table(name), before_ms)

    def _begin(self, table: Any, name: str, delivery: EpochDelivery) -> _Commit:
        files = SnapshotFiles(table, self._key_index.of_table(name))
        return _Commit(table, name, delivery, self.schema_changes, self.tombstone_seconds, files=files)

    def _files(self, name: str, table: Any, source: Source | None = None) -> IcebergFiles:
        return IcebergFiles.of(table)

    def _identity(self, name: str) -> Hashable:
        # A table of the same name may be in another catalogue.
        return name, self.catalog, tuple(sorted(self.properties.items()))

    def _columns(self, table: Any) -> TableSchema:
        return columns_of_arrow(table.schema().as_arrow())

    def _named(self, table: Any) -> Collection[str]:
        # The names of the sink's files are unique, whatever folder they are in.
        return {task.file.file_path.rpartition("/")[2] for task in table.scan().plan_files()}


def _as_written_here(table: Any) -> Any:
    """Prepare this handle of a table for a commit. Other handles and the catalogue keep the whole metadata."""
    metadata, current = table.metadata, table.current_snapshot()
    held = metadata.properties
    properties = {
        **held,
        "commit.retry.num-retries": "0",
        # A search for rows has a row group of each file in memory.
        _GROUP: str(min(GROUP_ROWS, int(held.get(_GROUP, GROUP_ROWS)))),
    }
    shorter = {
        # pyiceberg 0.12 copies the metadata some twenty times for a commit, with a snapshot for each earlier commit.
        "snapshots": [] if current is None else [current],
        "snapshot_log": [],
        # pyiceberg compares it with the new one to find the files of metadata that are to be deleted.
        "metadata_log": metadata.metadata_log if held.get(_DELETES_METADATA) == "true" else [],
        "refs": {name: ref for name, ref in metadata.refs.items() if name == _MAIN},
    }
    table.metadata = metadata.model_copy(update={"properties": properties, **shorter})
    return table


@contextmanager
def _errors(target: str) -> Iterator[None]:
    """Turn errors of pyiceberg within the block into errors of the sink."""
    from pyiceberg import exceptions

    conflicts = (
        exceptions.CommitFailedException,
        # Nothing is known about this commit. The next try compares the ledger, and so finds out.
        exceptions.CommitStateUnknownException,
        exceptions.ValidationException,
    )
    later = unavailable_errors()
    try:
        yield
    except conflicts as error:
        raise TargetUnavailableError(f"another writer has committed to {target}: {error}") from None
    except (exceptions.RESTError, *later) as error:
        kind = type(error).__name__
        found = classify_error(kind, str(error), target, may_answer_later=isinstance(error, later))
        if found is None:
            raise
        raise found from None


@contextmanager
def _schema_errors(name: str, kind: str) -> Iterator[None]:
    """Turn what pyiceberg says of columns that it cannot rename or drop into an error that names the policy."""
    try:
        yield
    except ValueError as error:  # the base class of its validation errors too
        raise SchemaChangedError(
            f"{name}: Iceberg cannot {kind} a column ({error}): do it by hand, or set {kind}=lenient in schema_changes"
        ) from None


@dataclass(frozen=True, slots=True)
class _Commit(RowCommit, LogCommit):
    """`files` are the files of the snapshot that the commit begins at. They are read when a row is looked for."""

    files: SnapshotFiles = field(kw_only=True, compare=False)

    @property
    def searched(self) -> SnapshotFiles:
        return self.files

    @property
    def compares_versions(self) -> bool:
        return True

    @property
    def snapshot(self) -> int | None:
        # After a commit the catalogue answers with the metadata of this commit.
        found: int | None = self.table.metadata.current_snapshot_id
        return found

    def _entry(self, what: str) -> str:
        return f"penstock.{what}.{self.delivery.writer}"

    def stored(self, what: str) -> int | None:
        found = self.table.metadata.properties.get(self._entry(what))
        return None if found is None else int(found)

    def ledger(self) -> LedgerEntry | None:
        # Absent: the sink has not written to this table.
        found = self.table.metadata.properties.get(self._entry("sink"))
        if found is None:
            return None
        generation, epoch, driver = found.split(":")
        return LedgerEntry(int(generation), int(epoch), driver)

    def entries(self, truncated: Version | None = None, forgotten: int | None = None) -> dict[str, str]:
        entries = {self._entry("sink"): ":".join(map(str, self.delivery.position))}
        if truncated is not None:
            entries[self._entry("truncated")] = str(truncated.order)
        if forgotten is not None:
            entries[self._entry("forgotten")] = str(forgotten)
        return entries

    @property
    def summary(self) -> dict[str, str]:
        """The entries of the sink in the summary of a snapshot."""
        known = newest_mark(self.table.metadata.properties, self.delivery.writer)
        marks = {} if known is None else {KNOWN: known}
        return {"penstock.epoch": str(self.delivery.epoch), **marks}

    def columns(self) -> TableSchema:
        return columns_of_arrow(self.table.schema().as_arrow())

    def fit(self, wanted: TableSchema, source: Source) -> tuple[TableSchema, SchemaChange]:
        return schema_change(self.name, self.columns(), wanted, self.policies(source))

    def read_keys(self) -> Iterator[list[str]]:
        for part in self.table.scan(selected_fields=(KEY,)).to_arrow_batch_reader():
            yield part.column(0).to_pylist()

    def read_rows(self) -> Iterator[list[StoredRow]]:
        for part in self.table.scan().to_arrow_batch_reader():
            yield rows_of_arrow(pa.Table.from_batches([part]))

    def _columns_entry(self, source: Source) -> str:
        return f"penstock.columns.{source_text(source)}"

    def numbers(self, source: Source) -> Numbers:
        return decode_numbers(self.table.metadata.properties.get(self._columns_entry(source)))

    def move_columns(self, moves: ColumnMoves, source: Source) -> None:
        from pyiceberg.table.update import AssertCurrentSchemaId, AssertRefSnapshotId

        table = self.table
        with table.transaction() as transaction:
            # Catalogues do not compare properties. A driver that was paused must not bring older numbers back.
            transaction._stage(
                (),
                (
                    AssertCurrentSchemaId(current_schema_id=table.schema().schema_id),
                    AssertRefSnapshotId(ref=_MAIN, snapshot_id=self.snapshot),
                ),
            )
            # Two changes of the columns, because one cannot rename a column and drop it.
            with _schema_errors(self.name, "rename"), transaction.update_schema() as update:
                for old, new in moves.renamed.items():
                    update.rename_column(old, new)
            with _schema_errors(self.name, "drop"), transaction.update_schema() as update:
                for column in moves.dropped:
                    update.delete_column(column)
            transaction.set_properties({self._columns_entry(source): encode_numbers(moves.known)})

    def alter(self, shape: LogShape, source: Source) -> None:
        from pyiceberg.exceptions import ValidationError

        try:
            with self.table.update_schema() as update:
                update.union_by_name(self._requiring(arrow_schema(shape.columns)))
        except ValidationError as error:
            raise SchemaChangedError(
                f"{self.name}: Iceberg cannot make a column wider in this way ({error}). Write to another table, "
                "or set schema_changes='ignore', which leaves the column as it is"
            ) from None

    def takes(self, file: DataFile) -> bool:
        metadata, schema, found = self.table.metadata, self.table.schema(), statistics_in(file)
        shape = with_field_ids(arrow_schema(file.schema), schema)
        return (
            _has_partition(metadata.spec(), file)
            and not any(field.required for field in schema.fields)
            and metadata.properties.get(_FORMAT, _PARQUET) == _PARQUET
            # A person may have made the table again, or another column has got the id since the file was written.
            and found.table == str(metadata.table_uuid)
            and shape is not None
            and found.ids == field_ids(shape)
        )

    def add_files(self, files: Sequence[DataFile]) -> None:
        metadata = self.table.metadata
        with self.table.transaction() as transaction:
            update = transaction.update_snapshot(snapshot_properties=self.summary)
            # As pyiceberg's own append.
            merges = metadata.properties.get(_MERGE, "false").lower() == "true"
            with update.merge_append() if merges else update.fast_append() as append:
                for file in files:
                    append.append_data_file(entry_of(file, metadata.default_spec_id))
            transaction.set_properties(self.entries())

    def append(self, rows: pa.Table) -> None:
        with self.table.transaction() as transaction:
            if self.table.spec().is_unpartitioned():
                transaction.append(rows.cast(self._requiring(rows.schema)), snapshot_properties=self.summary)
            else:
                update = transaction.update_snapshot(snapshot_properties=self.summary)
                with update.fast_append() as append:
                    for file in _data_files(transaction, rows.cast(self._requiring(rows.schema)), self.name):
                        append.append_data_file(file)
            transaction.set_properties(self.entries())

    def _requiring(self, shape: pa.Schema) -> pa.Schema:
        """Return a schema with the columns required that the table of another program requires: so they stay."""
        required = {field.name for field in self.table.schema().fields if field.required}
        return pa.schema([field.with_nullable(field.name not in required) for field in shape])

    def write(
        self, rows: pa.Table, *, alters: bool, removed: Mapping[str, Positions], entries: Mapping[str, str]
    ) -> None:
        """Commit rows in place of those at `removed`, which has positions by file, with `entries`.

        If `alters`, the table gets the columns of `rows`.
        """
        from penstock.io.iceberg.row_delta import FORMAT_WITH_DELETES, RowDelta, remove_rows

        version = self.table.metadata.format_version
        if version > _LAST_FORMAT:
            raise UsageError(
                f"the Iceberg table {self.name} has version {version} of Iceberg's format, and pyiceberg writes up to "
                f"{_LAST_FORMAT}. Give the sink another table, or make it again with the property format-version=2"
            )
        with self.table.transaction() as transaction:
            if alters:
                with transaction.update_schema() as update:
                    # Columns are matched by name: Iceberg gives them ids, which a file does not know.
                    update.union_by_name(rows.schema)
            if removed:
                transaction.upgrade_table_version(FORMAT_WITH_DELETES)
            # An epoch that changes nothing has no snapshot, only the ledger.
            if rows.num_rows or removed:
                with RowDelta(transaction, self.files, self.summary) as delta:
                    for file in _data_files(transaction, rows, self.name):
                        delta.append_data_file(file)
                    remove_rows(delta, self.files, removed)
            transaction.set_properties(dict(entries))

    def maintain(self) -> None:
        # The files before the commit decide whether there is something to do, because they are read already.
        if not entries_to_rewrite(self.files):
            return
        from pyiceberg.table.snapshots import Operation

        from penstock.io.iceberg.row_delta import RowDelta, remove_rows

        # The commit has replaced the metadata of the handle, and with it what the handle had been prepared with.
        files = SnapshotFiles(_as_written_here(self.table))
        chosen = entries_to_rewrite(files)
        if not chosen:
            return
        with (
            self.table.transaction() as transaction,
            RowDelta(transaction, files, {}, Operation.REPLACE) as delta,
        ):
            for file in rewritten(files, chosen):
                delta.append_data_file(file)
            for file in chosen:
                delta.delete_data_file(file)
            remove_rows(delta, files, NO_POSITIONS)


def _has_partition(spec: Any, file: DataFile) -> bool:
    """Return whether the rows of a file are of one partition of a spec."""
    if file.partition is None:
        return bool(spec.is_unpartitioned())
    names = [field.name for field in spec.fields]
    return file.partition.spec == spec.spec_id and list(file.partition.values) == names


def _data_files(transaction: Any, rows: pa.Table, name: str) -> Iterator[Any]:
    """Write rows to data files, as pyiceberg's own append does, and yield their entries."""
    from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible, _dataframe_to_data_files

    if not rows.num_rows:
        return
    metadata = transaction.table_metadata
    _check_pyarrow_schema_compatible(metadata.schema(), rows.schema, format_version=metadata.format_version)
    if not metadata.spec().is_unpartitioned():
        parts = by_partition(rows, metadata.schema(), metadata.spec())
        if len(parts) > MANY_FILES:
            warn_of_many_files(name)
        for partition, part in parts:
            yield new_file(
                transaction._table, metadata.schema(), [part], partition.spec, record_of(partition)
            )
        return
    # Private in pyiceberg 0.12: its public append makes a snapshot by itself.
    for file in _dataframe_to_data_files(metadata, rows, transaction._table.io):
        file.spec_id = metadata.default_spec_id
        yield file
