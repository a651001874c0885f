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
import warnings
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa

from penstock.compat import UTC
from penstock.datasets import Dataset
from penstock.errors import SeveralProblemsError
from penstock.event.model import Source, TableSchema, Version
from penstock.event.replica import TableChanges, encode_version
from penstock.event.schema_changes import Policy, SchemaChange, SchemaChangedError
from penstock.folders import check_creatable
from penstock.io.columnar.arrow_rows import (
    arrow_schema,
    columns_of_arrow,
    new_table_schema,
    rows_of_arrow,
    rows_to_arrow,
)
from penstock.io.columnar.data_files import DataFile
from penstock.io.columnar.known_keys import SnapshotKeys
from penstock.io.columnar.log_shape import LogShape
from penstock.io.columnar.log_target import LogCommit, LogFilesTarget
from penstock.io.columnar.replica import schema_change
from penstock.io.columnar.table_rows import (
    DELETED,
    KEY,
    TIMESTAMP,
    VALID_TO,
    VERSION,
    Mode,
    StoredRow,
)
from penstock.io.iceberg.errors import IcebergTargetError, classify_error, not_configured
from penstock.io.iceberg.field_ids import field_ids, with_field_ids
from penstock.io.iceberg.files import IcebergFiles
from penstock.io.iceberg.statistics import entry_of, statistics_in
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import LedgerEntry, TargetUnavailableError
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.options import TombstoneOptions
from penstock.io.staging.table_notes import WrittenTable
from penstock.tables import EVERY_TABLE, TableSelection

COMPLETE = "penstock.complete."
"""The properties with marks: ``penstock.complete.<sink>/<job>/<record, 12 digits>``."""

# Properties of a table that decide how it is written.
_FORMAT, _PARQUET, _MERGE = "write.format.default", "parquet", "commit.manifest-merge.enabled"


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
    schema_changes: Policy
    # Not in the repr, because they may contain credentials.
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    tombstone_seconds: float = TombstoneOptions.tombstone_seconds
    mark_seconds: float | None = None
    selection: TableSelection = EVERY_TABLE
    _keys: SnapshotKeys = field(default_factory=SnapshotKeys, init=False, repr=False, compare=False)
    _written: set[WrittenTable] = field(default_factory=set, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"the Iceberg table {self.table} of the catalogue {self.catalog}"

    def check(self) -> None:
        """Ask the catalogue for its namespaces, and whether a warehouse on this machine can be written.

        Raises:
            TargetUnavailableError: it does not answer.
            IcebergTargetError: it denies access, or is not configured, or the warehouse cannot be made.
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
            return _without_repeated_commits(self._load_catalog().load_table(name))
        except NoSuchTableError:
            return None

    def _create(self, name: str, columns: TableSchema) -> Any:
        catalog = self._load_catalog()
        with _creating:
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        shape = new_table_schema(columns, self.mode)
        return _without_repeated_commits(catalog.create_table_if_not_exists(name, schema=shape))

    def _mark(self, table: Any, mark: Mark) -> None:
        # No property is set twice: a catalogue does not compare properties when it commits, so a driver that was paused
        # could replace a newer time. The highest number counts.
        prefix = f"{COMPLETE}{mark.sink}/{mark.job}/"
        name = f"{prefix}{mark.record:012d}"
        older = [each for each in table.metadata.properties if each.startswith(prefix) and each < name]
        with table.transaction() as transaction:
            transaction.set_properties({name: mark.encoded.decode()})
            transaction.remove_properties(*older)

    def _begin(self, table: Any, name: str, delivery: EpochDelivery) -> _Commit:
        return _Commit(table, name, delivery, self.schema_changes, self.tombstone_seconds)

    def _files(self, name: str, table: Any) -> IcebergFiles:
        return IcebergFiles.of(table)

    def _identity(self, name: str) -> Hashable:
        # A table of the same name may be in another catalogue.
        return name, self.catalog, tuple(sorted(self.properties.items()))

    def _columns(self, table: Any) -> TableSchema:
        return columns_of_arrow(table.schema().as_arrow())

    def _named(self, table: Any) -> Collection[str]:
        # The names of the sink's files are unique, whatever folder they are in.
        return {task.file.file_path.rpartition("/")[2] for task in table.scan().plan_files()}


def _without_repeated_commits(table: Any) -> Any:
    """Set the property only on this handle of the table: other writers keep their own setting."""
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


@contextmanager
def _errors(target: str) -> Iterator[None]:
    """Turn errors of pyiceberg within the block into errors of the sink."""
    from pyiceberg import exceptions

    conflicts = (
        exceptions.CommitFailedException,
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


@dataclass(frozen=True, slots=True)
class _Commit(LogCommit):
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

    def properties(self, truncated: Version | None = None, forgotten: int | None = None) -> dict[str, str]:
        entries = {self._entry("sink"): ":".join(map(str, self.delivery.position))}
        if truncated is not None:
            entries[self._entry("truncated")] = str(truncated.order)
        if forgotten is not None:
            entries[self._entry("forgotten")] = str(forgotten)
        return entries

    @property
    def _summary(self) -> dict[str, str]:
        return {"penstock.epoch": str(self.delivery.epoch)}

    def columns(self) -> TableSchema:
        return columns_of_arrow(self.table.schema().as_arrow())

    def fit(self, wanted: TableSchema) -> tuple[TableSchema, SchemaChange]:
        return schema_change(self.name, self.columns(), wanted, self.policy)

    def read_keys(self) -> Iterator[list[str]]:
        for part in self.table.scan(selected_fields=(KEY,)).to_arrow_batch_reader():
            yield part.column(0).to_pylist()

    def read_rows(self) -> Iterator[list[StoredRow]]:
        for part in self.table.scan().to_arrow_batch_reader():
            yield rows_of_arrow(pa.Table.from_batches([part]))

    def rows_with(self, keys: list[str]) -> list[StoredRow]:
        from pyiceberg.expressions import In

        return self._load(In(KEY, keys)) if keys else []

    def rows_that_may_change(self, keys: list[str]) -> list[StoredRow]:
        from pyiceberg.expressions import And, EqualTo, In, IsNull, Or

        may_change = Or(IsNull(VALID_TO), EqualTo(DELETED, True))
        return self._load(And(may_change, In(KEY, keys))) if keys else []

    def valid_rows(self) -> list[StoredRow]:
        from pyiceberg.expressions import IsNull

        return self._load(IsNull(VALID_TO))

    def _load(self, condition: Any) -> list[StoredRow]:
        if self.are_new:
            return []
        return rows_of_arrow(self.table.scan(row_filter=condition).to_arrow())

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
            metadata.spec().is_unpartitioned()
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
            update = transaction.update_snapshot(snapshot_properties=self._summary)
            # As pyiceberg's own append.
            merges = metadata.properties.get(_MERGE, "false").lower() == "true"
            with update.merge_append() if merges else update.fast_append() as append:
                for file in files:
                    append.append_data_file(entry_of(file, metadata.default_spec_id))
            transaction.set_properties(self.properties())

    def append(self, rows: pa.Table) -> None:
        self.write(rows.cast(self._requiring(rows.schema)), alters=False)

    def _requiring(self, shape: pa.Schema) -> pa.Schema:
        """Return a schema with the columns required that the table of another program requires: so they stay."""
        required = {field.name for field in self.table.schema().fields if field.required}
        return pa.schema([field.with_nullable(field.name not in required) for field in shape])

    def write_rows(
        self,
        rows: list[StoredRow],
        changes: TableChanges,
        after: TableSchema,
        change: SchemaChange,
        source: Source,
    ) -> None:
        from pyiceberg.expressions import AlwaysFalse, And, EqualTo, In, LessThan, Or

        older = AlwaysFalse()
        if changes.truncated is not None:
            older = LessThan(VERSION, encode_version(changes.truncated))
        forgotten = self.forget_before(changes.newest)
        if forgotten is not None:
            before = datetime.fromtimestamp(forgotten // 1_000_000_000, UTC).isoformat()
            older = Or(older, And(EqualTo(DELETED, True), LessThan(TIMESTAMP, before)))
        replaced = Or(In(KEY, [row[KEY] for row in rows]), older) if rows else older
        self.write(
            rows_to_arrow(rows, after, source),
            alters=change.alters,
            replaced=replaced,
            truncated=changes.truncated,
            forgotten=forgotten,
        )

    def write_versions(
        self, rows: list[StoredRow], after: TableSchema, change: SchemaChange, source: Source
    ) -> None:
        from pyiceberg.expressions import AlwaysFalse, And, In

        # A version of another key may be in this list, but no version is used twice with one key.
        versions = And(In(KEY, [row[KEY] for row in rows]), In(VERSION, [row[VERSION] for row in rows]))
        replaced = versions if rows else AlwaysFalse()
        self.write(rows_to_arrow(rows, after, source), alters=change.alters, replaced=replaced)

    def write(
        self,
        rows: pa.Table,
        *,
        alters: bool,
        replaced: Any = None,
        truncated: Version | None = None,
        forgotten: int | None = None,
    ) -> None:
        """Commit rows, in place of those that `replaced` selects, with the ledger and the columns of `rows`."""
        with self.table.transaction() as transaction:
            if alters:
                with transaction.update_schema() as update:
                    # Columns are matched by name: Iceberg gives them ids, which a file does not know.
                    update.union_by_name(rows.schema)
            # No row has one of the keys: nothing is to be replaced.
            if replaced is not None and not self.are_new:
                with warnings.catch_warnings():
                    # pyiceberg warns if all keys are new.
                    warnings.filterwarnings("ignore", "Delete operation did not match", UserWarning)
                    transaction.delete(replaced)
            # An epoch that only removes rows has nothing to append.
            if rows.num_rows:
                transaction.append(rows, snapshot_properties=self._summary)
            transaction.set_properties(self.properties(truncated, forgotten))
