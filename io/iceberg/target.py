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
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.datasets import Dataset
from penstock.errors import SeveralProblemsError
from penstock.event.feed_rows import Layout
from penstock.event.model import Source, TableSchema
from penstock.event.schema_policies import Entries
from penstock.folders import check_creatable
from penstock.io.columnar.arrow_rows import (
    columns_of_arrow,
    new_table_schema,
)
from penstock.io.columnar.key_index import KeyIndex
from penstock.io.columnar.known_keys import SnapshotKeys
from penstock.io.columnar.log_target import LogFilesTarget
from penstock.io.columnar.options import TableSinkOptions
from penstock.io.columnar.partitions import Entries as PartitionEntries
from penstock.io.columnar.partitions import (
    PartitionField,
    check_columns,
)
from penstock.io.columnar.table_rows import LOG_TIMES, Mode
from penstock.io.columnar.table_target import Tidied
from penstock.io.iceberg.commit import DELETES_METADATA, IcebergCommit, as_written_here
from penstock.io.iceberg.errors import IcebergTargetError, classify_error, not_configured
from penstock.io.iceberg.files import IcebergFiles
from penstock.io.iceberg.old_snapshots import forget_snapshots
from penstock.io.iceberg.partitions import fields_of_table, schema_and_spec
from penstock.io.iceberg.rewind import (
    check_files,
    commits_of,
    delete_from,
    newest_mark,
    restore,
    with_mark,
)
from penstock.io.iceberg.snapshot_files import SnapshotFiles
from penstock.io.staging.complete_marks import Mark, decode_mark
from penstock.io.staging.delivery import TargetUnavailableError
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.options import TombstoneOptions
from penstock.io.staging.table_notes import WrittenTable
from penstock.rewind import TableVersion, versions_of
from penstock.tables import EVERY_TABLE, TableSelection


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
    def takes_rows(self) -> bool:
        return self.mode == "current"

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
            return as_written_here(self._load_catalog().load_table(name))
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
        properties = {DELETES_METADATA: "true"} if self.version_seconds else {}
        return as_written_here(
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

    def _restore(self, commit: IcebergCommit, mark: Mark, version: int) -> None:
        restore(self._load_catalog().load_table(commit.name), version, commit.entries(), mark)

    def _delete_from(self, commit: IcebergCommit, mark: Mark) -> None:
        delete_from(commit.table, LOG_TIMES[self.layout], commit.summary, commit.entries(), mark)

    def _forget_versions(self, name: str, before_ms: int, since_ms: int) -> bool:
        # With its whole metadata, which the handle of the commit does not have.
        return forget_snapshots(name, self._load_catalog().load_table(name), before_ms)

    def _begin(self, table: Any, name: str, delivery: EpochDelivery) -> IcebergCommit:
        files = SnapshotFiles(table, self._key_index.of_table(name))
        return IcebergCommit(table, name, delivery, self.schema_changes, self.tombstone_seconds, files=files)

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
