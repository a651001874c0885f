"""Delta tables as a target of one commit per epoch. Needs the extra `delta`."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.datasets import Dataset
from penstock.event.feed_rows import Layout
from penstock.event.model import Source, TableSchema
from penstock.event.schema_policies import Entries
from penstock.folders import check_creatable
from penstock.io.columnar.arrow_rows import columns_of_arrow, new_table_schema
from penstock.io.columnar.key_index import KeyIndex
from penstock.io.columnar.known_keys import SnapshotKeys
from penstock.io.columnar.log_target import LogFilesTarget
from penstock.io.columnar.options import TableSinkOptions
from penstock.io.columnar.partitions import Entries as PartitionEntries
from penstock.io.columnar.partitions import PartitionField, check_columns
from penstock.io.columnar.table_rows import LOG_TIMES, Mode
from penstock.io.columnar.table_target import Tidied
from penstock.io.delta.commit import CommitEntries, DeltaCommit, commit_without_files, table_schema_of
from penstock.io.delta.errors import DeltaTargetError, errors_of
from penstock.io.delta.files import DeltaFiles
from penstock.io.delta.folder import folder_of, is_local
from penstock.io.delta.marks import complete_entry, user_metadata
from penstock.io.delta.old_files import delete_removed_files
from penstock.io.delta.partitions import column_of, fields_of_table, with_units
from penstock.io.delta.rewind import REWOUND, commits_before, restored
from penstock.io.delta.snapshot_files import SnapshotFiles
from penstock.io.delta.table_log import put_commit, transactions_of
from penstock.io.delta.vector_commit import VectorCommit, has_vectors
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import TargetUnavailableError
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.folder_datasets import folder_dataset
from penstock.io.staging.options import TombstoneOptions
from penstock.io.staging.table_notes import WrittenTable
from penstock.rewind import TableVersion, versions_of
from penstock.tables import EVERY_TABLE, TableSelection

_PLACEHOLDER = re.compile(r"\{\w+\}")
_CHECKPOINT_INTERVAL = 10
"""Commits between two checkpoints of a table that the sink creates, as Spark has it.

Each commit and each reader opens the table, and reads all entries of the log after the last checkpoint. With the 100 of
delta-rs a commit to a small table took twice the CPU time before a checkpoint than after one.
"""


@dataclass(frozen=True)
class DeltaTarget(LogFilesTarget):
    """See `LogFilesTarget`. `uri` may have placeholders; one table is one commit."""

    # The URI of a table is its folder, also before there is a table.
    _creates_in_tasks: ClassVar[bool] = False

    uri: str
    mode: Mode
    schema_changes: Entries
    # Not in the repr, because it may contain credentials.
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    tombstone_seconds: float = TombstoneOptions.tombstone_seconds
    mark_seconds: float | None = None
    selection: TableSelection = EVERY_TABLE
    deletion_vectors: bool = False
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
        return f"the Delta table {self.uri}"

    def check(self) -> None:
        """Open the table, or look for one at a URI with other values for its placeholders.

        Raises:
            TargetUnavailableError: the storage does not answer.
            DeltaTargetError: it denies access, there is no such bucket, or the folder cannot be made.
            UsageError: the one table has other partitions than `partition_by` asks for.
        """
        # A local folder can be checked before delta-rs is asked.
        if is_local(self.uri):
            folder = self.uri.removeprefix("file://")
            above = folder.partition("{")[0]
            try:
                check_creatable(folder if above == folder else os.path.dirname(above) or ".")
            except OSError as error:
                raise DeltaTargetError(f"{self.name} cannot be created: {error.strerror}") from error
        uri = _PLACEHOLDER.sub("penstock", self.uri)
        with errors_of(uri):
            self._open(uri)
            self._check_one_table()

    @property
    def takes_rows(self) -> bool:
        # A MERGE begins with events.
        return self.mode == "current" and self.deletion_vectors

    @property
    def pattern(self) -> str:
        return self.uri

    def _dataset(self, name: str) -> Dataset:
        return folder_dataset(name)

    def errors(self, name: str) -> AbstractContextManager[None]:
        return errors_of(name)

    def _open(self, uri: str) -> Any:
        """Return the table with its newest snapshot; None if there is none."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(uri, storage_options=dict(self.storage_options))
        except TableNotFoundError:
            return None

    def _create(self, uri: str, columns: TableSchema, source: Source) -> Any:
        from deltalake import DeltaTable

        shape, fields = new_table_schema(columns, self.mode, self.layout), self._partitions_of_new(source)
        check_columns(uri, fields, columns_of_arrow(shape))
        DeltaTable.create(
            uri,
            with_units(shape.empty_table(), fields).schema,
            # Another driver may create it at the same moment.
            mode="ignore",
            partition_by=[column_of(field) for field in fields],
            storage_options=dict(self.storage_options),
            configuration={"delta.checkpointInterval": f"{_CHECKPOINT_INTERVAL}"},
        )
        return self._open(uri)

    def _partitions(self, table: Any) -> tuple[PartitionField, ...]:
        return fields_of_table(table)

    def _files(self, name: str, table: Any, source: Source | None = None) -> DeltaFiles:
        fields: Sequence[PartitionField] = ()
        if table is not None:
            fields = fields_of_table(table)
        elif source is not None:
            fields = self._partitions_of_new(source)
        return DeltaFiles(folder_of(name, self.storage_options), fields)

    def _columns(self, table: Any) -> TableSchema:
        return columns_of_arrow(table_schema_of(table))

    def _named(self, table: Any) -> Collection[str]:
        # The names of the sink's files are unique, and need no escapes in a URI.
        return {uri.rpartition("/")[2] for uri in table.file_uris()}

    def _mark(self, table: Any, mark: Mark) -> None:
        from deltalake import CommitProperties, Transaction

        entry = complete_entry(f"{mark.sink}/{mark.job}")
        # Compared on the snapshot that the commit begins at: a driver that was paused cannot put the time back.
        if mark.until_us <= (table.transaction_version(entry) or 0):
            return
        commit_without_files(
            table,
            CommitProperties(
                user_metadata(mark),
                max_commit_retries=0,
                app_transactions=[Transaction(entry, mark.until_us)],
            ),
        )

    def _versions(self, name: str, table: Any, writer: str, to_us: int) -> list[TableVersion]:
        folder = folder_of(name, self.storage_options)
        return versions_of(commits_before(folder, int(table.version()), writer, to_us))

    def _check_version(self, name: str, table: Any, version: int) -> None:
        restored(folder_of(name, self.storage_options), table, version)

    def _restore(self, commit: DeltaCommit, mark: Mark, version: int) -> None:
        folder = folder_of(commit.name, self.storage_options)
        entries = _rewound_entries(commit, mark)
        actions = [*transactions_of(entries.transactions), *restored(folder, commit.table, version)]
        info = {**user_metadata(mark), REWOUND: version}
        if not put_commit(folder, commit.snapshot + 1, "RESTORE", actions, info):
            raise TargetUnavailableError(f"another writer has committed to {commit.name}")

    def _delete_from(self, commit: DeltaCommit, mark: Mark) -> None:
        from deltalake import CommitProperties, Transaction

        entries = _rewound_entries(commit, mark)
        properties = CommitProperties(
            entries.metadata,
            max_commit_retries=0,
            app_transactions=[Transaction(*each) for each in entries.transactions.items()],
        )
        # Before the rows: if nothing is deleted, delta-rs makes no commit.
        commit_without_files(commit.table, properties)
        newest = self._open(commit.name)
        # A text: delta-rs 1.6 compares no time without a time zone with the column.
        time = LOG_TIMES[self.layout]
        newest.delete(f"\"{time}\" >= '{mark.complete_until}'", commit_properties=properties)

    def _forget_versions(self, name: str, before_ms: int, since_ms: int) -> bool:
        # Opened again: the commit may have been written without delta-rs.
        table = self._open(name)
        folder, now_ms = folder_of(name, self.storage_options), before_ms + int(self.version_seconds * 1000)
        delete_removed_files(name, table, folder, before_ms, since_ms, now_ms)
        return False

    def _begin(self, table: Any, name: str, delivery: EpochDelivery) -> DeltaCommit:
        base = (table, name, delivery, self.schema_changes, self.tombstone_seconds)
        if self.mode == "log" or not has_vectors(table, self.deletion_vectors):
            return DeltaCommit(*base)
        folder, index = folder_of(name, self.storage_options), self._key_index.of_table(name)
        files = SnapshotFiles(name, table, folder, index)
        return VectorCommit(*base, files=files)


def _rewound_entries(commit: DeltaCommit, mark: Mark) -> CommitEntries:
    """Return what the commits of a rewind say besides their rows: the ledger, and the mark in place of later ones."""
    entry = complete_entry(commit.delivery.writer)
    transactions = {**commit.entries().transactions, entry: mark.until_us}
    return CommitEntries(transactions, user_metadata(mark))
