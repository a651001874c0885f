"""`EpochTableTarget`: what targets of one commit per epoch and table share. Needs pyarrow.

A format of tables adds how a table is opened, created, read and committed: `EpochTableTarget` with `TableCommit`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pyarrow as pa
from typing_extensions import Self

from penstock.datasets import Dataset, ReadTable, names_of
from penstock.errors import PenstockError, ServiceError, SeveralProblemsError, UsageError
from penstock.event.column_numbers import follows_numbers
from penstock.event.feed_rows import Layout, check_feed_names
from penstock.event.model import NO_COLUMNS, ChangeEvent, Source, TableSchema
from penstock.event.schema_policies import ChangePolicies, Entries, policies_of
from penstock.io.columnar.data_files import files_of
from penstock.io.columnar.followed_columns import (
    check_partition_columns,
    moves_for,
    under_names_of_now,
)
from penstock.io.columnar.key_index import KeyIndex
from penstock.io.columnar.known_keys import ChangedKeys, SnapshotKeys
from penstock.io.columnar.log_layout import check_layout
from penstock.io.columnar.old_versions import is_due
from penstock.io.columnar.one_schema import with_one_schema
from penstock.io.columnar.partitions import Entries as PartitionEntries
from penstock.io.columnar.partitions import (
    PartitionField,
    check_names,
    check_own,
    fields_of,
    partition_entries,
)
from penstock.io.columnar.preview import rows_of_event
from penstock.io.columnar.replica import (
    COMMITS_AT_ONCE,
    TableEvents,
    events_of_epoch,
    raise_refused,
    row_columns,
    table_for,
    table_name,
    with_one_commit_each,
)
from penstock.io.columnar.table_commit import TableCommit
from penstock.io.columnar.table_rows import (
    PREFIX,
    Mode,
)
from penstock.io.columnar.whole_rows import WholeRows, keys_of
from penstock.io.staging.batch import StagedBatch
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.parked_files import EpochChanges, TableEpochs
from penstock.io.staging.preview import Written
from penstock.io.staging.table_notes import WrittenTable
from penstock.io.staging.table_parking import refusals_of_tables
from penstock.object_stores.store import in_parallel
from penstock.rewind import RewindPlan, TableVersion, plan_of_logs, plan_of_rows
from penstock.tables import TableSelection

_MOST_PROBLEMS = 10
"""Tables that a message before the start names."""

_commit = threading.Lock()
_MARK_WAITS_SECONDS = 60.0


def committing_rows() -> AbstractContextManager[None]:
    """Commit rows. They wait for nothing: another driver in this process may be stuck in its commit."""
    return _one_commit(0.0)


def _committing_a_mark() -> AbstractContextManager[None]:
    """Commit a mark, after rows that are being committed: of two commits at the same time one would be repeated."""
    return _one_commit(_MARK_WAITS_SECONDS)


@contextmanager
def _one_commit(seconds: float) -> Iterator[None]:
    held = _commit.acquire(timeout=seconds)
    try:
        yield
    finally:
        if held:
            _commit.release()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Tidied(NamedTuple):
    """When old versions of a table were forgotten, in seconds of `time.monotonic`, and which.

    See `EpochTableTarget._forget_versions`.
    """

    at: float
    before_ms: int


class EpochTableTarget(ABC):
    """See `penstock.io.staging.epochs.EpochTarget`. One table is one commit of an epoch.

    A subclass is a frozen dataclass that has these fields.
    """

    mode: Mode
    layout: Layout
    schema_changes: Entries
    tombstone_seconds: float
    selection: TableSelection
    mark_seconds: float | None
    partition_by: PartitionEntries
    version_seconds: float
    max_index_bytes: int
    _tidied: dict[str, Tidied]
    _keys: SnapshotKeys
    _indexes: list[KeyIndex]
    _written: set[WrittenTable]

    @property
    @abstractmethod
    def pattern(self) -> str:
        """The name of the table, which may have placeholders."""

    @property
    def takes_rows(self) -> bool:
        """Whether the tasks stage whole rows in place of events; see `penstock.io.columnar.whole_rows`."""
        return False

    @abstractmethod
    def _dataset(self, name: str) -> Dataset:
        """Return a table as a dataset."""

    def datasets_written(self, sources: Sequence[Source]) -> list[Dataset]:
        """See `penstock.datasets.WritesDatasets`."""
        selected = [each for each in sources if self.selection.has(each.schema, each.table)]
        return [self._dataset(name) for name in names_of(self.pattern, selected)]

    @abstractmethod
    def errors(self, name: str) -> AbstractContextManager[None]:
        """Turn errors of the service within the block into errors of the sink."""

    @abstractmethod
    def _open(self, name: str) -> Any:
        """Return the table with its newest snapshot; None if there is none."""

    @abstractmethod
    def _create(self, name: str, columns: TableSchema, source: Source) -> Any:
        """Create an empty table for a table of the source, unless there is one now, and return it.

        It has no entry in its ledger, so a crash after it repeats nothing.

        Raises:
            UsageError: `partition_by` does not fit its columns.
        """

    @abstractmethod
    def _columns(self, table: Any) -> TableSchema:
        """Return the plain columns of an open table."""

    @abstractmethod
    def _partitions(self, table: Any) -> tuple[PartitionField, ...]:
        """Return by what an open table is partitioned."""

    def _partitions_of_new(self, source: Source) -> tuple[PartitionField, ...]:
        """Return by what a table is partitioned that the sink creates."""
        return fields_of(partition_entries(self.partition_by, self.mode, self.layout), source)

    def _check_partitions(self, name: str, table: Any, source: Source) -> None:
        """Check that an open table has the partitions that `partition_by` asks for, if it asks for some."""
        if wanted := self._partitions_of_new(source):
            check_own(name, self._partitions(table), wanted)

    def check_tables(self, tables: Callable[[], Sequence[ReadTable]]) -> None:
        """See `penstock.io.staging.epochs.ChecksTables`: `partition_by` and `layout` fit all tables."""
        if not self.partition_by and self.layout == "events":
            return
        found = in_parallel(self._problem, tables(), COMMITS_AT_ONCE)
        if problems := [each for each in found if each is not None]:
            raise SeveralProblemsError.of(problems[:_MOST_PROBLEMS])

    def _problem(self, read: ReadTable) -> UsageError | None:
        """Return what keeps a table of the source from its partitions or its layout; None: nothing."""
        wanted, name = self._partitions_of_new(read.source), table_name(self.pattern, read.source)
        # Only tables that need it are opened: there may be thousands.
        is_asked = wanted or self.layout == "table"
        if not is_asked or not self.selection.has(read.source.schema, read.source.table):
            return None
        try:
            if self.layout == "table":
                check_feed_names(read.dataset.columns, read.source.qualified_table)
            with self.errors(name):
                if (table := self._open(name)) is not None:
                    self._check_layout(name, table)
                    check_own(name, self._partitions(table), wanted)
                elif read.dataset.columns and self.mode != "log":
                    own = [column for column, _ in wanted if column.startswith(PREFIX)]
                    check_names(name, wanted, (*read.dataset.columns, *own))
        except UsageError as error:
            return error
        return None

    def _check_layout(self, name: str, table: Any) -> None:
        """Check that an open table has the rows of a log in the layout of the sink."""
        if self.mode == "log":
            check_layout(f"the table {name}", self._columns(table), self.layout)

    def _check_one_table(self) -> None:
        """Check layout and partitions before the start, if the name of the table and the entries fit every source.

        Raises:
            UsageError: the table exists and has others.
        """
        entries = partition_entries(self.partition_by, self.mode, self.layout)
        if "{" in self.pattern or not (entries or self.layout == "table"):
            return
        if (table := self._open(self.pattern)) is not None:
            self._check_layout(self.pattern, table)
            if not any(entry.pattern for entry in entries):
                check_own(self.pattern, self._partitions(table), [entry.field for entry in entries])

    @abstractmethod
    def _begin(self, table: Any, name: str, delivery: EpochDelivery) -> TableCommit:
        """Return a commit that begins at the snapshot of a table."""

    @abstractmethod
    def _mark(self, table: Any, mark: Mark) -> None:
        """Commit a mark to an open table, unless it has a newer one of the sink."""

    @abstractmethod
    def _versions(self, name: str, table: Any, writer: str, to_us: int) -> list[TableVersion]:
        """Return the versions that led to an open table, the newest first.

        They may end where a version is known to be complete until a time before the one that would be chosen.
        """

    @abstractmethod
    def _check_version(self, name: str, table: Any, version: int) -> None:
        """Raise UsageError if an open table cannot go back to a version."""

    @abstractmethod
    def _restore(self, commit: Any, mark: Mark, version: int) -> None:
        """Give a table the rows of a version, with the ledger of a commit and a mark, in one commit."""

    @abstractmethod
    def _delete_from(self, commit: Any, mark: Mark) -> None:
        """Delete the rows of a log from the time of a mark on, and commit ledger and mark, before it or with it."""

    def plan_rewind(self, sink: str, job: str, to_us: int, tables: Iterable[WrittenTable]) -> RewindPlan:
        """See `penstock.io.staging.epochs.RewindingTarget`."""
        delivery, versions = EpochDelivery(sink, job, 0, 0), {}
        for name in sorted({each.name for each in tables}):
            with self.errors(name):
                if (table := self._open(name)) is not None:
                    versions[name] = self._versions(name, table, delivery.writer, to_us)
        plan = plan_of_logs(versions, to_us) if self.mode == "log" else plan_of_rows(versions, to_us)
        for each in plan.tables:
            if each.version is not None:
                self._check_restorable(each.name, each.version)
        return plan

    def _check_restorable(self, name: str, version: int) -> None:
        with self.errors(name):
            try:
                self._check_version(name, self._open(name), version)
            except UsageError as error:
                raise UsageError(
                    f"the table {name} cannot go back to its version {version}: {error}"
                ) from None

    def rewind(self, delivery: EpochDelivery, plan: RewindPlan) -> None:
        """See `penstock.io.staging.epochs.RewindingTarget`."""
        mark = Mark.of(delivery.job, delivery.sink, delivery.epoch, plan.to_us)
        for each in plan.tables:
            with self.errors(each.name):
                # A person may have deleted it since the plan was made.
                if (table := self._open(each.name)) is None:
                    continue
                commit = self._begin(table, each.name, delivery)
                # Raises if another copy of the checkpoint writes to the table.
                delivery.is_delivered(commit.ledger())
                if each.version is None:
                    self._delete_from(commit, mark)
                else:
                    self._restore(commit, mark, each.version)

    @property
    def written(self) -> Collection[WrittenTable]:
        """See `penstock.io.staging.epochs.MarkingTarget`."""
        return self._written

    def mark_complete(self, mark: Mark, tables: Iterable[WrittenTable]) -> None:
        """See `penstock.io.staging.epochs.MarkingTarget`."""
        # A table whose changes are left out by now is not complete any more.
        names = {each.name for each in tables if self.selection.has(each.source_schema, each.source_table)}
        errors: list[Exception] = []
        for name in sorted(names):
            try:
                with _committing_a_mark(), self.errors(name):
                    if (table := self._open(name)) is not None:
                        self._mark(table, mark)
            except ServiceError as error:
                errors.append(error)
        if errors:
            raise SeveralProblemsError.of(errors)

    @abstractmethod
    def _forget_versions(self, name: str, before_ms: int, since_ms: int) -> bool:
        """Forget versions of a table that newer ones had replaced before (not at) a time, and delete their files.

        All times are in milliseconds since the epoch. Versions that were replaced before `since_ms` are deleted
        already. Returns whether more of them remain.
        """

    def _tidy(self, name: str) -> None:
        """Forget old versions of a table, if it is time, after a commit."""
        last, now = self._tidied.get(name), time.monotonic()
        if not is_due(None if last is None else last.at, now, self.version_seconds):
            return
        before_ms = _now_ms() - int(self.version_seconds * 1000)
        if not self._forget_versions(name, before_ms, 0 if last is None else last.before_ms):
            self._tidied[name] = Tidied(now, before_ms)

    def newest(self, name: str, sink: str, job: str) -> TableCommit | None:
        """Return the newest snapshot of a table for reading; None if there is no table.

        `sink`, `job`: see `EpochDelivery`; numbers that this writer has stored can be asked for.
        """
        with self.errors(name):
            table = self._open(name)
            return None if table is None else self._begin(table, name, EpochDelivery(sink, job, 0, 0))

    @property
    def _key_index(self) -> KeyIndex:
        if not self._indexes:
            self._indexes.append(KeyIndex(self.max_index_bytes))
        return self._indexes[0]

    def _note(self, name: str, source: Source) -> None:
        """Note that this process writes a table."""
        self._written.add(WrittenTable(name, source.schema, source.table))

    def _policies(self, source: Source) -> ChangePolicies:
        return policies_of(self.schema_changes, source.schema, source.table)

    def selecting(self, selection: TableSelection) -> Self:
        return replace(self, selection=selection)  # type: ignore[type-var]

    def preview(self, event: ChangeEvent) -> list[Written]:
        """Return the rows of an event; see `penstock.io.staging.preview`."""
        if not event.source.table:  # a message of the log belongs to no table
            return []
        return rows_of_event(event, table_for(self.pattern, event.source, {}), self.mode, self.layout)

    def publish(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> None:
        tables = self.tables_of(delivery, batches)
        self.raise_refused(tables, self.publish_tables(tables))

    def tables_of(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> list[TableEpochs]:
        """See `penstock.io.staging.table_parking.ParkingTarget`."""
        if any(files_of(batch) is not None for batch in batches):
            raise UsageError(
                f"the checkpoint holds changes for {self.pattern} that were staged with mode='log', and the mode is "
                f"{self.mode}: start the pipeline once with mode='log', which writes them, and change the mode then"
            )
        given: dict[str, Source] = {}
        return [
            TableEpochs(
                table_for(self.pattern, each.source, given),
                each.source,
                (EpochChanges(delivery, each.events),),
            )
            for each in with_one_commit_each(
                self.pattern, events_of_epoch(batches, self.selection), self.schema_changes
            )
            # A message of the log belongs to no table.
            if each.source.table
        ]

    def publish_tables(self, tables: Sequence[TableEpochs]) -> list[PenstockError | None]:
        """See `penstock.io.staging.table_parking.ParkingTarget`."""

        def publish(table: TableEpochs) -> None:
            # Parked changes of a table that is left out by now.
            if not self.selection.has(table.source.schema, table.source.table):
                return
            self._note(table.name, table.source)
            with self.errors(table.name):
                self._publish(table)

        with committing_rows():
            return refusals_of_tables(tables, publish, COMMITS_AT_ONCE)

    def raise_refused(self, tables: Sequence[TableEpochs], errors: Sequence[PenstockError | None]) -> None:
        """See `penstock.io.staging.table_parking.ParkingTarget`."""
        raise_refused([each.source for each in tables], errors, self.schema_changes)

    def _publish(self, epochs: TableEpochs) -> None:
        name, policies = epochs.name, self._policies(epochs.source)
        whole = None if follows_numbers(policies) else self._whole_rows(epochs)
        table = self._open(name)
        # Created from the first epoch's columns: no table of a source is known before its first event.
        if table is None:
            columns = self._columns_of_new(epochs) if whole is None else whole[0]
            table = self._create(name, columns, epochs.source)
        self._check_partitions(name, table, epochs.source)
        commit = self._begin(table, name, epochs.newest)
        # Before anything is read: a repeated epoch costs only the metadata.
        ledger = commit.ledger()
        if epochs.is_delivered(ledger):
            return
        if whole is not None and commit.takes_whole(whole[0]):
            rows = whole[1]
            self._write(commit, keys_of(rows), lambda ready: ready.write_whole(rows))
            return
        events = TableEvents(epochs.source, epochs.after(ledger))
        if follows_numbers(policies):
            known = commit.numbers(epochs.source)
            moves = moves_for(name, known, commit.columns(), events, policies)
            if moves.known != known:
                asked = [field.column for field in self._partitions_of_new(epochs.source)]
                check_partition_columns(name, moves, [each.column for each in self._partitions(table)], asked)
                commit.move_columns(moves, epochs.source)
                # Everything begins again with the names of now: another driver may have committed too.
                self._publish(epochs)
                return
            events = under_names_of_now(events, moves, policies)
        events = with_one_schema(name, events, row_columns(commit.columns()), policies)
        self._write(commit, ChangedKeys.of(events.events), lambda ready: self._write_events(ready, events))

    def _whole_rows(self, epochs: TableEpochs) -> tuple[TableSchema, pa.Table] | None:
        """Return `WholeRows.table` of an epoch; None: its changes are written as events."""
        (first, *others) = epochs.epochs
        is_whole = self.mode == "current" and isinstance(first.events, WholeRows) and not others
        return cast("WholeRows", first.events).table if is_whole else None

    def _columns_of_new(self, epochs: TableEpochs) -> TableSchema:
        """Return the columns that a table gets which the sink creates for some epochs."""
        name, policies = epochs.name, self._policies(epochs.source)
        events = TableEvents(epochs.source, epochs.events)
        if follows_numbers(policies):
            events = under_names_of_now(events, moves_for(name, {}, NO_COLUMNS, events, policies), policies)
        return with_one_schema(name, events, NO_COLUMNS, policies).schema

    def _write(self, commit: Any, keys: ChangedKeys, write: Callable[[Any], None]) -> None:
        """Write changes with some keys; `write` is a function of the commit."""
        name, before = commit.name, commit.snapshot
        # A log appends always, so it does not need the keys.
        if self.mode != "log" and self._keys.are_new(name, before, keys, commit.read_keys):
            commit = replace(commit, are_new=True)
        write(commit)
        commit.maintain()
        # If another writer committed too, the table has another snapshot, and the keys are read again.
        self._keys.committed(name, commit.committed(before))
        self._tidy(name)

    def _write_events(self, commit: Any, events: TableEvents) -> None:
        """Write events to a table, in the mode of the target."""
        if self.mode == "history":
            commit.write_history(events)
        else:
            commit.write_current(events)
