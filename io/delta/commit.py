"""A commit of a Delta table through delta-rs. Needs the extra `delta`.

The ledger is two application transactions of the table in the commit of the rows: the version of the first one is
``generation << 32 | epoch``, the version of the second one is the driver's token. delta-rs 1.6 does not compare
versions, so they are compared here, before the commit and on the same snapshot of the table. A commit that another
writer makes in between fails this one (`max_commit_retries=0`; without the limit delta-rs would try again without this
comparison); then everything is done again from the new snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.attempt import TOKEN_DIGITS
from penstock.event.model import Source, TableSchema, Version
from penstock.event.replica import TableChanges, encode_version
from penstock.event.schema_changes import SchemaChange
from penstock.io.columnar.arrow_rows import arrow_schema, columns_of_arrow, rows_of_arrow, rows_to_arrow
from penstock.io.columnar.data_files import DataFile
from penstock.io.columnar.log_shape import LogShape, fitted
from penstock.io.columnar.log_target import LogCommit
from penstock.io.columnar.replica import schema_change
from penstock.io.columnar.table_rows import DELETED, KEY, TIMESTAMP, VALID_TO, VERSION, StoredRow
from penstock.io.delta.marks import complete_entry, user_metadata
from penstock.io.delta.partitions import are_plain, fields_of_table, with_units
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import LedgerEntry

_EPOCH_BITS = 32
"""Delta stores one integer for each writer: the generation in the high bits, the epoch in the low ones."""

# Versions and features of Delta's protocol for writers.
_PLAIN_WRITER, WRITER_WITH_FEATURES = 2, 7
# delta-rs 1.6 gives a table `variantType` with each other feature. It concerns only columns of this type.
_PLAIN_FEATURES = frozenset(
    ("appendOnly", "invariants", "timestampNtz", "deletionVectors", "v2Checkpoint", "variantType")
)
_INVARIANTS = "delta.invariants"


@dataclass(frozen=True, slots=True)
class CommitEntries:
    """The values of a commit besides its rows: versions of application transactions, and its metadata."""

    transactions: Mapping[str, int]
    metadata: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class DeltaCommit(LogCommit):
    """A commit of delta-rs: rows are replaced by its MERGE."""

    @property
    def snapshot(self) -> int:
        return int(self.table.version())

    def committed(self, before: int | None) -> int:
        # Not the newest version, which may be another writer's.
        return (before or 0) + 1

    @property
    def compares_versions(self) -> bool:
        return True

    def properties(self, truncated: Version | None = None, forgotten: int | None = None) -> Any:
        """Return the properties with the ledger, as delta-rs has them; see `entries`."""
        from deltalake import CommitProperties, Transaction

        found = self.entries(truncated, forgotten)
        transactions = [Transaction(name, version) for name, version in found.transactions.items()]
        return CommitProperties(found.metadata, max_commit_retries=0, app_transactions=transactions)

    def entries(self, truncated: Version | None = None, forgotten: int | None = None) -> CommitEntries:
        """Return what the commit says besides its rows: the ledger, and the numbers that the writer stores.

        `truncated` is the newest TRUNCATE of this epoch, `forgotten` the time in nanoseconds before which this commit
        removes tombstones.
        """
        position = self.delivery.position
        entries = {self.delivery.writer: position.generation << _EPOCH_BITS | position.epoch}
        # A runner without tokens has the position only.
        if position.driver:
            entries[_driver_of(self.delivery.writer)] = int(position.driver, 16)
        if truncated is not None:
            entries[self._entry("truncated")] = truncated.order
        if forgotten is not None:
            entries[self._entry("forgotten")] = forgotten
        return CommitEntries(entries, self._known_mark())

    def _known_mark(self) -> dict[str, str] | None:
        """Return the last mark as metadata of a commit, so that readers find it in the newest commit of the sink."""
        until_us = self.table.transaction_version(complete_entry(self.delivery.writer))
        if until_us is None:
            return None
        return user_metadata(Mark.of(self.delivery.job, self.delivery.sink, 0, until_us))

    def _entry(self, what: str) -> str:
        return f"{self.delivery.writer}/{what}"

    def stored(self, what: str) -> int | None:
        found: int | None = self.table.transaction_version(self._entry(what))
        return found

    def ledger(self) -> LedgerEntry | None:
        writer = self.delivery.writer
        version = self.table.transaction_version(writer)
        token = self.table.transaction_version(_driver_of(writer))
        if version is None:
            return None
        driver = "" if token is None else f"{token:0{TOKEN_DIGITS}x}"
        return LedgerEntry(version >> _EPOCH_BITS, version & ((1 << _EPOCH_BITS) - 1), driver)

    def columns(self) -> TableSchema:
        return columns_of_arrow(table_schema_of(self.table))

    def fit(self, wanted: TableSchema, source: Source) -> tuple[TableSchema, SchemaChange]:
        """Return the columns of the table after the commit; the table is rewritten if a type must become wider."""
        held = self.columns()
        after, change = schema_change(self.name, held, wanted, self.policies(source))
        if change.widened:
            # In a separate commit before the rows: delta-rs cannot change a type and append in one.
            shape = arrow_schema(TableSchema(after.columns[: len(held.columns)]))
            self.rewrite(_read(self.table).select(shape.names).cast(shape))
        return after, change

    def read_columns(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        from deltalake import QueryBuilder

        query = "select {} from t".format(", ".join(map(_identifier, names)))
        for part in QueryBuilder().register("t", self.table).execute(query):
            yield pa.record_batch(part)

    def rows_with(self, keys: list[str]) -> list[StoredRow]:
        return self._load(f"{KEY} in", keys)

    def rows_that_may_change(self, keys: list[str]) -> list[StoredRow]:
        return self._load(f"({VALID_TO} is null or {DELETED}) and {KEY} in", keys)

    def valid_rows(self) -> list[StoredRow]:
        return self._load(f"{VALID_TO} is null")

    def _load(self, condition: str, keys: list[str] | None = None) -> list[StoredRow]:
        """Return the rows that fulfil a condition; `keys` follow it as a list of texts."""
        if self.are_new or (keys is not None and not keys):
            return []
        listed = "" if keys is None else "({})".format(", ".join(_quoted(key) for key in keys))
        return rows_of_arrow(_read(self.table, f"{condition} {listed}"))

    def alter(self, shape: LogShape, source: Source) -> None:
        if shape.change.widened:
            # delta-rs cannot change a type, so the table is written again.
            self.rewrite(fitted(_read(self.table), shape.columns, frozenset(), source))
            return
        self.add_columns(arrow_schema(shape.columns))

    def add_columns(self, shape: pa.Schema) -> None:
        """Give the table the columns of `shape` that it lacks, in a commit without rows and ledger."""
        from deltalake import CommitProperties, write_deltalake

        write_deltalake(
            self.table,
            shape.empty_table(),
            mode="append",
            schema_mode="merge",
            commit_properties=CommitProperties(max_commit_retries=0),
        )

    def takes(self, file: DataFile) -> bool:
        names = list(file.partition.values) if file.partition else []
        return is_plain(self.table) and names == self.table.metadata().partition_columns

    def divisible(self, rows: pa.Table) -> pa.Table:
        """Return rows with the columns of the sink by which the table is partitioned."""
        return with_units(rows, fields_of_table(self.table))

    def append(self, rows: pa.Table) -> None:
        """Append rows, of which a table in another mode than *log* has no key. Tombstones stay."""
        from deltalake import write_deltalake

        write_deltalake(
            self.table,
            self.divisible(rows),
            mode="append",
            schema_mode="merge",
            commit_properties=self.properties(),
        )

    def add_files(self, files: Sequence[DataFile]) -> None:
        from deltalake.transaction import AddAction

        now_ms = time.time_ns() // 1_000_000
        added = [
            AddAction(
                each.path,
                each.length,
                each.partition.values if each.partition else {},
                now_ms,
                True,
                each.stats,
            )
            for each in files
        ]
        self.table.create_write_transaction(
            added,
            "append",
            self.table.schema(),
            partition_by=self.table.metadata().partition_columns,
            commit_properties=self.properties(),
        )

    def rewrite(self, rows: pa.Table) -> None:
        """Give columns wider types: `rows` are the rows of the table. delta-rs has no type widening.

        It is one commit. The rows stay the same, so the ledger does too, and a crash after it repeats nothing.
        """
        from deltalake import CommitProperties, write_deltalake

        write_deltalake(
            self.table,
            rows,
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=self.table.metadata().partition_columns,
            # A second try after the commit of another writer would remove the rows of that commit.
            commit_properties=CommitProperties(max_commit_retries=0),
        )
        self.table.update_incremental()

    def write_rows(
        self,
        rows: list[StoredRow],
        changes: TableChanges,
        after: TableSchema,
        change: SchemaChange,
        source: Source,
    ) -> None:
        written = rows_to_arrow(rows, _written(after, change), source)
        if self.are_new:
            self.append(written)
            return
        forgotten = self.forget_before(changes.newest)
        properties = self.properties(changes.truncated, forgotten)
        merge = self._merge(written, change, f"t.{KEY} = s.{KEY}", properties)
        # Compare versions when the row is written, so that an older version never replaces a newer one, even if another
        # writer has changed the row since it was loaded.
        merge = merge.when_matched_update_all(
            predicate=f"s.{VERSION} > t.{VERSION}"
        ).when_not_matched_insert_all()
        if removed := _removed(changes, forgotten):
            merge = merge.when_not_matched_by_source_delete(removed)
        merge.execute()

    def write_versions(
        self, rows: list[StoredRow], after: TableSchema, change: SchemaChange, source: Source
    ) -> None:
        written = rows_to_arrow(rows, _written(after, change), source)
        if self.are_new:
            self.append(written)
            return
        # A version that gets its end is written again, in place of itself.
        on = f"t.{KEY} = s.{KEY} and t.{VERSION} = s.{VERSION}"
        merge = self._merge(written, change, on, self.properties())
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def maintain(self) -> None:
        """Nothing to do: each commit writes whole files, and `OPTIMIZE` does not disturb the sink."""

    def _merge(self, rows: pa.Table, change: SchemaChange, on: str, properties: Any) -> Any:
        return self.table.merge(
            self.divisible(rows),
            predicate=on,
            source_alias="s",
            target_alias="t",
            merge_schema=bool(change.added),
            commit_properties=properties,
        )


def commit_without_files(table: Any, properties: Any) -> None:
    """Commit properties to an open table, and no rows."""
    table.create_write_transaction(
        [],
        "append",
        table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=properties,
    )


def is_plain(table: Any) -> bool:
    """Return whether a file with the columns of an open table may be added to it as it is."""
    protocol = table.protocol()
    features = set(protocol.writer_features or ())
    # Other features concern the content of files: constraints, generated columns, other names of columns.
    plain = protocol.min_writer_version <= _PLAIN_WRITER or (
        protocol.min_writer_version == WRITER_WITH_FEATURES and features <= _PLAIN_FEATURES
    )
    # delta-rs knows how values of other types are written in the log.
    divisible = are_plain(table_schema_of(table), table.metadata().partition_columns)
    # An invariant is in the metadata of its column. The feature alone says only that there may be some.
    return plain and divisible and _INVARIANTS not in table.schema().to_json()


def _removed(changes: TableChanges, forgotten: int | None) -> str:
    """Return the condition on the rows that the commit removes; "" if there is none."""
    conditions = []
    if changes.truncated is not None:
        conditions.append(f"t.{VERSION} < '{encode_version(changes.truncated)}'")
    if forgotten is not None:
        conditions.append(f"(t.{DELETED} and t.{TIMESTAMP} < to_timestamp_micros({forgotten // 1000}))")
    return " or ".join(conditions)


def _written(columns: TableSchema, change: SchemaChange) -> TableSchema:
    return TableSchema(tuple(column for column in columns if column.name not in change.ignored))


def _read(delta: Any, where: str = "true") -> Any:
    from deltalake import QueryBuilder

    # A query, and not `to_pyarrow_dataset`, which reads no tables with timestamps without a time zone.
    found = QueryBuilder().register("t", delta).execute(f"select * from t where {where}")
    shape = table_schema_of(delta)
    return pa.table(found).select(shape.names).cast(shape)


def table_schema_of(delta: Any) -> pa.Schema:
    """Return the columns of an open table."""
    return pa.schema(delta.schema().to_arrow())


def _identifier(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _quoted(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


def _driver_of(writer: str) -> str:
    # The version of a transaction is one number of 63 bits, which the position fills.
    return f"{writer}/driver"
