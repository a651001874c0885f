"""Iceberg tables as a target of one commit per epoch. Needs the extra `iceberg`.

The ledger is a table property of the sink, ``<generation>:<epoch>:<driver>``, set in the commit of the rows. A
snapshot's summary would be lost when snapshots expire. pyiceberg 0.12 repeats a commit that meets another one after a
refresh, without a comparison of the ledger, so two drivers would both append. That is switched off on the handle of
the table; then everything is done again from the new metadata.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from typing_extensions import Self

from penstock.compat import UTC
from penstock.errors import SeveralProblemsError
from penstock.event.change_rows import change_rows
from penstock.event.model import NO_COLUMNS, ChangeEvent, Source, TableSchema, Version
from penstock.event.replica import encode_version, fold
from penstock.event.schema_changes import Policy
from penstock.folders import check_creatable
from penstock.io.columnar.arrow_rows import (
    columns_of_arrow,
    new_table_schema,
    rows_of_arrow,
    rows_to_arrow,
)
from penstock.io.columnar.known_keys import SnapshotKeys
from penstock.io.columnar.one_schema import with_one_schema
from penstock.io.columnar.preview import rows_of_event
from penstock.io.columnar.replica import (
    TableEvents,
    events_of_epoch,
    image_columns,
    log_columns,
    publish_tables_of_epoch,
    schema_change,
    table_for,
)
from penstock.io.columnar.table_rows import (
    DELETED,
    KEY,
    TIMESTAMP,
    TOMBSTONE_SECONDS,
    VALID_TO,
    VERSION,
    History,
    Mode,
    StoredRow,
    current_rows,
    forget_before,
    table_schema,
)
from penstock.io.iceberg.errors import IcebergTargetError, classify_error, not_configured
from penstock.io.staging.batch import StagedBatch
from penstock.io.staging.delivery import LedgerEntry, TargetUnavailableError
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.preview import Written
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


@dataclass(frozen=True)
class IcebergTarget:
    """See `penstock.io.staging.epochs.EpochTarget`. `table` may have placeholders; one table is one commit."""

    table: str
    catalog: str
    mode: Mode
    schema_changes: Policy
    # Not in the repr, because they may contain credentials.
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    tombstone_seconds: float = TOMBSTONE_SECONDS
    selection: TableSelection = EVERY_TABLE
    _keys: SnapshotKeys = field(default_factory=SnapshotKeys, init=False, repr=False, compare=False)

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

    def selecting(self, selection: TableSelection) -> Self:
        return replace(self, selection=selection)

    def preview(self, event: ChangeEvent) -> list[Written]:
        """Return the rows of an event; see `penstock.io.staging.preview`."""
        if not event.source.table:  # a message of the log belongs to no table
            return []
        return rows_of_event(event, table_for(self.table, event.source, {}), self.mode)

    def publish(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> None:
        given: dict[str, Source] = {}

        def publish(table: TableEvents) -> None:
            name = table_for(self.table, table.source, given)
            with _errors(f"the Iceberg table {name} of the catalogue {self.catalog}"):
                self._publish(self._load_catalog(), name, delivery, table)

        publish_tables_of_epoch(events_of_epoch(batches, self.selection), publish, self.schema_changes)

    def _publish(self, catalog: Any, name: str, delivery: EpochDelivery, table: TableEvents) -> None:
        found = self._open(catalog, name, table)
        # Before anything is read: a repeated epoch costs only the metadata.
        if delivery.is_delivered(_ledger(found, delivery.writer)):
            return
        held = image_columns(columns_of_arrow(found.schema().as_arrow()), self.mode)
        table = with_one_schema(name, table, held, self.schema_changes)
        are_new = self.mode != "log" and self._keys.are_new(
            name, found.metadata.current_snapshot_id, table.events, lambda: _read_keys(found)
        )
        writer = {"log": _append, "current": _replace_current, "history": _replace_history}[self.mode]
        writer(_Commit(found, name, delivery, self.schema_changes, self.tombstone_seconds, are_new), table)
        # After a commit the catalogue answers with the metadata of this commit.
        self._keys.committed(name, found.metadata.current_snapshot_id)

    def _load_catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        try:
            return load_catalog(self.catalog, **self.properties)
        except ValueError as error:  # no properties, an unknown type, or one that is missing
            raise not_configured(self.catalog, str(error)) from None

    def _open(self, catalog: Any, name: str, table: TableEvents) -> Any:
        """Return the table with its newest metadata, without repeated commits; create it if it is missing."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            found = catalog.load_table(name)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            created = with_one_schema(name, table, NO_COLUMNS, self.schema_changes)
            shape = new_table_schema(created.schema, self.mode)
            found = catalog.create_table_if_not_exists(name, schema=shape)
        # Set the property only on this handle of the table: other writers keep their own setting.
        properties = {**found.metadata.properties, "commit.retry.num-retries": "0"}
        found.metadata = found.metadata.model_copy(update={"properties": properties})
        return found


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
class _Commit:
    """One commit: the metadata that it begins at, and what it must write besides the rows.

    `are_new`: the table has no row with a key of the epoch. Then nothing is read, and the rows are appended.
    """

    table: Any
    name: str
    delivery: EpochDelivery
    policy: Policy
    tombstone_seconds: float
    are_new: bool

    @property
    def truncated(self) -> Version | None:
        """The newest TRUNCATE of earlier epochs; its transaction is not kept, so all of it counts as later."""
        order = self.table.metadata.properties.get(f"penstock.truncated.{self.delivery.writer}")
        return None if order is None else Version(int(order))

    def forget_before(self, newest: int) -> int | None:
        """Return the time before which tombstones are to be removed now, in nanoseconds; None: not in this commit."""
        last = self.table.metadata.properties.get(f"penstock.forgotten.{self.delivery.writer}")
        return forget_before(newest, None if last is None else int(last), self.tombstone_seconds)

    def properties(self, truncated: Version | None, forgotten: int | None) -> dict[str, str]:
        position = self.delivery.position
        entries = {f"penstock.sink.{self.delivery.writer}": ":".join(map(str, position))}
        if truncated is not None:
            entries[f"penstock.truncated.{self.delivery.writer}"] = str(truncated.order)
        if forgotten is not None:
            entries[f"penstock.forgotten.{self.delivery.writer}"] = str(forgotten)
        return entries

    def columns(self) -> TableSchema:
        return columns_of_arrow(self.table.schema().as_arrow())

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
            if replaced is not None:
                with warnings.catch_warnings():
                    # pyiceberg warns if all keys are new.
                    warnings.filterwarnings("ignore", "Delete operation did not match", UserWarning)
                    transaction.delete(replaced)
            # An epoch that only removes rows has nothing to append.
            if rows.num_rows:
                transaction.append(rows, snapshot_properties={"penstock.epoch": str(self.delivery.epoch)})
            transaction.set_properties(self.properties(truncated, forgotten))

    def load(self, condition: Any) -> list[StoredRow]:
        if self.are_new:
            return []
        return rows_of_arrow(self.table.scan(row_filter=condition).to_arrow())


def _ledger(table: Any, writer: str) -> LedgerEntry | None:
    """Return the entry of a writer in a table."""
    # Absent: the sink has not written to this table.
    found = table.metadata.properties.get(f"penstock.sink.{writer}")
    if found is None:
        return None
    generation, epoch, driver = found.split(":")
    return LedgerEntry(int(generation), int(epoch), driver)


def _read_keys(table: Any) -> Iterator[list[str]]:
    for part in table.scan(selected_fields=(KEY,)).to_arrow_batch_reader():
        yield part.column(0).to_pylist()


def _append(commit: _Commit, table: TableEvents) -> None:
    """Append the change rows. A new column is added to the three images."""
    columns, change = log_columns(commit.name, commit.columns(), table.schema, commit.policy)
    commit.write(change_rows(table.events, columns), alters=change.alters)


def _replace_current(commit: _Commit, table: TableEvents) -> None:
    from pyiceberg.expressions import AlwaysFalse, And, EqualTo, In, LessThan, Or

    for changes in fold(table.events).values():
        rows = current_rows(
            changes, lambda keys: commit.load(In(KEY, keys)) if keys else [], commit.truncated
        )
        older = (
            AlwaysFalse()
            if changes.truncated is None
            else LessThan(VERSION, encode_version(changes.truncated))
        )
        # Tombstones stay until a commit that replaces rows.
        forgotten = None if commit.are_new else commit.forget_before(changes.newest)
        if forgotten is not None:
            before = datetime.fromtimestamp(forgotten // 1_000_000_000, UTC).isoformat()
            older = Or(older, And(EqualTo(DELETED, True), LessThan(TIMESTAMP, before)))
        replaced = Or(In(KEY, [row[KEY] for row in rows]), older) if rows else older
        wanted = table_schema(changes.schema, "current")
        _replace(commit, rows, wanted, table.source, replaced, changes.truncated, forgotten)


def _replace_history(commit: _Commit, table: TableEvents) -> None:
    from pyiceberg.expressions import AlwaysFalse, And, EqualTo, In, IsNull, Or

    may_change = Or(IsNull(VALID_TO), EqualTo(DELETED, True))
    history = History(
        lambda keys: commit.load(And(may_change, In(KEY, keys))) if keys else [],
        lambda: commit.load(IsNull(VALID_TO)),
        lambda keys: commit.load(In(KEY, keys)),
    )
    rows = history.add(table.events)
    # A version of another key may be in this list, but no version is used twice with one key.
    versions = And(In(KEY, [row[KEY] for row in rows]), In(VERSION, [row[VERSION] for row in rows]))
    replaced = versions if rows else AlwaysFalse()
    _replace(commit, rows, table_schema(history.schema, "history"), table.source, replaced)


def _replace(
    commit: _Commit,
    rows: list[StoredRow],
    wanted: TableSchema,
    source: Source,
    replaced: Any,
    truncated: Version | None = None,
    forgotten: int | None = None,
) -> None:
    columns, change = schema_change(commit.name, commit.columns(), wanted, commit.policy)
    table = rows_to_arrow(rows, columns, source)
    if commit.are_new:
        # No row has one of these keys, so there is nothing to replace.
        replaced = None
    commit.write(table, alters=change.alters, replaced=replaced, truncated=truncated, forgotten=forgotten)
