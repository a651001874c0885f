"""Delta tables as a target of one commit per epoch. Needs the extra `delta`.

The ledger is two application transactions of the table in the commit of the rows: the version of the first one is
``generation << 32 | epoch``, the version of the second one is the driver's token. delta-rs 1.6 does not compare
versions, so they are compared here, before the commit and on the same snapshot of the table. A commit that another
writer makes in between fails this one (`max_commit_retries=0`; without the limit delta-rs would try again without this
comparison); then everything is done again from the new snapshot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from typing_extensions import Self

from penstock.attempt import TOKEN_DIGITS
from penstock.event.change_rows import change_rows
from penstock.event.model import NO_COLUMNS, ChangeEvent, Source, TableSchema, Version
from penstock.event.replica import TableChanges, encode_version, fold
from penstock.event.schema_changes import Policy, SchemaChange
from penstock.folders import check_creatable
from penstock.io.columnar.arrow_rows import (
    arrow_schema,
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
    PREFIX,
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
from penstock.io.delta.errors import DeltaTargetError, classify_error
from penstock.io.staging.batch import StagedBatch
from penstock.io.staging.delivery import LedgerEntry, TargetUnavailableError
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.preview import Written
from penstock.tables import EVERY_TABLE, TableSelection

_EPOCH_BITS = 32
_PLACEHOLDER = re.compile(r"\{\w+\}")
"""Delta stores one integer for each writer: the generation in the high bits, the epoch in the low ones."""


@dataclass(frozen=True)
class DeltaTarget:
    """See `penstock.io.staging.epochs.EpochTarget`. `uri` may have placeholders; one table is one commit."""

    uri: str
    mode: Mode
    schema_changes: Policy
    # Not in the repr, because it may contain credentials.
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    tombstone_seconds: float = TOMBSTONE_SECONDS
    selection: TableSelection = EVERY_TABLE
    _keys: SnapshotKeys = field(default_factory=SnapshotKeys, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"the Delta table {self.uri}"

    def check(self) -> None:
        """Open the table, or look for one at a URI with other values for its placeholders.

        Raises:
            TargetUnavailableError: the storage does not answer.
            DeltaTargetError: it denies access, there is no such bucket, or the folder cannot be made.
        """
        # A local folder can be checked before delta-rs is asked.
        folder = self.uri.removeprefix("file://")
        if "://" not in folder:
            above = folder.partition("{")[0]
            try:
                check_creatable(folder if above == folder else os.path.dirname(above) or ".")
            except OSError as error:
                raise DeltaTargetError(f"{self.name} cannot be created: {error.strerror}") from error
        uri = _PLACEHOLDER.sub("penstock", self.uri)
        with _errors(uri):
            self._open(uri)

    def selecting(self, selection: TableSelection) -> Self:
        return replace(self, selection=selection)

    def preview(self, event: ChangeEvent) -> list[Written]:
        """Return the rows of an event; see `penstock.io.staging.preview`."""
        if not event.source.table:  # a message of the log belongs to no table
            return []
        return rows_of_event(event, table_for(self.uri, event.source, {}), self.mode)

    def publish(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> None:
        given: dict[str, Source] = {}

        def publish(table: TableEvents) -> None:
            uri = table_for(self.uri, table.source, given)
            with _errors(uri):
                self._publish(uri, delivery, table)

        publish_tables_of_epoch(events_of_epoch(batches, self.selection), publish, self.schema_changes)

    def _publish(self, uri: str, delivery: EpochDelivery, table: TableEvents) -> None:
        delta = self._open(uri)
        # Created from the first epoch's columns: no table of a source is known before its first event.
        if delta is None:
            delta = self._create(uri, with_one_schema(uri, table, NO_COLUMNS, self.schema_changes))
        # Before anything is read: a repeated epoch costs only the open.
        if delivery.is_delivered(_ledger(delta, delivery.writer)):
            return
        held = image_columns(columns_of_arrow(_pyarrow_schema(delta)), self.mode)
        table = with_one_schema(uri, table, held, self.schema_changes)
        before = delta.version()
        # A log appends always, so it does not need the keys.
        are_new = self.mode != "log" and self._keys.are_new(
            uri, before, table.events, lambda: _read_keys(delta)
        )
        writer = {"log": _append, "current": _merge_current, "history": _merge_history}[self.mode]
        writer(_Commit(delta, uri, delivery, self.schema_changes, self.tombstone_seconds, are_new), table)
        # If another writer committed too, the table's version is higher, and the keys are read again.
        self._keys.committed(uri, before + 1)

    def _open(self, uri: str) -> Any:
        """Return the table with its newest snapshot; None if there is none."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(uri, storage_options=dict(self.storage_options))
        except TableNotFoundError:
            return None

    def _create(self, uri: str, table: TableEvents) -> Any:
        """Create an empty table. It has no entry in its ledger, so a crash after it repeats nothing."""
        from deltalake import DeltaTable

        columns = new_table_schema(table.schema, self.mode)
        # `ignore`: another driver may create it at the same moment.
        DeltaTable.create(uri, columns, mode="ignore", storage_options=dict(self.storage_options))
        return self._open(uri)


@contextmanager
def _errors(uri: str) -> Iterator[None]:
    """Turn errors of delta-rs within the block into errors of the sink."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    # Raised as unavailable, so that the epoch is published again from the new snapshot.
    except CommitFailedError as error:
        raise TargetUnavailableError(f"another writer has committed to {uri}: {error}") from None
    except (DeltaError, OSError) as error:
        found = classify_error(str(error), uri, is_delta_error=isinstance(error, DeltaError))
        if found is None:
            raise
        raise found from None


@dataclass(frozen=True, slots=True)
class _Commit:
    """One commit: the snapshot that it begins at, and what it must write besides the rows.

    `are_new`: the table has no row with a key of the epoch. Then nothing is read, and the rows are appended.
    """

    delta: Any
    uri: str
    delivery: EpochDelivery
    policy: Policy
    tombstone_seconds: float
    are_new: bool

    def properties(self, truncated: Version | None = None, forgotten: int | None = None) -> Any:
        """Return the properties with the ledger.

        `truncated` is the newest TRUNCATE of this epoch, `forgotten` the time in nanoseconds before which this commit
        removes tombstones.
        """
        from deltalake import CommitProperties, Transaction

        position = self.delivery.position
        entries = [Transaction(self.delivery.writer, position.generation << _EPOCH_BITS | position.epoch)]
        # A runner without tokens has the position only.
        if position.driver:
            entries.append(Transaction(_driver_of(self.delivery.writer), int(position.driver, 16)))
        if truncated is not None:
            entries.append(Transaction(self._truncates, truncated.order))
        if forgotten is not None:
            entries.append(Transaction(self._forgets, forgotten))
        return CommitProperties(max_commit_retries=0, app_transactions=entries)

    @property
    def truncated(self) -> Version | None:
        """The newest TRUNCATE of earlier epochs; its transaction is not kept, so all of it counts as later."""
        order = self.delta.transaction_version(self._truncates)
        return None if order is None else Version(order)

    @property
    def _truncates(self) -> str:
        return f"{self.delivery.writer}/truncated"

    def forget_before(self, newest: int) -> int | None:
        """Return the time before which tombstones are to be removed now, in nanoseconds; None: not in this commit."""
        return forget_before(newest, self.delta.transaction_version(self._forgets), self.tombstone_seconds)

    @property
    def _forgets(self) -> str:
        return f"{self.delivery.writer}/forgotten"

    def columns(self) -> TableSchema:
        return columns_of_arrow(_pyarrow_schema(self.delta))

    def fit(self, wanted: TableSchema) -> tuple[TableSchema, SchemaChange]:
        """Return the columns of the table after the commit; the table is rewritten if a type must become wider."""
        held = self.columns()
        after, change = schema_change(self.uri, held, wanted, self.policy)
        if change.widened:
            # In a separate commit before the rows: delta-rs cannot change a type and append in one.
            self.rewrite(arrow_schema(TableSchema(after.columns[: len(held.columns)])))
        return after, change

    def load(self, condition: str, keys: list[str] | None = None) -> list[StoredRow]:
        """Return the rows that fulfil a condition; `keys` follow it as a list of texts."""
        if self.are_new or (keys is not None and not keys):
            return []
        listed = "" if keys is None else "({})".format(", ".join(_quoted(key) for key in keys))
        return rows_of_arrow(_read(self.delta, f"{condition} {listed}"))

    def append(
        self, rows: list[StoredRow], columns: TableSchema, change: SchemaChange, source: Source
    ) -> None:
        """Append rows whose keys the table does not have. Tombstones stay until a commit that merges."""
        from deltalake import write_deltalake

        write_deltalake(
            self.delta,
            rows_to_arrow(rows, _written(columns, change), source),
            mode="append",
            schema_mode="merge",
            commit_properties=self.properties(),
        )

    def rewrite(self, shape: pa.Schema) -> None:
        """Give columns wider types. delta-rs has no type widening, so the table is written again, in one commit.

        The rows stay the same, so the ledger does too, and a crash after it repeats nothing.
        """
        from deltalake import CommitProperties, write_deltalake

        write_deltalake(
            self.delta,
            _read(self.delta).select(shape.names).cast(shape),
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=CommitProperties(max_commit_retries=0),
        )
        self.delta.update_incremental()


def _append(commit: _Commit, table: TableEvents) -> None:
    """Append the change rows. A new column is added to the three images."""
    from deltalake import write_deltalake

    columns, change = log_columns(commit.uri, commit.columns(), table.schema, commit.policy)
    rows = change_rows(table.events, columns)
    if change.widened:
        held = _pyarrow_schema(commit.delta)
        nullable = pa.schema([field.with_nullable(True) for field in rows.schema])
        commit.rewrite(pa.unify_schemas([held, nullable], promote_options="permissive"))
    write_deltalake(
        commit.delta, rows, mode="append", schema_mode="merge", commit_properties=commit.properties()
    )


def _merge_current(commit: _Commit, table: TableEvents) -> None:
    for changes in fold(table.events).values():
        wanted = table_schema(changes.schema, "current")
        after, change = commit.fit(wanted)
        data = frozenset(column.name for column in after if not column.name.startswith(PREFIX))
        rows = current_rows(
            changes, lambda keys: commit.load(f"{KEY} in", keys), commit.truncated, guarded=data
        )
        if commit.are_new:
            commit.append(rows, after, change, table.source)
            continue
        # Tombstones are removed with a commit that reads the table anyway.
        forgotten = commit.forget_before(changes.newest)
        properties = commit.properties(changes.truncated, forgotten)
        merge = _merge(commit, rows, after, change, table.source, f"t.{KEY} = s.{KEY}", properties)
        # Compare versions when the row is written, so that an older version never replaces a newer one, even if another
        # writer has changed the row since it was loaded.
        merge = merge.when_matched_update_all(
            predicate=f"s.{VERSION} > t.{VERSION}"
        ).when_not_matched_insert_all()
        if removed := _removed(changes, forgotten):
            merge = merge.when_not_matched_by_source_delete(removed)
        merge.execute()


def _removed(changes: TableChanges, forgotten: int | None) -> str:
    """Return the condition on the rows that the commit removes; "" if there is none."""
    conditions = []
    if changes.truncated is not None:
        conditions.append(f"t.{VERSION} < '{encode_version(changes.truncated)}'")
    if forgotten is not None:
        conditions.append(f"(t.{DELETED} and t.{TIMESTAMP} < to_timestamp_micros({forgotten // 1000}))")
    return " or ".join(conditions)


def _merge_history(commit: _Commit, table: TableEvents) -> None:
    # Rows that are valid, and deletions, which a late change must meet.
    history = History(
        lambda keys: commit.load(f"({VALID_TO} is null or {DELETED}) and {KEY} in", keys),
        lambda: commit.load(f"{VALID_TO} is null"),
        lambda keys: commit.load(f"{KEY} in", keys),
    )
    rows = history.add(table.events)
    after, change = commit.fit(table_schema(history.schema, "history"))
    if commit.are_new:
        commit.append(rows, after, change, table.source)
        return
    on = f"t.{KEY} = s.{KEY} and t.{VERSION} = s.{VERSION}"
    merge = _merge(commit, rows, after, change, table.source, on, commit.properties())
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _merge(
    commit: _Commit,
    rows: list[StoredRow],
    columns: TableSchema,
    change: SchemaChange,
    source: Source,
    on: str,
    properties: Any,
) -> Any:
    return commit.delta.merge(
        rows_to_arrow(rows, _written(columns, change), source),
        predicate=on,
        source_alias="s",
        target_alias="t",
        merge_schema=bool(change.added),
        commit_properties=properties,
    )


def _written(columns: TableSchema, change: SchemaChange) -> TableSchema:
    return TableSchema(tuple(column for column in columns if column.name not in change.ignored))


def _read_keys(delta: Any) -> Iterator[list[str]]:
    from deltalake import QueryBuilder

    for part in QueryBuilder().register("t", delta).execute(f"select {KEY} from t"):
        yield pa.record_batch(part).column(0).to_pylist()


def _read(delta: Any, where: str = "true") -> Any:
    from deltalake import QueryBuilder

    # A query, and not `to_pyarrow_dataset`, which reads no tables with timestamps without a time zone.
    found = QueryBuilder().register("t", delta).execute(f"select * from t where {where}")
    return pa.table(found).cast(_pyarrow_schema(delta))


def _pyarrow_schema(delta: Any) -> Any:
    return pa.schema(delta.schema().to_arrow())


def _quoted(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


def _ledger(delta: Any, writer: str) -> LedgerEntry | None:
    """Return the entry of a writer in a table."""
    version, token = delta.transaction_version(writer), delta.transaction_version(_driver_of(writer))
    if version is None:
        return None
    driver = "" if token is None else f"{token:0{TOKEN_DIGITS}x}"
    return LedgerEntry(version >> _EPOCH_BITS, version & ((1 << _EPOCH_BITS) - 1), driver)


def _driver_of(writer: str) -> str:
    # The version of a transaction is one number of 63 bits, which the position fills.
    return f"{writer}/driver"
